"""Quotas of projects and policies of server groups, while one batch is decided: they refuse claims that would fit."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import structs

from bus.messages.books import Done, SetQuota, UnknownClass, WriteVerdict
from engine.inventories import (
    HARD_POLICIES,
    INSTANCES,
    ConsumerId,
    GroupId,
    GroupMember,
    Holder,
    PlaceRule,
    ProviderId,
    ResourceAmount,
    ServerGroup,
    Vocabulary,
    unknown_names,
)
from engine.places import domain_of
from engine.refusals import GroupRefused, NotAllowed, OverLimit, QuotaExceeded
from placement_worker.core.ledger import (
    SHARED,
    BatchDecision,
    Consumer,
    GroupRow,
    Ledger,
    Quota,
    QuotaBook,
)

# The quotas of the projects of one batch, while it is decided: does a claim bring its project over a limit?
#
# Consumers count by their type:
#
#     type of consumer        what it counts
#     MIGRATION               what its instance gave up by the move, beyond its new share: a revert gives that back
#     CLEANUP                 nothing: a host that is silent is no fault of the project
#     INSTANCE                what it holds, and one instance
#     any other               what it holds
#
# So a move counts once: instance and migration together count the larger of both shares, of each class. Only growth is judged,
# by claims and swaps; whatever was written by name counts without being judged. A release, and a consumer that holds nothing
# such as an offloaded instance, count nothing.


Counted = dict[str, int]


def sums_of(held: Iterable[ResourceAmount]) -> Counted:
    sums: Counted = {}
    for each in held:
        sums[each.resource] = sums.get(each.resource, 0) + each.amount
    return sums


def counted(type_: str, kept: Iterable[tuple[str, int]], held: Mapping[str, int]) -> Counted:
    """The amounts by which a consumer counts that holds `held`, by class; empty if it holds nothing."""
    if not held or type_ == "CLEANUP":
        return {}
    if type_ == "MIGRATION":
        return dict(kept)
    return {**held, INSTANCES: 1} if type_ == "INSTANCE" else dict(held)


def given_up(
    before: Iterable[ResourceAmount], after: Iterable[ResourceAmount]
) -> tuple[tuple[str, int], ...]:
    """The part of the amounts before a move that the amounts after it lack, of each class."""
    now = sums_of(after)
    lost = {name: amount - now.get(name, 0) for name, amount in sums_of(before).items()}
    return tuple([(name, amount) for name, amount in sorted(lost.items()) if amount > 0])


class QuotasDraft:
    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self._quotas = quotas
        self._used: dict[str, Counted] = {project: dict(quota.used) for project, quota in quotas.items()}

    def judge(
        self, project: str, type_: str, held: Mapping[str, int], given_back: Mapping[str, int] | None = None
    ) -> QuotaExceeded | None:
        """Why a consumer of this project may not hold these amounts; `given_back` is what it holds now, None if it is new."""
        quota = self._quotas.get(project)
        if quota is None:
            return None
        before = counted(type_, (), given_back or {})
        after = counted(type_, (), held)
        return self.judge_growth(
            project, {name: amount - before.get(name, 0) for name, amount in after.items()}
        )

    def judge_growth(self, project: str, growth: Mapping[str, int]) -> QuotaExceeded | None:
        quota, used = self._quotas.get(project), self._used.get(project, {})
        if quota is None:
            return None
        over = [
            OverLimit(name=name, limit=limit, used=used.get(name, 0), asked=asked)
            for name, limit in sorted(quota.limits.items())
            if (asked := growth.get(name, 0)) > 0 and used.get(name, 0) + asked > limit
        ]
        return QuotaExceeded(project=project, over=tuple(over)) if over else None

    def changed(
        self,
        before: Consumer,
        had: Iterable[ResourceAmount],
        after: Consumer,
        has: Iterable[ResourceAmount],
    ) -> None:
        """Count the consumer as it is after a change of its row, or of what it holds."""
        self._add(before, had, -1)
        self._add(after, has, 1)

    def _add(self, row: Consumer, held: Iterable[ResourceAmount], sign: int) -> None:
        used = self._used.get(row.project)
        if used is None:
            return
        for name, amount in counted(row.type, row.kept, sums_of(held)).items():
            used[name] = used.get(name, 0) + sign * amount

    def changes(self) -> tuple[Quota, ...]:
        """The quotas of which another amount is used now."""
        used = {project: nonzero(amounts) for project, amounts in self._used.items()}
        return tuple(
            [
                structs.replace(quota, used=used[project])
                for project, quota in sorted(self._quotas.items())
                if used[project] != nonzero(quota.used)
            ]
        )


def nonzero(amounts: Mapping[str, int]) -> Counted:
    return {name: amount for name, amount in sorted(amounts.items()) if amount}


# The quotas after a batch of orders to set limits: each order changes only the limits that it names.


# The projects that the batch names, and the resource classes that it limits.
QuotaKeys = tuple[frozenset[str], frozenset[str]]


def keys_of_quotas(orders: Sequence[SetQuota]) -> QuotaKeys:
    classes = {name for order in orders for name in order.limits}
    return frozenset(order.project for order in orders), frozenset(classes - {INSTANCES})


def decide_quotas(
    book: QuotaBook, orders: Sequence[SetQuota], vocabulary: Vocabulary
) -> BatchDecision[WriteVerdict, tuple[Quota, ...]]:
    """Judge each order on the quotas as the earlier ones left them. The changes are the quotas of all projects that the batch
    names: one without limits is to be deleted.
    """
    quotas = dict(book.quotas)
    verdicts: list[WriteVerdict] = []
    for order in orders:
        # A limit of a class that was deleted meanwhile may still be removed.
        named = {name for name, limit in order.limits.items() if name != INSTANCES and limit is not None}
        if unknown := unknown_names(named, vocabulary.classes, book.classes):
            verdicts.append(UnknownClass(names=unknown))
            continue
        quota = quotas[order.project]
        quotas[order.project] = structs.replace(quota, limits=_changed(quota.limits, order.limits))
        verdicts.append(Done())
    return BatchDecision(tuple(verdicts), tuple(quotas.values()))


def _changed(limits: Mapping[str, int], by: Mapping[str, int | None]) -> dict[str, int]:
    merged = {**limits, **by}
    return {name: limit for name, limit in sorted(merged.items()) if limit is not None}


def wrong_quota(quota: Quota, used: Mapping[str, int]) -> str:
    """The sentence of an audit about a quota whose row does not say what its project's consumers use."""
    names = sorted({*quota.used, *used})
    wrong = next(name for name in names if quota.used.get(name, 0) != used.get(name, 0))
    return (
        f"the quota of project {quota.project} counts {quota.used.get(wrong, 0)} of {wrong}, "
        f"but its consumers use {used.get(wrong, 0)}"
    )


