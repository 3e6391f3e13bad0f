"""The providers of a compound host that an instance takes its amounts from, found by placement's own search.

A host is compound if its tree has more than a root, or if a provider shares with that tree. The sums in its columns say
how good it is, but not what it can give: two NUMA cells with room for one each have no room for two. So the search for
candidates decides whether it qualifies, and the share of each instance: one candidate for each tree, all trees at once.
The search counts as taken what this scheduler's unanswered choices hold there, and what the draft has chosen.

A request with granular groups is searched on every host: the columns know the sums, and not what one provider gives to
several groups. From the first such request of a batch on, what is taken on hosts without children is counted here, too.

A candidate stays good while there is room for it; a host without room is searched again, alone.

A flavor and a tree may make a search that takes far too long, and the whole batch would wait for it. So a batch has a
budget, in steps: a host whose search is cut is not chosen, and the funnel says so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bus.message import ProviderId
from bus.messages.placement import ProviderState
from placement_worker.core.candidates.budget import SharedBudget
from placement_worker.core.candidates.columns import Flags, Floats, Ints, Rows
from placement_worker.core.candidates.fitting import Scope
from placement_worker.core.candidates.found import Block
from placement_worker.core.candidates.search import CutInTrees, find_ways_in_each_tree
from scheduler_worker.core.choosing.needs import Needs, needs_of, query_of
from scheduler_worker.core.choosing.ways.judge import WayJudge, Ways
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec

# About a tenth of a millisecond for each tree in any case, and a tenth of a second for a batch, for trees that need more.
STEPS_PER_TREE = 300
STEPS_PER_BATCH = 500_000
BYTES_PER_TREE = 16 * 1024 * 1024
# How many ways of a host are searched where a plugin judges them.
WAYS_PER_HOST = 8
# The value of a preferred trait with a weight of 1, beside the values that plugins give to ways.
PREFERENCE_FACTOR = 1_000.0


class ProviderAmount(NamedTuple):
    """The amount of one class that an instance takes from one provider. `row` is the provider's row in the index."""

    row: int
    resource: str
    amount: int


class FreeAtProvider(NamedTuple):
    """A provider that a host's instances may take from, and the free amount of one class there."""

    state: ProviderState
    free: int


class Pool(NamedTuple):
    """A sharing provider: what it has of one class, and which hosts may take from it."""

    state: ProviderState
    free: int
    capacity: int
    users: Flags


class Candidates:
    """The candidates of each host, best first: its ways to give what is needed. `flags` tells which hosts have any. `cut` is
    the number of steps after which the search of a host was cut, 0 if it was not. `struck` counts the ways that plugins
    do not allow.
    """

    def __init__(self, hosts: int, ways: int = 1) -> None:
        self.flags = np.zeros(hosts, dtype=np.bool_)
        self.cut = np.zeros(hosts, dtype=np.int64)
        self.struck = np.zeros(hosts, dtype=np.int64)
        self.some_are_struck = False
        # The value of the preferred traits that each host's best candidate meets.
        self.worth = np.zeros(hosts)
        self._count = np.zeros(hosts, dtype=np.intp)
        self._block, self._line = (np.zeros((ways, hosts), dtype=np.intp) for _ in range(2))
        self._values = np.full((ways, hosts), -np.inf)
        self._blocks: list[Block] = []

    def add(self, hosts: Rows, block: Block) -> None:
        """One line of the block for each of these hosts, which have no other way."""
        self.flags[hosts] = True
        self.worth[hosts] = block.preference
        self._count[hosts] = 1
        self._block[0, hosts] = len(self._blocks)
        self._line[0, hosts] = np.arange(len(hosts))
        self._blocks.append(block)

    def add_way(self, hosts: Rows, block: Block, values: Floats) -> None:
        """One line of the block for each of these hosts, with its value; NaN: struck."""
        allowed = ~np.isnan(values)
        self.struck[hosts[~allowed]] += 1
        self.some_are_struck = self.some_are_struck or not allowed.all()
        lines, hosts, values = np.flatnonzero(allowed), hosts[allowed], values[allowed]
        ways = self._count[hosts]
        self.flags[hosts] = True
        self._block[ways, hosts] = len(self._blocks)
        self._line[ways, hosts] = lines
        best = values >= self._values[:, hosts].max(axis=0, initial=-np.inf)
        self._values[ways, hosts] = values
        self._count[hosts] += 1
        self._blocks.append(block)
        self.worth[hosts[best]] = block.preference

    def parts(self, host: int) -> tuple[ProviderAmount, ...] | None:
        """The best way; None if there is none."""
        return next(self.ways(host), None)

    def ways(self, host: int) -> Iterator[tuple[ProviderAmount, ...]]:
        count = int(self._count[host])
        if count == 1:
            yield self._parts_of(0, host)
        elif count:
            for way in np.argsort(-self._values[:count, host], kind="stable").tolist():
                yield self._parts_of(way, host)

    def _parts_of(self, way: int, host: int) -> tuple[ProviderAmount, ...]:
        block = self._blocks[self._block[way, host]]
        rows = block.rows[self._line[way, host]].tolist()
        return tuple(
            [
                ProviderAmount(row, resource, amount)
                for row, amounts in zip(rows, block.pattern.amounts, strict=True)
                for resource, amount in amounts.items()
            ]
        )


