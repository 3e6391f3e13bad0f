"""Hosts as plugins see them while a batch is being decided: columns in which the batch's own choices count already.

The picture itself stays as it is: what a batch takes is written into copies.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from placement_worker.core.candidates.columns import Flags, Ints, Rows, Scalar
from scheduler_worker.core.choosing.compounds import Compounds, Filling, Giver, Needs
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec


class Draft:
    """A picture with what a batch has chosen so far."""

    def __init__(self, picture: Picture) -> None:
        self.columns = picture.columns
        self.picture = picture
        self.compounds = Compounds(picture) if picture.compound.any() else None
        # Most clouds have none: then nothing more is asked about them.
        self.has_nodes = bool(self.columns.node[: self.columns.rows].any())
        self._free: dict[str, Ints] = {}
        self._holding: Ints | None = None

    def filling(self, spec: InstanceSpec) -> Filling | None:
        """None where nobody is compound."""
        return None if self.compounds is None else Filling(self.compounds, spec)

    @property
    def holding(self) -> Ints:
        return self.columns.holding if self._holding is None else self._holding

    def free(self, resource: str) -> Ints | None:
        """None if no host ever had any of it."""
        own = self._free.get(resource)
        if own is not None:
            return own
        stock = self.columns.stocks.get(resource)
        return None if stock is None else stock.free

    def take(self, rows: Rows, times: Ints, amounts: Mapping[str, int]) -> None:
        """These rows take so many instances each, of so much. Of which providers of a compound host, is told to
        `compounds`.
        """
        for resource, amount in amounts.items():
            stock = self.columns.stocks.get(resource)
            if stock is None:
                # Only pools have any of it.
                continue
            free = self._free.get(resource)
            if free is None:
                free = self._free[resource] = stock.free.copy()
            free[rows] -= times * amount
        if self._holding is None:
            self._holding = self.columns.holding.copy()
        self._holding[rows] += times


class Hosts:
    """Some hosts, or all: every answer is an array with one entry for each, in the same order.

    With `taken`, each has taken that many more instances of `amounts`: so a batch asks what would be if, of many
    hosts and many times at once. A host may stand here several times, then.
    """

    def __init__(
        self,
        draft: Draft,
        rows: Rows | None = None,
        taken: Ints | None = None,
        amounts: Mapping[str, int] | None = None,
    ) -> None:
        self._draft = draft
        self._columns = draft.columns
        self._rows = rows
        self._taken = taken
        self._amounts = amounts or {}
        self._everyone: Flags | None = None
        # Filters and weighers ask for the same.
        self._free: dict[str, Ints] = {}

    def __len__(self) -> int:
        return self._columns.rows if self._rows is None else len(self._rows)

    @property
    def rows(self) -> Rows | slice:
        """Where they stand in the columns."""
        return slice(self._columns.rows) if self._rows is None else self._rows

    def row(self, at: int) -> int:
        return at if self._rows is None else int(self._rows[at])

    def _of(self, column: NDArray[Scalar]) -> NDArray[Scalar]:
        return column[: self._columns.rows] if self._rows is None else column[self._rows]

    # What it may take.

    def free(self, resource: str) -> Ints:
        """What nobody uses and no choice of ours takes. Less than nothing, where an inventory shrank."""
        free = self._free.get(resource)
        if free is None:
            free = self._free[resource] = self._look_up_free(resource)
        return free

    def _look_up_free(self, resource: str) -> Ints:
        column = self._draft.free(resource)
        if column is None:
            return np.zeros(len(self), dtype=np.int64)
        amount = self._amounts.get(resource)
        return (
            self._of(column) if self._taken is None or not amount else self._of(column) - self._taken * amount
        )

    def within_bounds(self, resource: str, amount: int) -> Flags:
        """Would the inventory ever give this amount at once? (min_unit, max_unit, step_size)"""
        within = self.everyone()
        stock = self._columns.stocks.get(resource)
        if stock is None:
            return within
        if stock.has_min_unit:
            within = within & (self._of(stock.min_unit) <= amount)
        if stock.has_max_unit:
            within = within & (self._of(stock.max_unit) >= amount)
        if stock.has_step_size:
            # Where there is no inventory the step is 0; that there is nothing is said by `free`.
            within = within & (amount % np.maximum(self._of(stock.step_size), 1) == 0)
        return within

    def bounds(self, resource: str, at: int) -> tuple[int, int, int, int]:
        """Capacity, min_unit, max_unit and step_size of one host; all 0 where it has no inventory of the class."""
        stock = self._columns.stocks.get(resource)
        row = self.row(at)
        if stock is None or not stock.step_size[row]:
            return 0, 0, 0, 0
        return (
            int(stock.capacity[row]),
            int(stock.min_unit[row]),
            int(stock.max_unit[row]),
            int(stock.step_size[row]),
        )

    def stocked(self, resource: str) -> Flags:
        """Which have an inventory of this class."""
        stock = self._columns.stocks.get(resource)
        # Where there is no inventory the step is 0.
        return ~self.everyone() if stock is None else self._of(stock.step_size) > 0

    # What its providers may give.

    def shared(self, resource: str) -> Ints:
        """The most that is left of a class at one provider that shares with the host; -1 where none shares it."""
        compounds = self._draft.compounds
        if compounds is None:
            return np.full(len(self), -1, dtype=np.int64)
        return self._of(compounds.shared(resource))

    def decided(self, by_columns: Flags, needs: Needs) -> Flags:
        """What columns say of most hosts, and the search of compound ones. Of these nobody knows whether they could take
        many: each is searched when it is its turn. Where the search was cut, nothing speaks against the host.
        """
        compounds = self._draft.compounds
        if compounds is None:
            return by_columns
        if self._taken is not None:
            return by_columns | self._of(compounds.flags)
        found = compounds.found(needs)
        return np.where(self._of(compounds.flags), self._of(found.flags | (found.cut > 0)), by_columns)

    def cut(self, needs: Needs) -> Ints | None:
        """After how many steps the search of each host was cut, 0 where it was not; None if none is searched."""
        compounds = self._draft.compounds
        return None if compounds is None else self._of(compounds.found(needs).cut)

    @property
    def some_are_compound(self) -> bool:
        return self._draft.compounds is not None

    def is_compound(self, at: int) -> bool:
        return self._draft.compounds is not None and bool(self._draft.compounds.flags[self.row(at)])

    def givers(self, at: int, resource: str = "") -> list[Giver]:
        """Of a compound host: all whom its instances may take from; of a class, those that have it."""
        assert self._draft.compounds is not None, "there are compound hosts"
        return list(self._draft.compounds.givers(self.row(at), resource))

    # What it is.

    def everyone(self) -> Flags:
        """All true; not to be written into."""
        if self._everyone is None:
            self._everyone = np.ones(len(self), dtype=np.bool_)
        return self._everyone

    @property
    def present(self) -> Flags:
        return self._of(self._columns.present)

    @property
    def registered(self) -> Flags:
        return self._of(self._columns.registered)

    @property
    def provided(self) -> Flags:
        return self._of(self._columns.provided)

    @property
    def consistent(self) -> Flags:
        return self._of(self._columns.consistent)

    @property
    def up(self) -> Flags:
        return self._of(self._columns.up)

    @property
    def enabled(self) -> Flags:
        return self._of(self._columns.enabled)

    @property
    def some_are_nodes(self) -> bool:
        """Is any host of the picture a bare-metal node?"""
        return self._draft.has_nodes

    @property
    def nodes(self) -> Flags:
        return self._of(self._columns.node)

    def open_to(self, project: str) -> Flags:
        """Those that are bound to no project, or to this one among others."""
        return np.isin(self._of(self._columns.projects), self._columns.sets_open_to(project))

    @property
    def cell(self) -> Ints:
        """Codes: equal ones are equal cells."""
        return self._of(self._columns.cell)

    def in_zone(self, zone: str) -> Flags:
        code = self._columns.zones.find(zone)
        return np.equal(self._of(self._columns.zone), code)

    def named(self, names: tuple[str, ...]) -> Flags:
        """Those that bear one of these names, which are in lower case."""
        named = np.zeros(self._columns.rows, dtype=np.bool_)
        for name in names:
            for row in self._draft.picture.rows_named(name):
                named[row] = True
        return self._of(named)

    def places_named(self, name: str) -> list[int]:
        """Of all hosts, where those stand that bear this name, which is in lower case."""
        return sorted(self._draft.picture.rows_named(name))

    def with_all(self, traits: tuple[str, ...]) -> Flags:
        """Borne by the root, or by different ones of its tree."""
        borne = [self.with_any((trait,)) for trait in traits]
        if not borne:
            return self.everyone()
        have: Flags = borne[0] if len(borne) == 1 else np.logical_and.reduce(borne)
        return have

    def with_any(self, traits: tuple[str, ...]) -> Flags:
        return self._of(self._columns.traits.having_any(traits, self._columns.rows))

    # How busy it is.

    @property
    def instances(self) -> Ints:
        """Those it has, and those that were chosen for it and are not answered. Placement knows of those that are still to
        be built, and the host of those that nobody claimed for.
        """
        columns = self._columns
        return self._busy(np.maximum(self._of(columns.instances), self._of(columns.consumers)))

    @property
    def io_ops(self) -> Ints:
        """Builds and the like under way, and those that were chosen for it and are not answered."""
        return self._busy(self._of(self._columns.io_ops))

    def _busy(self, already: Ints) -> Ints:
        busy = already + self._of(self._draft.holding)
        return busy if self._taken is None else busy + self._taken

    # What to call it.

    def name(self, at: int) -> str:
        return self._columns.names[self.row(at)]

    def cell_name(self, at: int) -> str:
        return self._columns.cells.names[int(self._columns.cell[self.row(at)])]

    def projects(self, at: int) -> tuple[str, ...]:
        """Those that the host is bound to."""
        return self._columns.project_sets.names[int(self._columns.projects[self.row(at)])]

    def classes(self, at: int) -> list[str]:
        """The resource classes that the host has an inventory of."""
        row = self.row(at)
        return sorted(resource for resource, stock in self._columns.stocks.items() if stock.step_size[row])

    def zone_name(self, at: int) -> str:
        row = self.row(at)
        return (
            self._columns.zones.names[int(self._columns.zone[row])] if self._columns.registered[row] else ""
        )

    def disabled_reason(self, at: int) -> str:
        return self._columns.disabled_reasons[self.row(at)]
