"""Find the providers of a compound host that an instance takes its amounts from, by placement's own search.

A host is compound if its tree has more than a root, or if a provider shares with that tree. The sums in its columns say
how good it is, but not what it can give: two NUMA cells with room for one each have no room for two. So the search for
candidates decides whether it qualifies, and the share of each instance. The choice of a host searches single hosts, the best
first; a refusal, a plan and preferred traits need a search of all trees at once. The search counts as taken what this
scheduler's unanswered choices hold there, and what this batch has chosen so far (its draft).

A request with granular groups is searched on every host: the columns know the sums, and not what one provider gives to
several groups. From the first such request of a batch on, amounts taken on hosts without children are counted by provider, too.

A flavor and a tree may make a search that takes far too long, and the whole batch would wait for it. So a batch has a
budget, in steps: a host whose search is cut is not chosen, and the funnel says so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from math import isnan
from typing import NamedTuple, Protocol

import numpy as np

from engine.candidates.budget import SharedBudget
from engine.candidates.columns import Flags, Floats, Ints, Rows
from engine.candidates.provider_index import ProviderIndex
from engine.candidates.suitable import SearchScope
from engine.candidates.ways import CutInTrees, TreeSearch, TreeWay, ways_of_trees
from engine.inventories import ProviderId, ProviderState
from engine.picture.picture import Picture
from engine.requests.spec import InstanceSpec, Needs, needs_of, query_of

# Sharing providers, as hosts see them: which of them a host may take from, and what they have.


# The free amounts at each provider, without what this scheduler's unanswered choices hold there and what the batch has
# taken.


# The row of a provider in the index, a class, and the amount that an instance takes. A search makes so many of these that
# names for the three would cost too much.
ProviderAmount = tuple[int, str, int]
Parts = Sequence[ProviderAmount]


class ProviderRoom:
    """The free amounts at each provider. The picture is not changed: `taken` counts, by class and provider row, what is
    used beside the usage that the picture has.
    """

    def __init__(self, picture: Picture) -> None:
        self._index = picture.index
        self.taken: dict[str, dict[int, int]] = {}
        # Counts what is taken, so that callers know whether an answer still holds.
        self.changes = 0
        for share in picture.held_on_compound():
            for each in share.amounts:
                row = self._index.row_of(each.provider)
                if row is not None:
                    self.count(row, each.resource, each.amount)

    def free(self, row: int, resource: str) -> int:
        taken = self.taken.get(resource)
        free = self._index.stocks[resource].free.item(row)
        return free - taken.get(row, 0) if taken else free

    def part_left(self, row: int, amounts: Mapping[str, int]) -> float:
        """The part of a provider's capacity that stays free after it has given these amounts: the mean of the classes."""
        stocks, left = self._index.stocks, 0.0
        for resource, amount in amounts.items():
            stock, taken = stocks[resource], self.taken.get(resource)
            free = stock.free.item(row) - amount
            left += (free - taken.get(row, 0) if taken else free) / stock.capacity.item(row)
        return left / len(amounts)

    def free_at(self, provider: ProviderId, resource: str) -> int:
        row = self._index.row_of(provider)
        return 0 if row is None else self.free(row, resource)

    def has(self, parts: Parts) -> bool:
        return all(self.free(row, resource) >= amount for row, resource, amount in parts)

    def take(self, parts: Parts) -> None:
        for row, resource, amount in parts:
            self.count(row, resource, amount)

    def count(self, row: int, resource: str, amount: int) -> None:
        self.changes += 1
        taken = self.taken.setdefault(resource, {})
        taken[row] = taken.get(row, 0) + amount

    def correct(self, provider: ProviderId, resource: str, free: int) -> None:
        """Lower the free amount of a class on this provider to the amount that placement has stated."""
        row = self._index.row_of(provider)
        if row is not None and resource in self._index.stocks:
            more = self.free(row, resource) - free
            if more > 0:
                self.count(row, resource, more)


class CompoundPool(NamedTuple):
    """A sharing provider: what it has of one class, and the rows of the hosts that may take from it."""

    state: ProviderState
    free: int
    capacity: int
    users: Rows


