"""Follow what instances hold: by groups, quotas and flavors."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from bus.messages.cell import PlaceInCell
from bus.messages.placement import ClaimResources, ReleaseClaim, SwapClaim
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import INSTANCES, Choice, ConsumerId, GroupId, ProviderId, ResourceAmount, ServerGroup
from engine.refusals import GroupRefused
from placement_worker.core.ledger import ClaimOrder, Quota
from scheduler_worker.core.instances.rows import InstanceRow
from tests.simulation.findings import Findings
from tests.simulation.host_history import HostHistories, short_id
from tests.simulation.moves_checker import granted_of, of_classes
from tests.simulation.plan import GOLD, PROJECT, Boot, Plan
from tests.simulation.workers import BUS

GROUP = "group"


class GroupsChecker:
    def __init__(self, findings: Findings, hosts: HostHistories, groups: Iterable[ServerGroup] = ()) -> None:
        self._findings = findings
        self._hosts = hosts
        self._groups = {group.id: group for group in groups}
        self._group_of: dict[ConsumerId, GroupId] = {}
        # Those that may be on another host than their group.
        self._apart: set[ConsumerId] = set()
        self._members: dict[GroupId, dict[ConsumerId, ProviderId]] = {group: {} for group in self._groups}
        # When a host last had as many members as it may have; and when the group last had a member.
        self._full_s: dict[tuple[GroupId, ProviderId], float] = {}
        self._used_s: dict[GroupId, float] = {}

    def committed(
        self,
        orders: Sequence[ClaimOrder],
        granted: Collection[tuple[ConsumerId, int]],
        placed_on: Mapping[ConsumerId, ProviderId],
    ) -> None:
        """`placed_on` has the host of each consumer that came by a claim or a swap and holds something."""
        for order in orders:
            if isinstance(order, ReleaseClaim):
                self._left(order)
            elif order.group is not None and (order.consumer, order.attempt) in granted:
                self._joined(order, order.group.id, placed_on)
        for claim in granted_of(orders, granted):
            self._check_affinity(claim, orders, placed_on)
        members: dict[GroupId, dict[ConsumerId, ProviderId]] = {group: {} for group in self._groups}
        for consumer, group in list(self._group_of.items()):
            if consumer in placed_on:
                members[group][consumer] = placed_on[consumer]
            else:
                del self._group_of[consumer]
        for group, now in members.items():
            self._note(self._groups[group], self._members[group])
            if now != self._members[group]:
                self._members[group] = now
                self._check(self._groups[group], now)
                self._note(self._groups[group], now)

    def _left(self, order: ReleaseClaim) -> None:
        """It is deleted, or its instance does not come back: it holds what it has, and is with nobody."""
        if order.leaves_group and self._group_of.pop(order.consumer, None) is not None:
            self._findings.count(GROUP, "left its group")

    def _joined(
        self, order: ClaimResources | SwapClaim, group: GroupId, placed_on: Mapping[ConsumerId, ProviderId]
    ) -> None:
        if isinstance(order, ClaimResources) and order.project != PROJECT and self._members.get(group):
            self._findings.breaks(
                "nobody acts with another's authority",
                f"{short_id(order.consumer)} of project {order.project!r} is in {short_id(group)}",
            )
        self._group_of[order.consumer] = group
        if isinstance(order, SwapClaim) and order.heir is not None and order.heir.id in placed_on:
            self._findings.count(GROUP, f"a {order.heir.type.lower()} is a member")
            self._group_of[order.heir.id] = group
            # The way back is not judged. The heir of a silent destination leaves the group at once.
            if order.heir.type == "MIGRATION" or order.returns is not None:
                self._apart.add(order.heir.id)

    def excluded(self, group: GroupId, since_s: float) -> Collection[ProviderId] | None:
        """The hosts that may have been refused because of the group's members since `since_s`. None: any host may
        have been.
        """
        policy = self._groups[group].policy
        if policy == "affinity":
            return None if self._used_s.get(group, -1.0) >= since_s else ()
        if policy == "anti-affinity":
            return {host for (of, host), at_s in self._full_s.items() if of == group and at_s >= since_s}
        return ()

    def _note(self, group: ServerGroup, members: Mapping[ConsumerId, ProviderId]) -> None:
        if members:
            self._used_s[group.id] = self._findings.now_s
        for host, count in Counter(members.values()).items():
            if count >= group.max_per_host:
                self._full_s[group.id, host] = self._findings.now_s

    def _check(self, group: ServerGroup, members: Mapping[ConsumerId, ProviderId]) -> None:
        counts = Counter(members.values())
        if group.policy == "anti-affinity":
            for host, count in counts.items():
                if count > group.max_per_host:
                    self._findings.breaks(
                        "members that are kept apart share no host",
                        f"{self._hosts.name(host)} has {count} members of {short_id(group.id)}, at most {group.max_per_host}: "
                        f"{sorted(short_id(who) for who, where in members.items() if where == host)}",
                    )
            if len(members) > 1:
                self._findings.count(GROUP, "kept apart")
        if group.policy == "affinity" and len(members) > 1:
            self._findings.count(GROUP, "kept together")

    def _check_affinity(
        self,
        order: ClaimResources | SwapClaim,
        orders: Iterable[ClaimOrder],
        placed_on: Mapping[ConsumerId, ProviderId],
    ) -> None:
        """The way back is not judged: a member may come to be alone by it, also in the same batch, where the move before it has the same
        number of attempt, so that nobody knows here which of the two was granted.
        """
        came_back = {each.consumer for each in orders if _is_way_back(each)}
        if order.group is None or order.group.policy != "affinity" or order.consumer in came_back:
            return
        leaves = order.leaves if isinstance(order, SwapClaim) else ()
        there = {
            placed_on[who]
            for who, group in self._group_of.items()
            if group == order.group.id and who in placed_on and who not in (*self._apart, *came_back)
        }
        host = placed_on.get(order.consumer)
        if host is not None and there - {host, *leaves}:
            self._findings.breaks(
                "members that are kept together have one host",
                f"{short_id(order.consumer)} came to {self._hosts.name(host)}, and the members of {short_id(order.group.id)} "
                f"are on {sorted(map(self._hosts.name, there))}",
            )
        if leaves:
            self._findings.count(GROUP, "leaves with others")

    def refused(self, order: object, refusal: object) -> None:
        """Placement's verdict on a claim or a swap."""
        if (
            isinstance(order, SwapClaim)
            and isinstance(refusal, GroupRefused)
            and refusal.policy == "affinity"
            and refusal.host in order.leaves
        ):
            self._findings.breaks(
                "members that leave their host keep nobody there",
                f"{short_id(order.consumer)} may not leave because of {sorted(map(short_id, refusal.members))}",
            )

    def split(self) -> list[Collection[ConsumerId]]:
        """The members of each affinity group that are on several hosts now."""
        found: list[Collection[ConsumerId]] = []
        for group, members in self._members.items():
            there = {who: host for who, host in members.items() if who not in self._apart}
            if self._groups[group].policy == "affinity" and len({*there.values()}) > 1:
                found.append(there.keys())
        return found


