"""All providers as columns, and all their trees by layout: the data that candidates are searched in.

It is kept up to date in place: a change of a provider writes its row. When providers of a tree come, go or move, the tree
is detached, so that searches do not find it; `attach_trees` puts it in the table of its layout again. A provider whose
parents are not all known yet stays out of searches.

The caller keeps the order: each `put` of a provider is later than the one before, and no two providers have one id at the
same time.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from engine.candidates.columns import (
    At,
    BatchedValues,
    BitSets,
    Flags,
    Members,
    Rows,
    Stock,
    TreeLayout,
    TreeLine,
    longer,
)
from engine.inventories import AggregateId, ProviderId, ProviderState

SHARES = "MISC_SHARES_VIA_AGGREGATE"
ROWS_AT_FIRST = 64
# How many answers are kept: each takes up to ten bytes for each provider.
KEPT_MAX = 16
# After so many changes of rows, answers are computed anew, and not only for these rows.
CHANGES_MAX = 5_000
# The arrays, and everything that a copy has as a copy of its own; what holds things that change is copied one by one.
_ARRAYS = ("attached", "shares", "root", "parent", "uuids")
_COPIED = (
    *(*_ARRAYS, "traits", "states", "changes", "sharing"),
    *("_row_of_internal", "_row_of_id", "_detached", "_free_rows"),
    *("_kept", "_changed"),
)


class _Kept(NamedTuple):
    """An answer, and how many of the changes (`ProviderIndex._changed`) it knows."""

    columns: tuple[Flags, ...]
    changes: int


class ProviderIndex:
    """All providers that a process knows, as columns: each has one row.

    `attached` flags the rows that are in a complete tree. For these, `root` and `parent` are the rows of the provider's root
    and parent (`parent` is -1 for a root). `changes` counts the changes of each row, for callers that cache what they
    computed from a row. A copy of an index has the same `lineage`, and only one of the copies is changed further. So if
    two indexes have one lineage and the same count for a row, the row is the same in both.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._length = ROWS_AT_FIRST
        self.attached = np.zeros(self._length, dtype=np.bool_)
        self.shares = np.zeros(self._length, dtype=np.bool_)
        self.root, self.parent = (np.zeros(self._length, dtype=np.intp) for _ in range(2))
        self.states: list[ProviderState | None] = []
        # The public ids as text.
        self.uuids = np.zeros(self._length, dtype="S36")
        self.changes: list[int] = []
        self.stocks: dict[str, Stock] = {}
        self.traits = BitSets(self._length)
        self.layouts: dict[tuple[int, ...], TreeLayout] = {}
        self.sharing: set[int] = set()
        self._members: dict[int, Members] = {}
        self._row_of_internal: dict[int, int] = {}
        self._row_of_id: dict[int, int] = {}
        # By the root's id: the rows of the tree, and where it is stored.
        self._trees: dict[int, set[int]] = {}
        self._tree_lines: dict[int, TreeLine] = {}
        self._detached: set[int] = set()
        self._free_rows: list[int] = []
        # By the row of the root, until traits, aggregates or trees change.
        self._pools: dict[int, tuple[int, ...]] = {}
        # The answers that are kept, by their questions, and the rows of which traits, aggregates or trees have changed since
        # the first of them.
        self._kept: dict[Hashable, _Kept] = {}
        self._changed: list[int] = []
        self.lineage = object()

    def copy(self) -> "ProviderIndex":
        """A copy to write on, while readers keep this one unchanged."""
        other = ProviderIndex()
        other.rows, other._length, other.lineage = self.rows, self._length, self.lineage
        for name in _COPIED:
            setattr(other, name, getattr(self, name).copy())
        other.stocks = {name: stock.copy() for name, stock in self.stocks.items()}
        other.layouts = {parents: layout.copy() for parents, layout in self.layouts.items()}
        other._members = {aggregate: members.copy() for aggregate, members in self._members.items()}
        other._trees = {root: set(rows) for root, rows in self._trees.items()}
        other._tree_lines = {
            root: TreeLine(other.layouts[layout.parents], line)
            for root, (layout, line) in self._tree_lines.items()
        }
        return other

    # What happens to providers.

    def put(self, state: ProviderState) -> None:
        """Set the state of a provider; a provider that is not known yet is added."""
        row = self._row_of_internal.get(state.internal)
        if row is None:
            row = self._add(state)
        before = self.states[row]
        self.states[row] = state
        self.changes[row] += 1
        self._put_parent(row, before, state)
        self._put_inventories(row, before, state)
        if before is None or before.traits != state.traits:
            self._put_traits(row, before, state)
        if before is None or before.aggregates != state.aggregates:
            self._put_aggregates(row, before, state)

    def use(self, news: Iterable[tuple[int, Mapping[str, int]]]) -> None:
        """Set how much is used of each class of these providers, which are given by internal ids. If one is named twice, its
        last usage counts. Unknown ones are skipped.
        """
        gathered = BatchedValues[Stock]()
        for internal, used in news:
            row = self._row_of_internal.get(internal)
            state = None if row is None else self.states[row]
            if row is None or state is None:
                continue
            for resource in state.inventories:
                gathered.add(self.stocks[resource], row, used.get(resource, 0))
            self.changes[row] += 1
        for stock, rows, amounts in gathered:
            stock.use(rows, amounts)

    def drop(self, internal: int) -> None:
        """Remove the provider."""
        row = self._row_of_internal.pop(internal, None)
        state = None if row is None else self.states[row]
        if row is None or state is None:
            return
        if self._row_of_id.get(state.id.int) == row:
            del self._row_of_id[state.id.int]
        for resource in state.inventories:
            self._clear_inventory(resource, row)
        self.traits.put(row, state.traits, ())
        self.shares[row] = False
        self.sharing.discard(row)
        for aggregate in state.aggregates:
            self._leave_aggregate(aggregate, row)
        self._remove_row(state.root, row)
        self.states[row] = None
        self.changes[row] += 1
        self._free_rows.append(row)

    # Questions about providers

    @property
    def everywhere(self) -> slice:
        """All rows."""
        return slice(self.rows)

    def row_of(self, provider: ProviderId) -> int | None:
        return self._row_of_id.get(provider.int)

    def state(self, row: int) -> ProviderState:
        """The state of the provider in this row, as it was last put. Its usage may be old: `use` changes only `stocks`."""
        state = self.states[row]
        assert state is not None, f"row {row} has no provider"
        return state

    def used(self, row: int, resource: str) -> int:
        return int(self.stocks[resource].used[row])

    def members(self, aggregates: Iterable[AggregateId]) -> Flags:
        """Flags of the providers (rows) that are members of any of these aggregates."""
        inside = np.zeros(self.rows, dtype=np.bool_)
        for aggregate in aggregates:
            members = self._members.get(aggregate.int)
            if members is not None:
                inside[members.array] = True
        return inside

    def reached_from(self, row: int) -> Rows:
        """The rows of the roots whose trees this sharing provider shares with. A root may come several times."""
        reached = [self._members[aggregate.int].array for aggregate in self.state(row).aggregates]
        if not reached:
            return np.zeros(0, dtype=np.intp)
        together = np.concatenate(reached)
        return self.root[together[self.attached[together]]]

    def in_trees_of(self, rows: Rows) -> Rows:
        """The rows of all providers in the trees of these providers."""
        chosen = np.zeros(self.rows, dtype=np.bool_)
        chosen[self.root[rows]] = True
        return np.flatnonzero(chosen[self.root[: self.rows]] & self.attached[: self.rows])

    def cached(self, question: Hashable, answer: Callable[[At], tuple[Flags, ...]]) -> tuple[Flags, ...]:
        """The answer to a question about all providers, as columns, which must not be written into. It is kept: `answer`
        computes it for all rows, and later for those that have changed.

        The answer for a row must follow from the traits and aggregates of this provider and of those in its tree, and
        from the tree, alone.
        """
        known = self._kept.get(question)
        if known is None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            columns = answer(self.everywhere)
        elif known.changes == len(self._changed):
            return known.columns
        else:
            rows = np.array([*{*self._changed[known.changes :]}], dtype=np.intp)
            columns = tuple([longer(column, self.rows) for column in known.columns])
            for column, news in zip(columns, answer(rows), strict=True):
                column[rows] = news
        self._kept[question] = _Kept(columns, len(self._changed))
        return columns

    def is_under(self, row: int, other: int) -> bool:
        """Is the first provider the second one, or below it in the tree? Both are given by their rows."""
        while row not in (other, -1):
            row = int(self.parent[row])
        return row == other

    def states_in_tree(self, root: ProviderId) -> list[ProviderState]:
        """All known providers of this tree, whether it is attached or not."""
        return [self.state(row) for row in sorted(self._trees[root.int])]

    def attach_trees(self) -> None:
        """Let searches find all complete trees again whose providers came, went or moved. Call this before a search."""
        for root in sorted(self._detached):
            self._attach_tree(root)
        self._detached.clear()

    def tree_of(self, root: int) -> tuple[TreeLayout, list[int]] | None:
        """The layout of the tree under this root (a row), and the rows of its providers from the root down; None if the tree is
        not attached.
        """
        place = self._tree_lines.get(self.state(root).id.int)
        return None if place is None else (place.layout, place.layout.rows[place.line].tolist())

    def pools_of(self, root: int) -> tuple[int, ...]:
        """The sharing providers outside of this tree that share with it, in the order of their rows."""
        pools = self._pools.get(root)
        if pools is None:
            found = self.tree_of(root)
            near = {each.int for row in (found[1] if found else ()) for each in self.state(row).aggregates}
            sharing = {row for aggregate in near for row in self._members[aggregate].rows & self.sharing}
            pools = self._pools[root] = tuple(
                sorted(row for row in sharing if self.attached[row] and self.root[row] != root)
            )
        return pools

    # How rows are written.

    def _note_changes(self, rows: Iterable[int]) -> None:
        """Note that what follows from traits, aggregates and trees may have changed for these rows."""
        self._pools.clear()
        self._changed.extend(rows)
        if not self._kept or len(self._changed) > CHANGES_MAX:
            self._kept.clear()
            self._changed.clear()

    def _put_parent(self, row: int, before: ProviderState | None, state: ProviderState) -> None:
        if before is not None:
            if before.root == state.root and before.parent == state.parent:
                return
            self._remove_row(before.root, row)
        self._trees.setdefault(state.root.int, set()).add(row)
        self._detach_tree(state.root.int)

    def _put_inventories(self, row: int, before: ProviderState | None, state: ProviderState) -> None:
        had = {} if before is None else before.inventories
        for resource in had:
            if resource not in state.inventories:
                self._clear_inventory(resource, row)
        for resource, inventory in state.inventories.items():
            stock = self.stocks.get(resource)
            if stock is None:
                stock = self.stocks[resource] = Stock(self._length)
            if resource not in had:
                stock.providers += 1
            stock.put(row, inventory)

    def _clear_inventory(self, resource: str, row: int) -> None:
        stock = self.stocks[resource]
        stock.clear(row)
        stock.providers -= 1
        if not stock.providers:
            del self.stocks[resource]

    def _put_traits(self, row: int, before: ProviderState | None, state: ProviderState) -> None:
        self.traits.put(row, () if before is None else before.traits, state.traits)
        self.shares[row] = SHARES in state.traits
        if self.shares[row]:
            self.sharing.add(row)
        else:
            self.sharing.discard(row)
        self._note_changes((row,))

    def _put_aggregates(self, row: int, before: ProviderState | None, state: ProviderState) -> None:
        for aggregate in () if before is None else before.aggregates:
            self._leave_aggregate(aggregate, row)
        for aggregate in state.aggregates:
            self._members.setdefault(aggregate.int, Members()).add(row)
        # All providers of a tree may count as members of its root's aggregates.
        self._note_changes(self._trees[state.root.int] if state.id == state.root else (row,))

    def _leave_aggregate(self, aggregate: AggregateId, row: int) -> None:
        members = self._members[aggregate.int]
        members.discard(row)
        if not members.rows:
            del self._members[aggregate.int]

    def _add(self, state: ProviderState) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            if self.rows == self._length:
                self._grow()
            row = self.rows
            self.rows += 1
            self.states.append(None)
            self.changes.append(0)
        self.uuids[row] = str(state.id).encode()
        self._row_of_internal[state.internal] = self._row_of_id[state.id.int] = row
        return row

    def _grow(self) -> None:
        length = self._length = 2 * self._length
        for name in _ARRAYS:
            setattr(self, name, longer(getattr(self, name), length))
        self.traits.grow(length)
        for stock in self.stocks.values():
            stock.grow(length)

    # How trees are attached

    def _remove_row(self, root: ProviderId, row: int) -> None:
        self._detach_tree(root.int)
        rows = self._trees[root.int]
        rows.discard(row)
        if not rows:
            del self._trees[root.int]

    def _detach_tree(self, root: int) -> None:
        """Take the tree under this root out of searches until `attach_trees`."""
        self._detached.add(root)
        attached = self._tree_lines.pop(root, None)
        if attached is None:
            return
        layout, line = attached
        rows = layout.rows[line].tolist()
        self.attached[rows] = False
        self._note_changes(rows)
        last = layout.remove(line)
        if not len(layout):
            del self.layouts[layout.parents]
        elif line < len(layout):
            self._tree_lines[self.state(last).id.int] = TreeLine(layout, line)

    def _attach_tree(self, root: int) -> None:
        top = self._row_of_id.get(root)
        rows = self._trees.get(root)
        if rows is None or top is None or top not in rows:
            return
        children = self._children(rows)
        order, parents = [top], [-1]
        for place, row in enumerate(order):
            # The list grows while it is read: the children of a row are visited after it.
            below = children.get(self.state(row).id.int, ())
            order.extend(below)
            parents.extend([place] * len(below))
        layout = self.layouts.get(tuple(parents))
        if layout is None:
            layout = self.layouts[tuple(parents)] = TreeLayout(tuple(parents))
        self._tree_lines[root] = TreeLine(layout, layout.add(order))
        self.attached[order] = True
        self.root[order] = top
        self.parent[order] = [-1 if place < 0 else order[place] for place in parents]
        self._note_changes(order)

    def _children(self, rows: set[int]) -> dict[int, list[int]]:
        """Children by the id of their parent. Siblings are sorted by their resource classes, then by age, so that trees of
        the same hardware get the same layout, place by place.
        """
        children: dict[int, list[int]] = {}
        by_kind = sorted(
            (self.state(row) for row in rows), key=lambda state: (sorted(state.inventories), state.internal)
        )
        for state in by_kind:
            # A root is no child, whatever a message says: the way down from it would have no end.
            if state.parent is not None and state.id.int != state.root.int:
                children.setdefault(state.parent.int, []).append(self._row_of_internal[state.internal])
        return children
