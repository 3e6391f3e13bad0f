"""Follows the members of server groups. At no commit may a group have two members where its policy allows one. If its policy keeps
them together, nobody may go to another host than all others, but for those on hosts that they leave by one order.

It goes by the orders alone: the group that a granted claim or swap names, and the host of its share. The consumer
that cleans up after a silent host stays there as a member. So does a migration, where its instance may come back to.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from bus.messages.placement import ClaimResources, ReleaseClaim, SwapClaim
from engine.inventories import ConsumerId, GroupId, ProviderId, ServerGroup
from engine.refusals import GroupRefused
from placement_worker.core.ledger import ClaimOrder
from tests.simulation.findings import Findings
from tests.simulation.host_history import HostHistories, short_id
from tests.simulation.plan import PROJECT

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
        for order in orders:
            if isinstance(order, ClaimResources | SwapClaim) and (order.consumer, order.attempt) in granted:
                self._check_affinity(order, orders, placed_on)
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
        """The way back is not judged: a member may come to be alone by it, also in the same batch."""
        if order.group is None or order.group.policy != "affinity" or _is_way_back(order):
            return
        came_back = {each.consumer for each in orders if _is_way_back(each)}
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