# The members of server groups while one batch is decided: on which host is each, and may one more be there?
#
#     anti-affinity         A host has at most `max_per_host` members.
#     affinity              All members are on one host. The first member chooses it.
#     soft policies         They forbid nothing. The scheduler prefers hosts by them.
#
# Rules of a group say the same of the domains of a level (engine/places.py): a domain has at most `max_members`, or one has all. A
# host's domain is that of its place now. A consumer that moves does not count against itself; while it is a member at both ends of
# its move, it counts at both for others. Claims of release 0.1.0 name no rules: those of the group's row are judged.
#
# A member is a consumer that holds something and whose row names the group. The cleanup consumer of a silent host is a
# member, since the instance may still run there. A migration on another host than its instance's is a member, since the
# instance may come back. A release ends the membership. Only claims and swaps are judged by the policy; a consumer that an
# administrator writes counts as a member without being judged.
#
# The first claim of the API level defines its group and says of which project it is; from then on no claim may name another policy
# under the same id. The API level knows whose groups are: if it claims for a second project, the group is shared by all. A
# cell's consumer joins no group of another project, since its members count for everybody. A cell may claim before the API
# level does, as for an instance that was offloaded for so long that the group's row was pruned. That defines the group only
# until the API level does.


# A refusal names so many of the members that stand against it.
NAMED_MAX = 10


def is_judged(group: ServerGroup) -> bool:
    return not group.policies.isdisjoint(HARD_POLICIES)


