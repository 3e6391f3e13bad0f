"""All providers, as columns, and all their trees, by form: what is searched for candidates.

Kept up in place: a provider that changes writes its own row. A tree of which providers come, go or move is planted anew
before the next search, and until all between a provider and its root are known, the provider is left out.

Who feeds it sees to the order: what is put is later than what was put before of the same provider.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from bus.message import AggregateId, ProviderId
from bus.messages.placement import ProviderState
from placement_worker.core.candidates.columns import BitSets, Flags, Gathered, Members, Rows, Stock, longer
from placement_worker.core.candidates.forms import Form, Planted

SHARES = "MISC_SHARES_VIA_AGGREGATE"
ROWS_AT_FIRST = 64


class Woods:
    """`planted` says of each row whether it stands in a whole tree; of those, `root` and `parent` have the rows of
    these (-1: the row is a root itself). `changes` counts the changes of a row, for whoever keeps what was made of it;
    copies have the same `lineage`, and in it a row with as many changes is the same, as only one of them goes on changing.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._length = ROWS_AT_FIRST
        self.planted = np.zeros(self._length, dtype=np.bool_)
        self.shares = np.zeros(self._length, dtype=np.bool_)
        self.root, self.parent = (np.zeros(self._length, dtype=np.intp) for _ in range(2))
        self.states: list[ProviderState | None] = []
        self.uuids: list[str] = []
        self.changes: list[int] = []
        self.stocks: dict[str, Stock] = {}
        self.traits = BitSets(self._length)
        self.forms: dict[tuple[int, ...], Form] = {}
        self.sharing: set[int] = set()
        self._members: dict[int, Members] = {}
        self._row_of_internal: dict[int, int] = {}
        self._row_of_id: dict[int, int] = {}
        # By the id of the root: the rows of the tree, and where it stands.
        self._trees: dict[int, set[int]] = {}
        self._planted: dict[int, Planted] = {}
        self._unplanted: set[int] = set()
        self._free_rows: list[int] = []
        self.lineage = object()

    def copy(self) -> "Woods":
        """The same, to be written on while this one stays as it is for whoever reads it."""
        other = Woods()
        other.rows, other._length, other.lineage = self.rows, self._length, self.lineage
        other.planted, other.shares = self.planted.copy(), self.shares.copy()
        other.root, other.parent = self.root.copy(), self.parent.copy()
        other.states, other.uuids, other.changes = list(self.states), list(self.uuids), list(self.changes)
        other.stocks = {name: stock.copy() for name, stock in self.stocks.items()}
        other.traits = self.traits.copy()
        other.forms = {parents: form.copy() for parents, form in self.forms.items()}
        other.sharing = set(self.sharing)
        other._members = {aggregate: members.copy() for aggregate, members in self._members.items()}
        other._row_of_internal, other._row_of_id = dict(self._row_of_internal), dict(self._row_of_id)
        other._trees = {root: set(rows) for root, rows in self._trees.items()}
        other._planted = {
            root: Planted(other.forms[form.parents], line) for root, (form, line) in self._planted.items()
        }
        other._unplanted, other._free_rows = set(self._unplanted), list(self._free_rows)
        return other

    # What happens to providers.

    def put(self, state: ProviderState) -> None:
        """A provider is as this says, whether it was known or not."""
        row = self._row_of_internal.get(state.internal)
        if row is None:
            self._lose_bearer(state.id)
            row = self._add(state)
        before = self.states[row]
        self.states[row] = state
        self.changes[row] += 1
        self._put_place(row, before, state)
        self._put_inventories(row, before, state)
        if before is None or before.traits != state.traits:
            self._put_traits(row, before, state)
        if before is None or before.aggregates != state.aggregates:
            self._put_aggregates(row, before, state)

    def use(self, internal: int, used: Mapping[str, int]) -> None:
        """Of each of the provider's classes so much is used."""
        self.use_all(((internal, used),))

    def use_all(self, news: Iterable[tuple[int, Mapping[str, int]]]) -> None:
        """The same of many; of one that is there twice, what comes last."""
        gathered = Gathered[Stock]()
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
        """The provider is gone."""
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
            self._leave(aggregate, row)
        self._uproot(state.root, row)
        self.states[row] = None
        self.changes[row] += 1
        self._free_rows.append(row)

    # What may be asked of them.

    def row_of(self, provider: ProviderId) -> int | None:
        return self._row_of_id.get(provider.int)

    def state(self, row: int) -> ProviderState:
        """As it was put: what is used now is in the stocks."""
        state = self.states[row]
        assert state is not None, f"row {row} is nobody's"
        return state

    def used(self, row: int, resource: str) -> int:
        return int(self.stocks[resource].used[row])

    def members(self, aggregates: Iterable[AggregateId]) -> Flags:
        """Who is in any of these?"""
        inside = np.zeros(self.rows, dtype=np.bool_)
        for aggregate in aggregates:
            members = self._members.get(aggregate.int)
            if members is not None:
                inside[members.array] = True
        return inside

    def reached_from(self, row: int) -> Rows:
        """The roots of trees that this sharing provider shares with; roots of several of its aggregates come twice."""
        reached = [self._members[aggregate.int].array for aggregate in self.state(row).aggregates]
        if not reached:
            return np.zeros(0, dtype=np.intp)
        together = np.concatenate(reached)
        return self.root[together[self.planted[together]]]

    def in_trees_of(self, rows: Rows) -> Rows:
        """All rows of the trees in which these stand."""
        chosen = np.zeros(self.rows, dtype=np.bool_)
        chosen[self.root[rows]] = True
        return np.flatnonzero(chosen[self.root[: self.rows]] & self.planted[: self.rows])

    def is_under(self, row: int, other: int) -> bool:
        """Does it stand at or under the other?"""
        while row >= 0:
            if row == other:
                return True
            row = int(self.parent[row])
        return False

    def plant(self) -> None:
        """Make whole what came, went or moved since; to be called before a search."""
        for root in sorted(self._unplanted):
            self._plant(root)
        self._unplanted.clear()

    # How rows are written.

    def _put_place(self, row: int, before: ProviderState | None, state: ProviderState) -> None:
        if before is not None:
            if before.root == state.root and before.parent == state.parent:
                return
            self._uproot(before.root, row)
        self._trees.setdefault(state.root.int, set()).add(row)
        self._fell(state.root.int)

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

    def _put_aggregates(self, row: int, before: ProviderState | None, state: ProviderState) -> None:
        for aggregate in () if before is None else before.aggregates:
            self._leave(aggregate, row)
        for aggregate in state.aggregates:
            self._members.setdefault(aggregate.int, Members()).add(row)

    def _leave(self, aggregate: AggregateId, row: int) -> None:
        members = self._members[aggregate.int]
        members.discard(row)
        if not members.rows:
            del self._members[aggregate.int]

    def _lose_bearer(self, provider: ProviderId) -> None:
        """Who bore this id before is gone, though we have not been told yet."""
        row = self._row_of_id.get(provider.int)
        if row is not None:
            self.drop(self.state(row).internal)

    def _add(self, state: ProviderState) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            if self.rows == self._length:
                self._grow()
            row = self.rows
            self.rows += 1
            self.states.append(None)
            self.uuids.append("")
            self.changes.append(0)
        self.uuids[row] = str(state.id)
        self._row_of_internal[state.internal] = self._row_of_id[state.id.int] = row
        return row

    def _grow(self) -> None:
        length = self._length = 2 * self._length
        self.planted = longer(self.planted, length)
        self.shares = longer(self.shares, length)
        self.root = longer(self.root, length)
        self.parent = longer(self.parent, length)
        self.traits.grow(length)
        for stock in self.stocks.values():
            stock.grow(length)

    # How trees are planted.

    def _uproot(self, root: ProviderId, row: int) -> None:
        self._fell(root.int)
        rows = self._trees[root.int]
        rows.discard(row)
        if not rows:
            del self._trees[root.int]

    def _fell(self, root: int) -> None:
        """Until it is planted again, nobody of this tree is found."""
        self._unplanted.add(root)
        planted = self._planted.pop(root, None)
        if planted is None:
            return
        form, line = planted
        self.planted[form.rows[line]] = False
        last = form.remove(line)
        if not len(form):
            del self.forms[form.parents]
        elif line < len(form):
            self._planted[self.state(last).id.int] = Planted(form, line)

    def _plant(self, root: int) -> None:
        top = self._row_of_id.get(root)
        rows = self._trees.get(root)
        if rows is None or top is None or top not in rows:
            return
        children = self._children(rows)
        order, parents = [top], [-1]
        for place, row in enumerate(order):
            # Grows as it is read: who stands under whom is met after them.
            below = children.get(self.state(row).id.int, ())
            order.extend(below)
            parents.extend([place] * len(below))
        form = self.forms.get(tuple(parents))
        if form is None:
            form = self.forms[tuple(parents)] = Form(tuple(parents))
        self._planted[root] = Planted(form, form.add(order))
        self.planted[order] = True
        self.root[order] = top
        self.parent[order] = [-1 if place < 0 else order[place] for place in parents]

    def _children(self, rows: set[int]) -> dict[int, list[int]]:
        """By the id of the parent. Siblings come by what they have, and then by age, so that trees of the same hardware
        are of the same form, place by place.
        """
        children: dict[int, list[int]] = {}
        by_kind = sorted(
            (self.state(row) for row in rows), key=lambda state: (sorted(state.inventories), state.internal)
        )
        for state in by_kind:
            if state.parent is not None:
                children.setdefault(state.parent.int, []).append(self._row_of_internal[state.internal])
        return children
