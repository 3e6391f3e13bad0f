"""The members of server groups: those that placement told of, and this scheduler's own choices that are not answered yet.

Each membership is one attempt of a consumer on one host. A later attempt of a consumer replaces an earlier one, and news of
its end counts for all attempts up to that one. So news may come in any order, and more than once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from bus.message import ConsumerId, GroupId
from bus.messages.placement import GroupMember, Holder

# Late news of a consumer arrive within seconds; so many ended ones are remembered.
LEFT_MAX = 100_000


class GroupMembers:
    """The members of all server groups, by group."""

    def __init__(self, member_left: Callable[[], None] = lambda: None) -> None:
        """`member_left` is called when a group has lost a member, or a member has moved to another host."""
        self._member_left = member_left
        self._members: dict[ConsumerId, GroupMember] = {}
        self._by_group: dict[GroupId, dict[ConsumerId, GroupMember]] = {}
        # The last attempt that ended, of consumers that are members no more.
        self._left: dict[ConsumerId, int] = {}
        # This scheduler's choices that are not answered yet.
        self.held: dict[tuple[ConsumerId, int], GroupMember] = {}

    # From placement

    def join(self, members: Iterable[GroupMember]) -> None:
        for member in members:
            consumer = member.consumer
            known = self._members.get(consumer)
            if self._left.get(consumer, 0) >= member.attempt or (known and known.attempt > member.attempt):
                continue
            self._left.pop(consumer, None)
            self._remove(consumer)
            self._members[consumer] = member
            self._by_group.setdefault(member.group, {})[consumer] = member

    def leave(self, holders: Iterable[Holder]) -> None:
        for holder in holders:
            consumer = holder.consumer
            known = self._members.get(consumer)
            if known is not None and known.attempt > holder.attempt:
                continue
            self._remove(consumer)
            self._left[consumer] = max(holder.attempt, self._left.pop(consumer, 0))
        while len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]

    def attempts(self) -> Mapping[ConsumerId, int]:
        """The attempt of each known member."""
        return {consumer: member.attempt for consumer, member in self._members.items()}

    def left(self) -> Mapping[ConsumerId, int]:
        """The last attempt that ended of each consumer that has left."""
        return dict(self._left)

    def replace(
        self,
        members: Sequence[GroupMember],
        known: Mapping[ConsumerId, int],
        left: Mapping[ConsumerId, int] = MappingProxyType({}),
    ) -> int:
        """Take over the list of all members, which placement has answered. `known` are the attempts, and `left` the ended
        attempts, from before placement was asked. Members that were known then, and are not on the list, have left.
        Attempts only grow, so a later attempt that was known then is false, and so is an end of one that is on the list.
        Returns how many members were missing or different here.
        """
        listed = {member.consumer: member.attempt for member in members}
        over = [
            consumer
            for consumer, attempt in known.items()
            if listed.get(consumer, -1) < attempt
            and (member := self._members.get(consumer)) is not None
            and member.attempt == attempt
        ]
        for consumer, attempt in listed.items():
            if left.get(consumer, 0) >= attempt and self._left.get(consumer) == left[consumer]:
                del self._left[consumer]
        new = [each for each in members if self._members.get(each.consumer) != each]
        for consumer in over:
            self._remove(consumer)
        self.join(new)
        return len(over) + len(new)

    # This scheduler's choices

    def hold(self, member: GroupMember) -> None:
        self.held[member.consumer, member.attempt] = member

    def drop(self, choices: Iterable[tuple[ConsumerId, int]]) -> None:
        for consumer, attempt in choices:
            if self.held.pop((consumer, attempt), None) is not None:
                self._member_left()

    # Questions

    def of_group(self, group: GroupId) -> Sequence[GroupMember]:
        """The members of a group, each once: those that placement has told of, and this scheduler's unanswered choices.
        A member that moves is where it was chosen to go.
        """
        members = self._by_group.get(group, {})
        held = {
            each.consumer: each
            for each in self.held.values()
            if each.group == group
            and ((known := members.get(each.consumer)) is None or known.attempt < each.attempt)
        }
        return [*(each for consumer, each in members.items() if consumer not in held), *held.values()]

    def _remove(self, consumer: ConsumerId) -> None:
        member = self._members.pop(consumer, None)
        if member is None:
            return
        self._member_left()
        of_group = self._by_group[member.group]
        del of_group[consumer]
        if not of_group:
            del self._by_group[member.group]