class Compounds:
    """The compound hosts in one draft; a host is named by its row in the picture's columns."""

    def __init__(self, picture: Picture, judges: Sequence[WayJudge] = ()) -> None:
        self._judges = judges
        self._compound = picture.compound
        # All hosts with a provider; None until a request with groups needs them.
        self._everyone: Flags | None = None
        self._budget = SharedBudget(STEPS_PER_TREE, STEPS_PER_BATCH, BYTES_PER_TREE)
        self._picture = picture
        self._index = picture.index
        self._index.attach_trees()
        self._taken: dict[str, dict[int, int]] = {}
        # Valid until an instance takes something.
        self._found: dict[Needs, Candidates] = {}
        self._worth: dict[Needs, Floats] = {}
        for share in picture.held_on_compound():
            for each in share.amounts:
                row = self._index.row_of(each.provider)
                if row is not None:
                    self._count(ProviderAmount(row, each.resource, each.amount))

    def cover_everyone(self, free: Callable[[str], Ints | None]) -> None:
        """From now on all hosts are searched, if a request has groups. `free` gives the columns of the draft: on hosts
        without children they are what is free at the root, less the choices that are not answered and those of the batch.
        """
        if self._everyone is not None:
            return
        columns, index = self._picture.columns, self._index
        roots = columns.root[: columns.rows]
        self._everyone = columns.present[: columns.rows] & (roots >= 0)
        flat = np.flatnonzero(self._everyone & ~self._compound)
        for resource, stock in index.stocks.items():
            left = free(resource)
            if left is not None:
                less = stock.free[roots[flat]] - left[flat]
                for at in np.flatnonzero(less > 0).tolist():
                    self._count(ProviderAmount(int(roots[flat[at]]), resource, int(less[at])))

    def take_by_columns(self, rows: Rows, times: Ints, amounts: Mapping[str, int]) -> None:
        """Instances that were placed by the columns alone."""
        if self._everyone is None or not times.any():
            return
        for row, count in zip(rows.tolist(), times.tolist(), strict=True):
            if count and self._everyone[row] and not self._compound[row]:
                root = int(self._picture.columns.root[row])
                for resource, amount in amounts.items():
                    self._count(ProviderAmount(root, resource, count * amount))
        self._found.clear()

    def flags(self, needs: Needs) -> Flags:
        """The hosts that are searched for these needs."""
        if not needs.groups:
            return self._compound
        assert self._everyone is not None, "all hosts are covered before a request with groups is decided"
        return self._everyone

    def found(self, needs: Needs) -> Candidates:
        found = self._found.get(needs)
        if found is None:
            found = self._found[needs] = self._search(needs, np.flatnonzero(self.flags(needs)))
        return found

    def worth(self, needs: Needs) -> Floats:
        """The value of preferred traits for each host that is searched, as of the first search of the batch."""
        worth = self._worth.get(needs)
        if worth is None:
            worth = self._worth[needs] = self.found(needs).worth
        return worth

    def search_again(self, needs: Needs, host: int) -> tuple[ProviderAmount, ...] | None:
        return self._search(needs, np.array([host], dtype=np.intp)).parts(host)

    def can_give(self, needs: Needs, host: int) -> bool:
        """Has this host what is needed, be it all from sharing providers?"""
        found = self._search(needs, np.array([host], dtype=np.intp), may_be_shared_whole=True)
        return bool(found.flags[host])

    def correct(self, provider: ProviderId, resource: str, free: int) -> None:
        """Placement says that only so much is free there."""
        row = self._index.row_of(provider)
        if row is not None and resource in self._index.stocks:
            more = self._free(row, resource) - free
            if more > 0:
                self._count(ProviderAmount(row, resource, more))

    def has_room(self, parts: Sequence[ProviderAmount]) -> bool:
        return all(self._free(part.row, part.resource) >= part.amount for part in parts)

    def take(self, parts: Sequence[ProviderAmount]) -> None:
        for part in parts:
            self._count(part)
        self._found.clear()

    def providers_for(self, host: int, resource: str = "") -> Iterator[FreeAtProvider]:
        """All providers that instances on this host may take from; with a class, those that have an inventory of it."""
        index, root = self._index, int(self._picture.columns.root[host])
        if root < 0:
            return
        barred = self._barred(int(self._picture.columns.cell[host]))
        pools = [row for row in sorted(index.sharing - barred) if root in index.reached_from(row)]
        for row in dict.fromkeys((*index.in_trees_of(np.array([root])).tolist(), *pools)):
            state = index.state(row)
            if not resource or resource in state.inventories:
                yield FreeAtProvider(state, self._free(row, resource) if resource else 0)

    def shared(self, resource: str) -> Ints:
        """For each host the largest free amount of a class at one sharing provider that it may use; -1 without such a provider."""
        most = np.full(self._picture.columns.rows, -1, dtype=np.int64)
        for pool in self.pools(resource):
            most[pool.users] = np.maximum(most[pool.users], max(pool.free, 0))
        return most

    def pools(self, resource: str) -> Iterator[Pool]:
        """The sharing providers with an inventory of a class."""
        columns, index = self._picture.columns, self._index
        roots, cells = columns.root[: columns.rows], columns.cell[: columns.rows]
        for row in sorted(index.sharing):
            state = index.state(row)
            if resource in state.inventories:
                reached = np.zeros(index.rows, dtype=np.bool_)
                reached[index.reached_from(row)] = True
                users = reached[roots] & (roots >= 0)
                if state.cell:
                    users &= np.equal(cells, columns.cells.find(state.cell))
                capacity = int(index.stocks[resource].capacity[row])
                yield Pool(state, self._free(row, resource), capacity, users)

    def free_at(self, provider: ProviderId, resource: str) -> int:
        row = self._index.row_of(provider)
        return 0 if row is None else self._free(row, resource)

    def _free(self, row: int, resource: str) -> int:
        return int(self._index.stocks[resource].free[row]) - self._taken.get(resource, {}).get(row, 0)

    def _count(self, part: ProviderAmount) -> None:
        taken = self._taken.setdefault(part.resource, {})
        taken[part.row] = taken.get(part.row, 0) + part.amount

    def _search(self, needs: Needs, hosts: Rows, *, may_be_shared_whole: bool = False) -> Candidates:
        columns, index = self._picture.columns, self._index
        judges = [judge for judge in self._judges if judge.reads(needs)]
        ways = WAYS_PER_HOST if judges else 1
        found = Candidates(columns.rows, ways)
        hosts = hosts[columns.root[hosts] >= 0]
        host_of = np.zeros(index.rows, dtype=np.intp)
        host_of[columns.root[hosts]] = hosts
        query = query_of(needs)
        for barred, roots in self._by_pools(hosts):
            scope = Scope(roots, barred, self._taken)
            for trees in find_ways_in_each_tree(
                index, query, scope, self._budget, ways=ways, may_be_shared_whole=may_be_shared_whole
            ):
                if isinstance(trees, CutInTrees):
                    found.cut[host_of[trees.roots]] = trees.steps
                elif judges:
                    values = self._judged(judges, needs, trees.block)
                    found.add_way(host_of[trees.roots], trees.block, values)
                else:
                    found.add(host_of[trees.roots], trees.block)
        return found

    def _judged(self, judges: Sequence[WayJudge], needs: Needs, block: Block) -> Floats:
        """The value of each way of a block. Preferred traits count before what plugins say."""
        ways = Ways(self._index, block, self._free_of_all)
        values = np.full(len(block.rows), PREFERENCE_FACTOR * block.preference)
        for judge in judges:
            values += judge.judge(ways, needs)
        return values

    def _free_of_all(self, resource: str) -> Ints:
        free = self._index.stocks[resource].free.copy()
        for row, less in self._taken.get(resource, {}).items():
            free[row] -= less
        return free

    def _by_pools(self, hosts: Rows) -> Iterator[tuple[frozenset[int], Flags]]:
        """The roots of these hosts, grouped by the sharing providers that their cells may not use."""
        columns = self._picture.columns
        cells = columns.cell[hosts]
        parts: dict[frozenset[int], list[int]] = {}
        for cell in np.unique(cells).tolist():
            parts.setdefault(self._barred(cell), []).append(cell)
        for barred, same in parts.items():
            roots = np.zeros(self._index.rows, dtype=np.bool_)
            roots[columns.root[hosts[np.isin(cells, same)]]] = True
            yield barred, roots

    def _barred(self, cell: int) -> frozenset[int]:
        """Sharing providers of other cells: no claim may take from two cells."""
        name = self._picture.columns.cells.names[cell]
        return frozenset(row for row in self._index.sharing if self._index.state(row).cell not in ("", name))


