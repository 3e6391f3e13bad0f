"""What the picture knows beside its columns: the members of server groups and of aggregates, the hosts that changed while an
instance waits, which hosts share providers, and the order of equal hosts.

Members of server groups are those that placement told of, and this scheduler's own choices that are not answered yet.

Each membership is one attempt of a consumer on one host. A later attempt of a consumer replaces an earlier one, and news of
its end counts for all attempts up to that one. So news may come in any order, and more than once.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.candidates.columns import Flags, Ints, Rows, Words, longer
from engine.candidates.provider_index import ProviderIndex
from engine.hosts import MULTIPLIER, TENANTS, TRAIT, ZONE, Aggregate, least_of, value_of
from engine.inventories import AggregateId, ConsumerId, GroupId, GroupMember, Holder, ProviderId
from engine.picture.columns import Codes, PictureColumns

# Late news of a consumer arrive within seconds; so many ended ones are remembered.
LEFT_MAX = 100_000


class GroupMembers:
    """The members of all server groups, by group."""

    def __init__(self, member_left: Callable[[GroupId], None] = lambda _: None) -> None:
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
            if (member := self.held.pop((consumer, attempt), None)) is not None:
                self._member_left(member.group)

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
        self._member_left(member.group)
        of_group = self._by_group[member.group]
        del of_group[consumer]
        if not of_group:
            del self._by_group[member.group]


# The metadata of aggregates, and answers that follow from it for each set of aggregates.
#
# Many hosts are in the same aggregates. So a host's column has the code of its set, a question about metadata is decided
# once for each set, and the answer of a host is looked up by its code. Answers are kept until some metadata changes.


# It gets a set of aggregates, and what is asked.
Judge = Callable[..., Any]
# Each answer has an entry for each set; requests of many projects ask many questions.
ANSWERS_MAX = 1_000


class HostAggregates:
    """The aggregates that the picture knows, and the sets of them that hosts are in. `keys` are the metadata keys of
    all aggregates, so a plugin whose key is not among them need not ask.
    """

    def __init__(self) -> None:
        self._sets = Codes[tuple[AggregateId, ...]]()
        self._sets.code(())
        self._known: dict[AggregateId, Aggregate] = {}
        # By the code of the set, as far as they were asked for since the last change.
        self._members: list[tuple[Aggregate, ...]] = []
        self._answers: dict[Hashable, NDArray[Any]] = {}
        self._read_keys()

    def code_of(self, aggregates: Sequence[AggregateId]) -> int:
        """The code of the set of these aggregates, 0 for none."""
        return self._sets.code(tuple(sorted(aggregates))) if aggregates else 0

    def put(self, aggregates: Iterable[Aggregate]) -> set[AggregateId]:
        """Merge these aggregates; an older state changes nothing. Returns the ids of those that changed."""
        news = [
            each
            for each in aggregates
            if (known := self._known.get(each.id)) is None or known.sequence < each.sequence
        ]
        self._known |= {each.id: each for each in news}
        return self._changed({each.id for each in news})

    def remove(self, deleted: Aggregate) -> set[AggregateId]:
        known = self._known.get(deleted.id)
        if known is None or known.sequence > deleted.sequence:
            return set()
        del self._known[deleted.id]
        return self._changed({deleted.id})

    def all(self) -> list[Aggregate]:
        return sorted(self._known.values(), key=lambda each: each.name)

    def of_set(self, code: int) -> tuple[Aggregate, ...]:
        """The aggregates of a set that have metadata."""
        for number in range(len(self._members), len(self._sets.names)):
            ids = self._sets.names[number]
            self._members.append(tuple(self._known[each] for each in ids if each in self._known))
        return self._members[code]

    def sets_with(self, aggregates: set[AggregateId]) -> list[int]:
        """The codes of the sets that contain one of these aggregates."""
        return [code for code, ids in enumerate(self._sets.names) if not aggregates.isdisjoint(ids)]

    def ids_of_set(self, code: int) -> tuple[AggregateId, ...]:
        return self._sets.names[code]

    def zone_of_set(self, code: int) -> str:
        """The zone of the hosts in these aggregates; empty if none names one.

        A scheduler refuses an order by which a host would be in two zones. If a write to placement does this all the
        same, every scheduler takes the zone of the aggregate whose name is first.
        """
        return value_of(ZONE, self.of_set(code)) if code else ""

    def answers(self, judge: Judge, *asked: Hashable) -> NDArray[Any]:
        """Ask the function `judge` about each set of aggregates, and about what is `asked`. Returns its answers as an array
        in which a set's code is the index.

        The answers are cached by the function and its arguments. So it must be a function of a module, or a method.
        """
        question = judge, asked
        known = self._answers.get(question)
        if known is None or len(known) < len(self._sets.names):
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            sets = range(len(self._sets.names))
            known = self._answers[question] = np.array([judge(self.of_set(code), *asked) for code in sets])
        return known

    def numbers(self, key: str, otherwise: float) -> NDArray[Any]:
        """For each set of aggregates that some host is in: the number that they have in their metadata under this key, the
        lowest if several have one, `otherwise` if none has. If the key is not among `keys`, nobody need ask.
        """
        return self.answers(least_of, key, otherwise)

    def _changed(self, aggregates: set[AggregateId]) -> set[AggregateId]:
        if aggregates:
            self._read_keys()
            self._members.clear()
            self._answers.clear()
        return aggregates

    def _read_keys(self) -> None:
        self.keys = frozenset(key for each in self._known.values() for key in each.metadata)
        # Is any aggregate for some projects only?
        self.name_tenants = any(key.startswith(TENANTS) for key in self.keys)
        # The traits that a request must require to get into some aggregate.
        self.isolating_traits = frozenset(
            key.removeprefix(TRAIT) for key in self.keys if key.startswith(TRAIT)
        )
        # Does any aggregate change how much a weigher counts?
        self.has_multipliers = any(key.endswith(MULTIPLIER) for key in self.keys)


# The hosts that changed so that they may have room where they had none: more is free, or other facts are known.
#
# Nothing is recorded while no instance waits for room. A host that only took something is not recorded either.


class TouchedHosts:
    """Hosts by their rows in the picture. `everything`: a change that may concern any host. A member that left one of the
    `groups` may leave room to others of the group on any host.
    """

    def __init__(self) -> None:
        self.is_watched = False
        self.rows: set[int] = set()
        self.groups: set[GroupId] = set()
        self.everything = False
        self._tell: Callable[[], None] = lambda: None

    def tell(self, listener: Callable[[], None]) -> None:
        """Set the listener that is called after each recorded change."""
        self._tell = listener

    def watch(self, *, watches: bool) -> None:
        """Begin to record changes, or stop. The changes recorded so far are forgotten."""
        self.is_watched = watches
        self.take()

    def add(self, rows: Iterable[int]) -> None:
        if self.is_watched:
            before = len(self.rows)
            self.rows.update(row for row in rows if row >= 0)
            if len(self.rows) > before:
                self._tell()

    def add_all(self) -> None:
        if self.is_watched and not self.everything:
            self.everything = True
            self._tell()

    def add_group(self, group: GroupId) -> None:
        if self.is_watched and group not in self.groups:
            self.groups.add(group)
            self._tell()

    def take(self) -> tuple[set[int] | None, set[GroupId]]:
        """The rows that are recorded, or None if any host may have changed; and the groups. All are then forgotten."""
        taken = None if self.everything else self.rows, self.groups
        self.rows, self.groups, self.everything = set(), set(), False
        return taken


# Which hosts may take from which sharing providers. It changes only when a tree, a cell or an aggregate's members do.


class Sharing(NamedTuple):
    """Which hosts may take from which pools. `is_shared_with` has a flag for each host: does any pool share with its
    tree? `users` has the rows of the hosts that may take from each pool, by the pool's row in the provider index. Hosts
    take from no pool of another cell.
    """

    is_shared_with: Flags
    users: dict[int, Rows]


def sharing_of(columns: PictureColumns, index: ProviderIndex) -> Sharing:
    index.attach_trees()
    sharing = Sharing(np.zeros(columns.rows, dtype=np.bool_), {})
    if not index.sharing:
        return sharing
    roots = columns.root[: columns.rows]
    hosts = np.flatnonzero(columns.present[: columns.rows] & (roots >= 0))
    host_of = np.full(index.rows, -1, dtype=np.intp)
    host_of[roots[hosts]] = hosts
    for pool in sorted(index.sharing):
        reached = np.unique(host_of[index.reached_from(pool)])
        reached = reached[reached >= 0]
        sharing.is_shared_with[reached] = True
        if cell := index.state(pool).cell:
            reached = reached[np.equal(columns.cell[reached], columns.cells.find(cell))]
        sharing.users[pool] = reached
    return sharing


# The order of hosts that are equally good. It follows from the hosts and a salt: each worker prefers other hosts.


_WORD = 2**64 - 1


class HostPreferences(NamedTuple):
    """A number of 32 bits for each row, higher is preferred; and the rows in this order."""

    values: Ints
    order: Rows


def preferences_of(hosts: Sequence[ProviderId], salt: int) -> HostPreferences:
    values = _values_of(hosts, salt)
    return HostPreferences(values, (-values).argsort(kind="stable"))


def with_new_hosts(
    known: HostPreferences, hosts: Sequence[ProviderId], rows: Sequence[int], salt: int
) -> HostPreferences:
    """The preferences of all these hosts, if those in `rows` are new and the others are known."""
    values = longer(known.values, len(hosts))
    new = np.unique(np.array(rows, dtype=np.intp))
    values[new] = _values_of([hosts[row] for row in new.tolist()], salt)
    new = new[(-values[new]).argsort(kind="stable")]
    at = np.searchsorted(-known.values, -values[new], side="right", sorter=known.order)
    order = np.insert(known.order, at, new)
    if new.min() < len(known.values):
        # It has the row of a host that is gone.
        order = order[np.insert(~np.isin(known.order, new), at, True)]
    return HostPreferences(values, order)


def _values_of(hosts: Sequence[ProviderId], salt: int) -> Ints:
    ids = [(host.int ^ host.int >> 64) & _WORD for host in hosts]
    return _mixed(np.array(ids, dtype=np.uint64), salt).astype(np.int64)


def _mixed(ids: Words, salt: int) -> Words:
    """Ids mixed so that ids which differ little get very different numbers (the finish of splitmix64)."""
    mixed = ids + np.uint64(salt * 0x9E3779B97F4A7C15 & _WORD)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(32)