class Pools:
    """The sharing providers in one draft; a host is named by its row in the picture's columns."""

    def __init__(self, picture: Picture, room: ProviderRoom) -> None:
        self._picture = picture
        self._index = picture.index
        self._room = room
        self._barred: dict[int, frozenset[int]] = {}
        self._most_at_first: dict[str, Ints | None] = {}

    def of_class(self, resource: str) -> Iterator[CompoundPool]:
        """The sharing providers with an inventory of a class."""
        index = self._index
        for row, users in self._picture.sharing.users.items():
            state = index.state(row)
            if resource in state.inventories:
                capacity = int(index.stocks[resource].capacity[row])
                yield CompoundPool(state, self._room.free(row, resource), capacity, users)

    def most(self, resource: str) -> Ints | None:
        """For each host the largest free amount of a class at one sharing provider that it may use, -1 without such a
        provider; None if no sharing provider has the class.
        """
        pools = list(self.of_class(resource))
        if not pools:
            return None
        most = np.full(self._picture.columns.rows, -1, dtype=np.int64)
        free = np.array([max(pool.free, 0) for pool in pools], dtype=np.int64)
        users = np.concatenate([pool.users for pool in pools])
        np.maximum.at(most, users, np.repeat(free, [len(pool.users) for pool in pools]))
        return most

    def most_at_first(self, resource: str) -> Ints | None:
        """As `most`, but by what was free when the batch first asked; so it is at least as much as is free now."""
        if resource not in self._most_at_first:
            self._most_at_first[resource] = self.most(resource)
        return self._most_at_first[resource]

    @cached_property
    def traits(self) -> frozenset[str]:
        index = self._index
        return frozenset(trait for row in index.sharing for trait in index.state(row).traits)

    def barred_in(self, cell: int) -> frozenset[int]:
        """Sharing providers of other cells, which hosts of this cell may not use: no claim may take from two cells."""
        barred = self._barred.get(cell)
        if barred is None:
            index, name = self._index, self._picture.columns.cells.names[cell]
            barred = frozenset(row for row in index.sharing if index.state(row).cell not in ("", name))
            self._barred[cell] = barred
        return barred

    def providers_for(self, host: int) -> list[ProviderState]:
        """All providers that instances on this host may take from."""
        index, columns = self._index, self._picture.columns
        root = int(columns.root[host])
        if root < 0:
            return []
        barred = self.barred_in(int(columns.cell[host]))
        pools = [row for row in index.pools_of(root) if row not in barred]
        return [index.state(row) for row in (*index.in_trees_of(np.array([root])).tolist(), *pools)]


# The interface of plugins that judge the ways of a host: the providers that an instance could take its amounts from.