class CompoundFill:
    """Compound hosts while a batch puts instances of one spec on them, one after another."""

    def __init__(self, compounds: Compounds, spec: InstanceSpec) -> None:
        self._compounds = compounds
        self._needs = needs_of(spec)
        self.flags = compounds.flags(self._needs)
        self._found = compounds.found(self._needs)
        self._last: dict[int, tuple[ProviderAmount, ...]] = {}

    def take(self, host: int) -> tuple[ProviderAmount, ...] | None:
        """Take the amounts for one more instance; None if there is no room left."""
        parts = self._last.get(host) or self._found.parts(host)
        if parts is None or not self._compounds.has_room(parts):
            parts = self._compounds.search_again(self._needs, host)
        if parts is not None:
            self._last[host] = parts
            self._compounds.take(parts)
        return parts

    def ways(self, host: int) -> list[tuple[ProviderAmount, ...]]:
        """All ways that were found for this host and still have room, best first."""
        return [
            parts
            for parts in self._compounds.found(self._needs).ways(host)
            if self._compounds.has_room(parts)
        ]

    def offer(self, host: int) -> tuple[ProviderAmount, ...] | None:
        """The amounts for one more instance, without taking them; None if there is no room left."""
        parts = self._last.get(host) or self._found.parts(host)
        if parts is not None and not self._compounds.has_room(parts):
            # A caller that asks for one host asks for others, too: search all of them at once.
            parts = self._compounds.found(self._needs).parts(host)
        return parts