def _is_way_back(order: ClaimOrder) -> bool:
    return isinstance(order, SwapClaim) and order.returns is not None


QUOTA = "quota"
Held = Mapping[ConsumerId, Sequence[ResourceAmount]]


class QuotasChecker:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._limits: dict[str, int] = {}
        # What each consumer of the project counts: an instance what it holds, a migration what its instance gave up.
        self._counts: dict[ConsumerId, Counter[str]] = {}
        self._of_project: set[ConsumerId] = set()
        self._total = Counter[str]()

    def limits_written(self, written: Sequence[Quota]) -> None:
        for quota in written:
            if quota.project == PROJECT:
                if any(self._total[name] > limit for name, limit in quota.limits.items()):
                    self._findings.count(QUOTA, "a limit below what is used")
                self._limits = dict(quota.limits)
                self._findings.count(QUOTA, "set" if quota.limits else "removed")

    def committed(
        self,
        orders: Sequence[ClaimOrder],
        granted: Collection[tuple[ConsumerId, int]],
        before: Held,
        held: Held,
    ) -> None:
        """`before` has what the consumers held whose holdings changed, and `held` what all hold now."""
        changed = {*before, *(order.consumer for order in orders)}
        comes_back = False
        for order in granted_of(orders, granted):
            if isinstance(order, ClaimResources):
                if order.project == PROJECT and order.consumer_type == "INSTANCE":
                    self._of_project.add(order.consumer)
                elif order.consumer not in self._counts:
                    # Long after its end, its id is used again for a claim of somebody else.
                    self._of_project.discard(order.consumer)
            elif order.consumer in self._of_project:
                comes_back |= order.returns is not None
                self._note_heir(order, held)
        was = Counter(self._total)
        for consumer in changed:
            self._recount(consumer, held)
        self._check(was, is_way_back=comes_back)

    def _note_heir(self, order: SwapClaim, held: Held) -> None:
        heir = order.heir
        # The order may have come before: in an earlier batch, or in this one.
        if heir is None or heir.type != "MIGRATION" or heir.id not in held or heir.id in self._counts:
            return
        smaller = self._counts.get(order.consumer, Counter[str]()) - of_classes(order.share.amounts)
        del smaller[INSTANCES]
        if smaller:
            self._findings.count(QUOTA, "a smaller instance counts its old size")
        self._total += smaller
        self._counts[heir.id] = smaller

    def _recount(self, consumer: ConsumerId, held: Held) -> None:
        now = held.get(consumer)
        if consumer not in self._of_project:
            # A migration counts the same until it holds nothing.
            counts = self._counts[consumer] if now and consumer in self._counts else Counter[str]()
        else:
            counts = of_classes(now) + Counter({INSTANCES: 1}) if now else Counter[str]()
        self._total.subtract(self._counts.pop(consumer, Counter[str]()))
        self._total.update(counts)
        if counts:
            self._counts[consumer] = counts

    def _check(self, was: Mapping[str, int], *, is_way_back: bool) -> None:
        for name, limit in self._limits.items():
            now = self._total[name]
            if was[name] < now <= limit:
                self._findings.count(QUOTA, "grown below the limit")
            if now > limit and now > was[name]:
                if is_way_back:
                    self._findings.count(QUOTA, "exceeded by a way back")
                    continue
                self._findings.breaks(
                    "no commit brings a project over its quota",
                    f"project {PROJECT} has {now} of {name}, before {was[name]}, at most {limit}",
                )


