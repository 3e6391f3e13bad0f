"""The members of server groups while one batch is decided: on which host is each, and may one more be there?

    anti-affinity         A host has at most `max_per_host` members.
    affinity              All members are on one host. The first member chooses it.
    soft policies         They forbid nothing. The scheduler prefers hosts by them.

A member is a consumer that holds something and whose row names the group. The cleanup consumer of a silent host is a
member, since the instance may still run there. A migration on another host than its instance's is a member, since the
instance may come back. A release ends the membership. Only claims and swaps are judged by the policy; a consumer that an
administrator writes counts as a member without being judged.

The first claim of the API level defines its group and says of which project it is; from then on no claim may name another policy
under the same id. The API level knows whose groups are: if it claims for a second project, the group is shared by all. A
cell's consumer joins no group of another project, since its members count for everybody. A cell may claim before the API
level does, as for an instance that was offloaded for so long that the group's row was pruned. That defines the group only
until the API level does.
"""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from bus.message import ConsumerId, GroupId, ProviderId
from bus.messages.placement import GroupMember, GroupRefused, Holder, NotAllowed, ServerGroup
from placement_worker.core.ledger import SHARED, Consumer, GroupRow, Ledger

HARD = ("affinity", "anti-affinity")
# A refusal names so many of the members that stand against it.
NAMED_MAX = 10


class SavedGroups(NamedTuple):
    known: Mapping[GroupId, GroupRow]
    written: Mapping[GroupId, GroupRow]
    members: Mapping[GroupId, Mapping[ConsumerId, ProviderId]]
    joined: int
    left: int


class GroupsDraft:
    """The server groups that a batch names. `written` are the rows that the batch makes or changes."""

    def __init__(self, ledger: Ledger) -> None:
        self._known = {group: book.row for group, book in ledger.groups.items()}
        # The host of each member.
        self._members = _members(ledger)
        self.written: dict[GroupId, GroupRow] = {}
        self.joined: list[GroupMember] = []
        self.left: list[Holder] = []

    def judge(
        self,
        group: ServerGroup,
        host: ProviderId,
        leaving: Collection[ConsumerId],
        beside: AbstractSet[ConsumerId] = frozenset(),
    ) -> GroupRefused | None:
        """Why a consumer may not live on this host as a member of the group. The members in `leaving` do not count, and
        those in `beside` count only on this host.
        """
        others = [
            (other, there)
            for other, there in self._members.get(group.id, {}).items()
            if other not in leaving and (there == host or other not in beside)
        ]
        if group.policy == "anti-affinity":
            against = [(other, there) for other, there in others if there == host]
            return _refused(group, against) if len(against) >= group.max_per_host else None
        if group.policy == "affinity":
            against = [(other, there) for other, there in others if there != host]
            return _refused(group, against) if against else None
        return None

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
        if known is None:
            row = GroupRow(group, None if by_cell else project)
        elif by_cell or known.project in (SHARED, project):
            return
        else:
            row = GroupRow(group, project if known.project is None else SHARED)
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

    def saved(self, groups: AbstractSet[GroupId]) -> SavedGroups:
        """A copy of these groups and their members as they are now, to restore them later."""
        members = {group: dict(self._members.get(group, {})) for group in groups}
        return SavedGroups(dict(self._known), dict(self.written), members, len(self.joined), len(self.left))

    def restore(self, was: SavedGroups) -> None:
        self._known, self.written = dict(was.known), dict(was.written)
        self._members |= {group: dict(members) for group, members in was.members.items()}
        del self.joined[was.joined :]
        del self.left[was.left :]

    def other_definition(self, group: ServerGroup) -> NotAllowed | None:
        """The refusal of an order that names this server group with another policy or limit than the one that is stored."""
        row = self._known.get(group.id)
        if row is None or row.definition == group:
            return None
        known = row.definition
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


def _refused(group: ServerGroup, against: list[tuple[ConsumerId, ProviderId]]) -> GroupRefused:
    # In the order of ids, so that every store names the same ones.
    against.sort()
    host = against[0][1]
    there = [who for who, at in against if at == host]
    return GroupRefused(
        group=group.id,
        policy=group.policy,
        host=host,
        members=tuple(there[:NAMED_MAX]),
        count=len(there),
        max_per_host=group.max_per_host,
    )