class GroupsDraft:
    """The server groups that a batch names. `written` are the rows that the batch makes or changes."""

    def __init__(self, ledger: Ledger) -> None:
        self._known = {group: book.row for group, book in ledger.groups.items()}
        # The host of each member.
        self._members = _members(ledger)
        self._places = ledger.places
        self.written: dict[GroupId, GroupRow] = {}
        self.joined: list[GroupMember] = []
        self.left: list[Holder] = []

    def judge(
        self,
        group: ServerGroup,
        host: ProviderId,
        leaving: Collection[ConsumerId],
        leaves: Collection[ProviderId] = (),
    ) -> GroupRefused | None:
        """Why a consumer may not live on this host as a member of the group. The members in `leaving` do not count;
        nor, in an affinity group, do those on the hosts that it `leaves`.
        """
        others = [
            (other, there) for other, there in self._members.get(group.id, {}).items() if other not in leaving
        ]
        if group.policy == "anti-affinity":
            against = [(other, there) for other, there in others if there == host]
            return _refused(group, against) if len(against) >= group.max_per_host else None
        if group.policy == "affinity":
            against = [(other, there) for other, there in others if there not in (host, *leaves)]
            return _refused(group, against) if against else None
        return None

    def judge_rules(
        self,
        group: ServerGroup,
        host: ProviderId,
        leaving: Collection[ConsumerId],
        leaves: Collection[ProviderId] = (),
    ) -> GroupRefused | None:
        """Why a consumer may not live in the domains of this host as a member of the group, as `judge` does for the host itself."""
        known, rules = self._known.get(group.id), group.hard_rules
        if known is not None and known.definition.rules:
            rules = known.definition.hard_rules
        members = self._members.get(group.id, {}) if rules else {}
        others = [(other, there) for other, there in members.items() if other not in leaving]
        for rule in rules:
            domain = self._domain(host, rule)
            if not domain:
                return GroupRefused(
                    group=group.id, policy=rule.policy, host=host, members=(), count=0, rule=rule
                )
            inside = [each for each in others if self._domain(each[1], rule) == domain]
            if rule.policy == "anti-affinity":
                against = inside if len(inside) >= rule.max_members else []
            else:
                stay = [each for each in others if each[1] not in leaves]
                against = [each for each in stay if each not in inside]
            if against:
                where = domain if rule.policy == "anti-affinity" else self._domain(min(against)[1], rule)
                return _refused(group, against, rule, where)
        return None

    def _domain(self, host: ProviderId, rule: PlaceRule) -> str:
        return domain_of(self._places.get(host, ""), rule.level)

    def judge_joining(self, group: ServerGroup, project: str, *, by_cell: bool) -> NotAllowed | None:
        """Why no consumer of this project may join the group; `by_cell`: the order comes from a cell."""
        known = self._known.get(group.id)
        if known is None or (known.project is None and not by_cell):
            return None
        if by_cell and known.project not in (None, SHARED, project):
            return NotAllowed(field="group.id", reason=f"server group {group.id} is another project's")
        return self.other_definition(group)

    def joined_by(self, group: ServerGroup, project: str, *, by_cell: bool) -> None:
        """Write the group's row, if this claim says something new of it: the claim of a member was granted."""
        known = self._known.get(group.id)
        new_rules = known is not None and bool(group.rules) and not known.definition.rules
        if known is None:
            row = GroupRow(group, None if by_cell else project)
        elif by_cell or (known.project in (SHARED, project) and not new_rules):
            return
        else:
            # A claim of release 0.1.0 has not told the rules, and does not take them away.
            group = group if group.rules else structs.replace(group, rules=known.definition.rules)
            is_ours = known.project in (None, project)
            row = GroupRow(group, project if is_ours else SHARED)
        self._known[group.id] = self.written[group.id] = row

    def changed(self, before: Consumer, after: Consumer, *, is_alive: bool) -> None:
        """Update the members of server groups after a consumer's row changed from `before` to `after`."""
        if before.group is not None:
            self._members.get(before.group, {}).pop(after.id, None)
        if is_alive and after.group is not None and after.host is not None:
            self._members.setdefault(after.group, {})[after.id] = after.host
            self.joined.append(
                GroupMember(group=after.group, consumer=after.id, attempt=after.attempt, host=after.host)
            )
        elif before.group is not None:
            # The release may be of a later attempt than the one that it ends.
            self.left.append(Holder(consumer=after.id, attempt=max(before.attempt, after.attempt)))

    def other_definition(self, group: ServerGroup) -> NotAllowed | None:
        """The refusal of an order that names this server group with another policy or limit than the one that is stored."""
        row = self._known.get(group.id)
        if row is None or row.definition == group:
            return None
        known = row.definition
        if known.rules and group.rules and known.rules != group.rules:
            return NotAllowed(
                field="group.rules",
                reason=f"server group {group.id} is known with other rules for domains than this claim says",
            )
        if (known.policy, known.max_per_host) == (group.policy, group.max_per_host):
            return None
        if known.policy != group.policy:
            return NotAllowed(
                field="group.policy",
                reason=f"server group {group.id} is known as {known.policy!r}, and this claim says {group.policy!r}",
            )
        return NotAllowed(
            field="group.max_per_host",
            reason=f"server group {group.id} is known with {known.max_per_host}, and this claim says {group.max_per_host}",
        )


def _members(ledger: Ledger) -> dict[GroupId, dict[ConsumerId, ProviderId]]:
    """The members of each group, with their hosts. For a consumer of the batch `ledger.consumers` counts, not
    `GroupBook.members`: the store may have inserted its row as if its claim were granted.
    """
    members = {
        group: {who: host for who, host in book.members if who.int not in ledger.consumers}
        for group, book in ledger.groups.items()
    }
    for number, row in ledger.consumers.items():
        if row.group is not None and row.host is not None and ledger.held.get(number):
            members.setdefault(row.group, {})[row.id] = row.host
    return members


def _refused(
    group: ServerGroup,
    against: list[tuple[ConsumerId, ProviderId]],
    rule: PlaceRule | None = None,
    domain: str = "",
) -> GroupRefused:
    # In the order of ids, so that every store names the same ones.
    against.sort()
    host = against[0][1]
    there = [who for who, at in against if rule or at == host]
    return GroupRefused(
        rule=rule,
        domain=domain,
        group=group.id,
        policy=rule.policy if rule else group.policy,
        host=host,
        members=tuple(there[:NAMED_MAX]),
        count=len(there),
        max_per_host=group.max_per_host,
    )