# Counted events.
FLAVOR = "flavor"
NAMES = ("large", "medium", "small")
# Choices of other batches that placement has not answered yet may hide so many hosts from a scheduler.
HIDDEN_MAX = 2
# Longer than any pause of a scheduler that tries what waits, when nothing fails any more.
WOKEN_WITHIN_S = 5.0


class _Size(Struct, frozen=True):
    amounts: Mapping[str, int]
    traits: frozenset[str]


class FlavorsChecker:
    def __init__(self, findings: Findings, hosts: HostHistories, plan: Plan) -> None:
        self._findings = findings
        self._hosts = hosts
        self._boots = {RequestId(boot.id): boot for boot in plan.boots if boot.alternatives}
        self._accepted_s: dict[InstanceId, float] = {}

    def written(self, rows: Iterable[InstanceRow], before: Mapping[InstanceId, InstanceRow]) -> None:
        """Called before `before` has these rows."""
        for row in rows:
            boot = self._boots.get(row.told.request_id)
            if boot is None:
                continue
            was, now = before.get(row.id), row.told.state
            if now == "accepted":
                self._accepted_s.setdefault(row.id, self._findings.now_s)
            if was is not None and was.told.flavor not in (None, row.told.flavor):
                self._findings.count(FLAVOR, "taken by the cell")
            if was is not None and was.told.state == now:
                continue
            if now == "placed" and row.order is not None:
                self._check_placed(
                    boot, row, row.order, waited=was is not None and was.told.state == "waiting"
                )
            elif now == "error" and row.told.no_valid_host is not None:
                self._check_better(boot, row, len(NAMES), hidden=0, since_s=self._since_s(row, waited=False))

    def _check_placed(self, boot: Boot, row: InstanceRow, order: PlaceInCell, *, waited: bool) -> None:
        name = order.flavor.name
        number = NAMES.index(name)
        self._findings.count(FLAVOR, f"{name}, after it waited" if waited else name)
        passed_over = tuple(each.flavor for each in row.told.passed_over)
        if row.told.flavor != order.flavor or passed_over != NAMES[:number]:
            self._findings.breaks(
                "an instance has the flavor that its state tells",
                f"{row.told.name} ({short_id(row.id)}) is ordered as {name}, and told as {row.told.flavor} after {passed_over}",
            )
        for each in (order.chosen, *order.alternates):
            flavor = order.other_flavors.get(each.share.host, order.flavor)
            if flavor != order.flavor:
                self._findings.count(FLAVOR, "an alternate with another one")
            self._check_share(boot, row, each, flavor)
        for passed in row.told.passed_over:
            funnel = passed.no_valid_host
            if funnel is not None and sum(step.removed for step in funnel.steps) != funnel.hosts:
                self._findings.breaks(
                    "every no has its reasons", f"{row.told.name}: {passed.flavor} of {funnel!r}"
                )
        self._check_better(boot, row, number, hidden=HIDDEN_MAX, since_s=self._since_s(row, waited=waited))

    def _check_share(self, boot: Boot, row: InstanceRow, choice: Choice, flavor: Flavor) -> None:
        share = of_classes(choice.share.amounts)
        if share != size_of(boot, NAMES.index(flavor.name)).amounts:
            self._findings.breaks(
                "a share has the amounts of its flavor",
                f"{row.told.name} ({short_id(row.id)}) as {flavor.name} takes {dict(share)} of {choice.name}",
            )

    def _check_better(
        self, boot: Boot, row: InstanceRow, number: int, *, hidden: int, since_s: float
    ) -> None:
        """Check that hosts did not have room for any flavor better than the one with this number during the whole time
        since `since_s`, except for so many that a scheduler may not have seen.
        """
        for better, passed in enumerate(NAMES[:number]):
            told = row.told.passed_over[better] if better < len(row.told.passed_over) else None
            if told is not None and ("claims were refused" in told.reason or "holds" in told.reason):
                continue
            size = size_of(boot, better)
            fitting = self._hosts.fitting(dict(size.amounts), size.traits, (), since_s, BUS.host_down_s)
            if len(fitting) > hidden:
                got = NAMES[number] if number < len(NAMES) else "nothing"
                self._findings.breaks(
                    "a worse flavor is given only if no better one fits",
                    f"{row.told.name} ({short_id(row.id)}) got {got}, although {fitting} had room for {passed} all the time",
                )

    def _since_s(self, row: InstanceRow, *, waited: bool) -> float:
        now_s = self._findings.now_s
        since_s = self._accepted_s.get(row.id, now_s)
        # It may have had no room at first; but it is tried soon after a host has room.
        return max(since_s, now_s - WOKEN_WITHIN_S) if waited else since_s


def size_of(boot: Boot, number: int) -> _Size:
    """The needs of the flavor with this number, the best one first."""
    vcpus, ram_mb = ((boot.vcpus, boot.ram_mb), *boot.alternatives)[number]
    traits = frozenset({GOLD}) if boot.needs_gold and not number else frozenset[str]()
    return _Size({"VCPU": vcpus, "MEMORY_MB": ram_mb, "DISK_GB": 1}, traits)
