"""The providers of a compound host that an instance takes its amounts from, found by placement's own search.

A host is compound if its tree has more than a root, or if a provider shares with that tree. The sums in its columns say
how good it is, but not what it can give: two NUMA cells with room for one each have no room for two. So the search for
candidates decides whether it qualifies, and the share of each instance: one candidate for each tree, all trees at once.
The search counts as taken what this scheduler's unanswered choices hold there, and what the draft has chosen.

A candidate stays good while there is room for it; a host without room is searched again, alone.

A flavor and a tree may make a search that takes far too long, and the whole batch would wait for it. So a batch has a
budget, in steps: a host whose search is cut is not chosen, and the funnel says so.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bus.messages.placement import ProviderState
from placement_worker.core.candidates.budget import SharedBudget
from placement_worker.core.candidates.columns import Flags, Ints, Rows
from placement_worker.core.candidates.fitting import Scope
from placement_worker.core.candidates.found import Block
from placement_worker.core.candidates.query import CandidatesQuery, Group
from placement_worker.core.candidates.search import CutInTrees, find_one_in_each_tree
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec

# About a tenth of a millisecond for each tree in any case, and a tenth of a second for a batch, for trees that need more.
STEPS_PER_TREE = 300
STEPS_PER_BATCH = 500_000
BYTES_PER_TREE = 16 * 1024 * 1024


class Needs(NamedTuple):
    """The fields of a spec that candidates are searched by."""

    amounts: tuple[tuple[str, int], ...]
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()


class ProviderAmount(NamedTuple):
    """The amount of one class that an instance takes from one provider. `row` is the provider's row in the index."""

    row: int
    resource: str
    amount: int


class FreeAtProvider(NamedTuple):
    """A provider that a host's instances may take from, and the free amount of one class there."""

    state: ProviderState
    free: int


def needs_of(spec: InstanceSpec) -> Needs:
    return Needs(spec.amounts, spec.required, spec.forbidden)


def query_of(needs: Needs) -> CandidatesQuery:
    group = Group(
        resources=dict(needs.amounts),
        required=tuple((trait,) for trait in needs.required),
        forbidden=needs.forbidden,
    )
    return CandidatesQuery(groups=(group,))


class Candidates:
    """One candidate for each host that has any; `flags` tells which have. `cut` is the number of steps after which the
    search of a host was cut, 0 if it was not.
    """

    def __init__(self, hosts: int) -> None:
        self.flags = np.zeros(hosts, dtype=np.bool_)
        self.cut = np.zeros(hosts, dtype=np.int64)
        self._block, self._line = (np.zeros(hosts, dtype=np.intp) for _ in range(2))
        self._blocks: list[Block] = []

    def add(self, hosts: Rows, block: Block) -> None:
        """One line of the block for each of these hosts."""
        self.flags[hosts] = True
        self._block[hosts] = len(self._blocks)
        self._line[hosts] = np.arange(len(hosts))
        self._blocks.append(block)

    def parts(self, host: int) -> tuple[ProviderAmount, ...] | None:
        if not self.flags[host]:
            return None
        block = self._blocks[self._block[host]]
        rows = block.rows[self._line[host]].tolist()
        return tuple(
            [
                ProviderAmount(row, resource, amount)
                for row, amounts in zip(rows, block.pattern.amounts, strict=True)
                for resource, amount in amounts.items()
            ]
        )


class Compounds:
    """The compound hosts in one draft; a host is named by its row in the picture's columns."""

    def __init__(self, picture: Picture) -> None:
        self.flags = picture.compound
        self._budget = SharedBudget(STEPS_PER_TREE, STEPS_PER_BATCH, BYTES_PER_TREE)
        self._picture = picture
        self._index = picture.index
        self._index.attach_trees()
        self._taken: dict[str, dict[int, int]] = {}
        # Valid until an instance takes something.
        self._found: dict[Needs, Candidates] = {}
        for share in picture.held_on_compound():
            for each in share.amounts:
                row = self._index.row_of(each.provider)
                if row is not None:
                    self._count(ProviderAmount(row, each.resource, each.amount))

    def found(self, needs: Needs) -> Candidates:
        found = self._found.get(needs)
        if found is None:
            found = self._found[needs] = self._search(needs, np.flatnonzero(self.flags))
        return found

    def search_again(self, needs: Needs, host: int) -> tuple[ProviderAmount, ...] | None:
        return self._search(needs, np.array([host], dtype=np.intp)).parts(host)

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
        columns, index = self._picture.columns, self._index
        roots, cells = columns.root[: columns.rows], columns.cell[: columns.rows]
        most = np.full(columns.rows, -1, dtype=np.int64)
        for row in sorted(index.sharing):
            state = index.state(row)
            if resource in state.inventories:
                reached = np.zeros(index.rows, dtype=np.bool_)
                reached[index.reached_from(row)] = True
                may_use = reached[roots] & (roots >= 0)
                if state.cell:
                    may_use &= np.equal(cells, columns.cells.find(state.cell))
                most[may_use] = np.maximum(most[may_use], max(self._free(row, resource), 0))
        return most

    def _free(self, row: int, resource: str) -> int:
        return int(self._index.stocks[resource].free[row]) - self._taken.get(resource, {}).get(row, 0)

    def _count(self, part: ProviderAmount) -> None:
        taken = self._taken.setdefault(part.resource, {})
        taken[part.row] = taken.get(part.row, 0) + part.amount

    def _search(self, needs: Needs, hosts: Rows) -> Candidates:
        columns, index = self._picture.columns, self._index
        found = Candidates(columns.rows)
        hosts = hosts[columns.root[hosts] >= 0]
        host_of = np.zeros(index.rows, dtype=np.intp)
        host_of[columns.root[hosts]] = hosts
        query = query_of(needs)
        for barred, roots in self._by_pools(hosts):
            scope = Scope(roots, barred, self._taken)
            for trees in find_one_in_each_tree(index, query, scope, self._budget):
                if isinstance(trees, CutInTrees):
                    found.cut[host_of[trees.roots]] = trees.steps
                else:
                    found.add(host_of[trees.roots], trees.block)
        return found

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
        self.flags = compounds.flags
        self._compounds = compounds
        self._needs = needs_of(spec)
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

    def offer(self, host: int) -> tuple[ProviderAmount, ...] | None:
        """The amounts for one more instance, without taking them; None if there is no room left."""
        parts = self._last.get(host) or self._found.parts(host)
        if parts is not None and not self._compounds.has_room(parts):
            # A caller that asks for one host asks for others, too: search all of them at once.
            parts = self._compounds.found(self._needs).parts(host)
        return parts