class Way:
    """One way to take what an instance needs from the providers of a host. The providers have the numbers 0, 1, 2 and
    so on; `amounts` has what each of them gives. A provider that only has to be there gives nothing.
    """

    __slots__ = ("_index", "_room", "_way", "amounts")

    def __init__(self, index: ProviderIndex, room: ProviderRoom, way: TreeWay) -> None:
        self.amounts = way.pattern.amounts
        self._way = way
        self._index = index
        self._room = room

    @property
    def groups(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the providers that serve each granular group, by its suffix; the rest of the request has an
        empty suffix.
        """
        return dict(self._way.pattern.mappings)

    def free(self, provider: int, resource: str) -> int:
        """The free amount of a class, before the instance takes its own."""
        return self._room.free(self._way.rows[provider], resource)

    @property
    def left(self) -> list[float]:
        """Of each provider that gives something, the part of its capacity that stays free afterwards: the mean of the classes."""
        room = self._room
        return [
            room.part_left(row, amounts)
            for row, amounts in zip(self._way.rows, self.amounts, strict=True)
            if amounts
        ]

    def is_under(self, provider: int, other: int) -> bool:
        """Is the first provider the second one, or below it in the host's tree?"""
        return self._index.is_under(self._way.rows[provider], self._way.rows[other])

    def has(self, provider: int, trait: str) -> bool:
        return trait in self._index.state(self._way.rows[provider]).traits


class WayJudge(Protocol):
    """A plugin that values ways to take the needed amounts from a host's providers. It keeps no state."""

    # Does it strike any way? Then refusals and plans ask it about the ways of all hosts, which costs time.
    may_strike: bool

    def reads(self, needs: Needs) -> bool:
        """Does it judge such a request? Only then several ways of a host are searched, which costs time."""

    def judge(self, way: Way, needs: Needs) -> float:
        """The value of a way, higher is better, about -1 to 1; NaN strikes it."""


# A way is better if it takes from few providers, and from those with the least room: large rooms stay whole.
class FewestFragments:
    may_strike = False

    def reads(self, needs: Needs) -> bool:
        """Judge only requests with granular groups: plain requests take the first way, at no cost."""
        return bool(needs.groups)

    def judge(self, way: Way, _needs: Needs) -> float:
        left = way.left
        # One provider fewer counts more than any room that is left.
        return -(len(left) + sum(left) / len(left))


PER_DEVICE = 10.0


# A way is better if devices that a guest prefers near its NUMA cells are near them. This counts before how full providers get.
class NearDevices:
    may_strike = False

    def reads(self, needs: Needs) -> bool:
        return any(nearness == "preferred" for _, nearness in needs.near)

    def judge(self, way: Way, needs: Needs) -> float:
        groups = way.groups
        cells = [provider for suffix in needs.cells for provider in groups[suffix]]
        near = [
            any(way.is_under(device, cell) for device in groups[suffix] for cell in cells)
            for suffix, nearness in needs.near
            if nearness == "preferred"
        ]
        return PER_DEVICE * sum(near)


# About a tenth of a millisecond for each tree in any case, and a tenth of a second for a batch, for trees that need more.
STEPS_PER_TREE = 300
STEPS_PER_BATCH = 500_000
BYTES_PER_TREE = 16 * 1024 * 1024
# How many ways of a host are searched where a plugin judges them.
WAYS_PER_HOST = 8
# The value of a preferred trait with a weight of 1, beside the values that plugins give to ways.
PREFERENCE_FACTOR = 1_000.0


class Verdict(Enum):
    """Why the search found no way on a host."""

    # It was cut, so nobody knows whether the host has room.
    CUT = 1
    # There is room, but not on providers with the traits.
    NO_TRAITS = 2
    NO_ROOM = 3
    # There is room, but plugins allow none of the ways to take it.
    STRUCK = 4


class Found:
    """The result of a search of hosts. `searched` tells which hosts were searched, and `flags` which of them have a way to give what is
    needed. `cut` is the number of steps after which the search of a host was cut, 0 if it was not. `struck` counts the
    ways of a host if plugins allow none of them. `worth` is the value of the preferred traits of each host's best way.
    """

    def __init__(self, hosts: int) -> None:
        self.searched = np.zeros(hosts, dtype=np.bool_)
        self.flags = np.zeros(hosts, dtype=np.bool_)
        self.cut = np.zeros(hosts, dtype=np.int64)
        self.struck = np.zeros(hosts, dtype=np.int64)
        self.worth = np.zeros(hosts)

    def add(self, hosts: Rows, preference: float) -> None:
        """Note that each of these hosts has a way to take the amounts which is worth `preference`."""
        best = np.maximum(self.worth[hosts], preference)
        self.worth[hosts] = np.where(self.flags[hosts], best, preference)
        self.flags[hosts] = True


class Compounds:
    """The compound hosts in one draft; a host is named by its row in the picture's columns."""

    def __init__(self, picture: Picture, judges: Sequence[WayJudge] = ()) -> None:
        self._judges = judges
        self._compound = picture.compound
        # The hosts that are searched for a request with groups: all with a provider, once they are covered.
        self._everyone = self._compound
        self._picture = picture
        self._index = picture.index
        self.room = ProviderRoom(picture)
        self.pools = Pools(picture, self.room)
        self._budget = SharedBudget(STEPS_PER_TREE, STEPS_PER_BATCH, BYTES_PER_TREE)
        self._trees = TreeSearch(picture.index, self.room.taken, self._budget)
        # Valid until an instance takes something.
        self._found: dict[Needs, Found] = {}
        self._worth: dict[Needs, Floats] = {}
        self._full: dict[Needs, list[int]] = {}

    def cover_everyone(self, free: Callable[[str], Ints | None]) -> None:
        """From now on, requests with granular groups search every host, not only compound ones. The draft calls this at
        the first such request of a batch.

        `free` gives the free amounts of a class in the draft. Hosts that are not compound were decided by their columns
        so far: what the draft's choices have taken there is now counted at the root provider.
        """
        columns, index = self._picture.columns, self._index
        roots = columns.root[: columns.rows]
        self._everyone = columns.present[: columns.rows] & (roots >= 0)
        flat = np.flatnonzero(self._everyone & ~self._compound)
        for resource, stock in index.stocks.items():
            left = free(resource)
            if left is not None:
                less = stock.free[roots[flat]] - left[flat]
                for at in np.flatnonzero(less).tolist():
                    self.room.count(int(roots[flat[at]]), resource, int(less[at]))

    def take(self, parts: Parts) -> None:
        self.room.take(parts)
        self._found.clear()

    def take_by_columns(self, rows: Rows, times: Ints, amounts: Mapping[str, int]) -> None:
        """Count the amounts of instances that were placed by the hosts' columns alone, without a search of providers."""
        if not len(rows):
            return
        for row, count in zip(rows.tolist(), times.tolist(), strict=True):
            if self._everyone[row] and not self._compound[row]:
                root = int(self._picture.columns.root[row])
                for resource, amount in amounts.items():
                    self.room.count(root, resource, count * amount)
        self._found.clear()

    def flags(self, *, has_groups: bool) -> Flags:
        """The hosts whose providers must be searched, for needs with or without granular groups."""
        return self._everyone if has_groups else self._compound

    # One host after another

    def search(self, needs: Needs) -> Callable[[int], list[Parts]]:
        """A function that searches one host, and returns its ways to give what is needed, best first. It may be called
        again after more was taken.
        """
        judges = [judge for judge in self._judges if judge.reads(needs)]
        ways_of = self._trees.ways_of(query_of(needs), WAYS_PER_HOST if judges else 1)

        def ways(host: int) -> list[Parts]:
            found = self._judged(judges, needs, self._in_tree_of(host, ways_of))
            if not found:
                self._full.setdefault(needs, []).append(host)
            return [_parts_of(way) for way in found]

        return ways

    def can_give(self, needs: Needs, host: int) -> bool:
        """Can the host's own providers, or the pools that share with them, give what is needed? Yes also if the pools alone give
        all of it.
        """
        return bool(self._in_tree_of(host, self._trees.ways_of(query_of(needs), 1, pools_may_suffice=True)))

    def known_full(self, needs: Needs) -> Sequence[int]:
        """The hosts that were searched in this batch and had no way. They stay full, since in a batch what is free only
        becomes less.
        """
        return self._full.get(needs, ()) if self._full else ()

    def _in_tree_of(
        self, host: int, ways_of: Callable[[int, frozenset[int]], list[TreeWay]]
    ) -> list[TreeWay]:
        columns = self._picture.columns
        root = int(columns.root[host])
        return [] if root < 0 else ways_of(root, self.pools.barred_in(int(columns.cell[host])))

    def _judged(
        self, judges: Sequence[WayJudge], needs: Needs, found: Sequence[TreeWay]
    ) -> Sequence[TreeWay]:
        """The ways that no plugin strikes, best first. Preferred traits count before what plugins say."""
        if not judges:
            return found
        values = [PREFERENCE_FACTOR * way.preference + self._value(judges, needs, way) for way in found]
        allowed = [number for number, value in enumerate(values) if not isnan(value)]
        return [found[number] for number in sorted(allowed, key=lambda number: -values[number])]

    def _value(self, judges: Sequence[WayJudge], needs: Needs, way: TreeWay) -> float:
        judged = Way(self._index, self.room, way)
        return sum([judge.judge(judged, needs) for judge in judges])

    # Many hosts at once

    def found(self, needs: Needs, among: Flags | None = None) -> Found:
        """The result of the search of all hosts that must be searched, or of those among these hosts."""
        found = self._found.get(needs)
        if found is None:
            found = self._found[needs] = Found(self._picture.columns.rows)
        left = self.flags(has_groups=bool(needs.groups)) & ~found.searched
        if among is not None:
            left &= among
        if left.any():
            self._search_all(needs, left, found)
        return found

    def able(self, needs: Needs, among: Flags) -> Flags:
        """Those of these hosts that can give what is needed. A host that need not be searched passes."""
        to_search = self.flags(has_groups=bool(needs.groups))
        return among & (self.found(needs, among).flags | ~to_search)

    def against(self, needs: Needs) -> Ints:
        """For each host the number of the verdict that the search gives; 0 if it says nothing against the host."""
        found = self.found(needs)
        lost = found.searched & ~found.flags
        room = self.found(needs.of_room_alone(), lost)
        has_room = room.flags | (room.cut > 0) | (room.struck > 0)
        verdicts = np.where(has_room, Verdict.NO_TRAITS.value, Verdict.NO_ROOM.value)
        verdicts[found.struck > 0] = Verdict.STRUCK.value
        verdicts[found.cut > 0] = Verdict.CUT.value
        return np.where(lost, verdicts, 0)

    def worth(self, needs: Needs) -> Floats:
        """The value of preferred traits for each host that is searched, as of the first search of the batch."""
        worth = self._worth.get(needs)
        if worth is None:
            worth = self._worth[needs] = self.found(needs).worth
        return worth

    def _search_all(self, needs: Needs, among: Flags, found: Found) -> None:
        columns, query = self._picture.columns, query_of(needs)
        found.searched |= among
        hosts = np.flatnonzero(among & (columns.root[: columns.rows] >= 0))
        host_of = np.zeros(self._index.rows, dtype=np.intp)
        host_of[columns.root[hosts]] = hosts
        judges = [judge for judge in self._judges if judge.reads(needs)]
        striking = [judge for judge in judges if judge.may_strike]
        # Any way will do, unless some are struck, or worth more than others.
        ways = WAYS_PER_HOST if striking or (judges and needs.prefers_some) else 1
        for barred, roots in self._by_pools(hosts):
            flags = np.zeros(self._index.rows, dtype=np.bool_)
            flags[roots] = True
            scope = SearchScope(flags, barred, self.room.taken)
            for trees in ways_of_trees(self._index, query, scope, self._budget, ways=ways):
                at = host_of[trees.roots]
                if isinstance(trees, CutInTrees):
                    found.cut[at] = trees.steps
                    continue
                if striking:
                    pattern, preference = trees.block.pattern, trees.block.preference
                    lines = [TreeWay(pattern, tuple(line), preference) for line in trees.block.rows.tolist()]
                    struck = np.array([isnan(self._value(striking, needs, way)) for way in lines])
                    found.struck[at[struck]] += 1
                    at = at[~struck]
                found.add(at, trees.block.preference)
        found.struck[found.flags] = 0

    def _by_pools(self, hosts: Rows) -> Iterator[tuple[frozenset[int], Rows]]:
        """Yields the roots of these hosts in groups, each with the pools of other cells, which the hosts of the group
        may not use. The trees of a group are searched together.
        """
        columns = self._picture.columns
        if not self._index.sharing:
            yield frozenset(), columns.root[hosts]
            return
        cells = columns.cell[hosts]
        parts: dict[frozenset[int], list[int]] = {}
        for cell in dict.fromkeys(cells.tolist()):
            parts.setdefault(self.pools.barred_in(cell), []).append(cell)
        for barred, same in parts.items():
            yield barred, columns.root[hosts if len(parts) == 1 else hosts[np.isin(cells, same)]]


class CompoundFill:
    """Puts the instances of one spec on compound hosts. A host is searched when an instance takes it. The ways that are
    found are used as long as one of them has room; then the host is searched again.
    """

    def __init__(self, compounds: Compounds, spec: InstanceSpec) -> None:
        needs = needs_of(spec)
        self.flags = compounds.flags(has_groups=bool(needs.groups))
        self._compounds = compounds
        self._search = compounds.search(needs)
        # By host: its ways, and after how many changes of the room they had room.
        self._found: dict[int, tuple[Sequence[Parts], int]] = {}

    def ways(self, host: int) -> Sequence[Parts]:
        """The ways to take the amounts from the host's providers that have room after all choices, best first."""
        room, known = self._compounds.room, self._found.get(host)
        if known is not None and (not known[0] or known[1] == room.changes):
            return known[0]
        ways = [parts for parts in known[0] if room.has(parts)] if known else ()
        found = ways or self._search(host)
        self._found[host] = found, room.changes
        return found

    def take(self, host: int) -> Parts | None:
        """Take the amounts for one more instance from this host's providers; None if they have no room left."""
        found = self.ways(host)
        if not found:
            return None
        self._compounds.take(found[0])
        return found[0]


def _parts_of(way: TreeWay) -> Parts:
    return tuple(
        [
            (row, resource, amount)
            for row, amounts in zip(way.rows, way.pattern.amounts, strict=True)
            for resource, amount in amounts.items()
        ]
    )
