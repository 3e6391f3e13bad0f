"""The facts about hosts that plugins see, as columns: no choice of a batch changes them."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bus.message import AggregateId
from bus.messages.aggregates import Aggregate
from bus.messages.hosts import HostState
from placement_worker.core.candidates.columns import Flags, Floats, Ints, Rows, Scalar
from scheduler_worker.core.aggregates.metadata import ZONE, value_of
from scheduler_worker.core.choosing.draft import Draft
from scheduler_worker.core.picture.aggregates import HostAggregates, Judge
from scheduler_worker.core.picture.columns import HostProfile


class HostFactColumns:
    """Some hosts, or all: every answer is an array with one entry for each host, in the same order."""

    def __init__(self, draft: Draft, rows: Rows | None = None) -> None:
        self._draft = draft
        self.columns = draft.columns
        self._rows = rows
        self._everyone: Flags | None = None

    def __len__(self) -> int:
        return self.columns.rows if self._rows is None else len(self._rows)

    @property
    def rows(self) -> Rows | slice:
        """The row numbers of these hosts in the picture's columns."""
        return slice(self.columns.rows) if self._rows is None else self._rows

    @property
    def are_some(self) -> bool:
        """Does this object have only some of the picture's hosts?"""
        return self._rows is not None

    def row(self, at: int) -> int:
        return at if self._rows is None else int(self._rows[at])

    def of(self, column: NDArray[Scalar]) -> NDArray[Scalar]:
        """The entries of one of the `columns` for these hosts."""
        return column[: self.columns.rows] if self._rows is None else column[self._rows]

    def kept(self, question: Hashable, answer: Callable[[], Flags]) -> Flags:
        """The result of `answer` for these hosts. If they are all hosts, it is kept under `question` for the whole
        batch; so it must not depend on what the batch takes.
        """
        if self._rows is not None:
            return answer()
        kept = self._draft.kept_answers
        if question not in kept:
            kept[question] = answer()
        return kept[question]

    def rows_at(self, positions: Rows) -> Rows:
        return positions if self._rows is None else self._rows[positions]

    # Facts

    def everyone(self) -> Flags:
        """A flag for each host, all true; callers must not write into the array."""
        if self._everyone is None:
            everyone = self._draft.everyone
            self._everyone = everyone if self._rows is None else np.ones(len(self), dtype=np.bool_)
        return self._everyone

    @property
    def present(self) -> Flags:
        return self.of(self.columns.present)

    @property
    def some_are_nodes(self) -> bool:
        """Is any host of the picture a bare-metal node?"""
        return self._draft.has_nodes

    @property
    def nodes(self) -> Flags:
        return self.of(self.columns.node)

    def open_to(self, project: str) -> Flags:
        """The hosts that are bound to no project, or to this one among others."""
        sets = enumerate(self.columns.project_sets.names)
        codes = [code for code, projects in sets if not projects or project in projects]
        return np.isin(self.of(self.columns.projects), codes)

    def in_any_aggregate(self, aggregates: Iterable[AggregateId]) -> Flags:
        """The hosts whose root provider is in one of these aggregates."""
        codes = self._draft.picture.aggregates.sets_with(set(aggregates))
        return np.isin(self.of(self.columns.aggregates), codes)

    def in_zone(self, zone: str) -> Flags:
        return np.equal(self.of(self.columns.zone), self.columns.zones.find(zone))

    def in_cell(self, cell: str) -> Flags:
        return np.equal(self.of(self.columns.cell), self.columns.cells.find(cell))

    def named(self, names: tuple[str, ...]) -> Flags:
        """The hosts with one of these names, which are in lower case, and may have a cell before them (`c1/h1`)."""
        named = np.zeros(self.columns.rows, dtype=np.bool_)
        for name in names:
            for row in self._draft.picture.rows_named(name):
                named[row] = True
        return self.of(named)

    def cells_named(self, name: str) -> list[str]:
        """The cells that have a host with this name."""
        return self._draft.picture.cells_named(name)

    def with_all(self, traits: tuple[str, ...]) -> Flags:
        """The hosts whose trees have all of these traits, at one provider or at several."""
        having = [self.with_any((trait,)) for trait in traits]
        if not having:
            return self.everyone()
        have: Flags = having[0] if len(having) == 1 else np.logical_and.reduce(having)
        return have

    def with_any(self, traits: tuple[str, ...]) -> Flags:
        return self.of(self.columns.traits.having_any(traits, self.columns.rows))

    # Inventories

    def bounds(self, resource: str, at: int) -> tuple[int, int, int, int]:
        """Capacity, min_unit, max_unit and step_size of one host; all 0 without an inventory of the class."""
        stock = self.columns.stocks.get(resource)
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
        """The hosts that have an inventory of this class."""
        stock = self.columns.stocks.get(resource)
        # Without an inventory the step is 0.
        return ~self.everyone() if stock is None else self.of(stock.step_size) > 0

    def stocked_with_any(self, classes: Iterable[str]) -> Flags:
        """The hosts that have an inventory, not a shared one, of one of these classes."""
        stocked = ~self.everyone()
        for resource in classes:
            stocked |= self.stocked(resource)
        return stocked

    # Aggregates

    @property
    def metadata(self) -> HostAggregates:
        """The metadata of all aggregates."""
        return self._draft.picture.aggregates

    def by_aggregates(self, question: Hashable, judge: Judge) -> NDArray[Any]:
        """The judge's answer about each host's aggregates. It is asked once for each set of aggregates, and the answers are
        kept for the same question.
        """
        return self.metadata.answers(question, judge)[self.of(self.columns.aggregates)]

    def aggregates(self, at: int) -> tuple[Aggregate, ...]:
        """The aggregates of one host that have metadata."""
        return self.metadata.of_set(int(self.columns.aggregates[self.row(at)]))

    def number(self, key: str, otherwise: float) -> float | Floats:
        """The number that each host's aggregates have under this key, the lowest of several; `otherwise` without one."""
        numbers = self.metadata.numbers(key, otherwise)
        return otherwise if numbers is None else numbers[self.of(self.columns.aggregates)]

    def domains(self, key: str) -> Ints:
        """For each host the number of its domain. The hosts with one value of this key in their aggregates' metadata
        are a domain; so are all hosts without a value.
        """
        if key == ZONE:
            # A host may report its zone itself.
            return self.of(self.columns.zone)
        values = self.metadata.answers(("value of", key), lambda each: value_of(key, each))
        domains: Ints = np.unique(values, return_inverse=True)[1].astype(np.int64)
        return domains[self.of(self.columns.aggregates)]

    # What hosts tell

    def judged(self, judge: Callable[[HostProfile], bool]) -> Flags:
        """The hosts that the function `judge` accepts. Hosts with equal facts share a profile (HostProfile), and `judge` is called
        once for each profile.
        """
        profiles = self.columns.profiles.names
        verdicts = np.fromiter((judge(profile) for profile in profiles), dtype=np.bool_, count=len(profiles))
        accepted: Flags = verdicts[self.of(self.columns.profile)]
        return accepted

    def profile(self, at: int) -> HostProfile:
        return self.columns.profiles.names[int(self.columns.profile[self.row(at)])]

    def metric(self, name: str) -> Floats:
        """The value of this metric for each host; NaN for a host that does not report it."""
        column = self.columns.metrics.get(name)
        return np.full(len(self), np.nan) if column is None else self.of(column)

    def some_tell(self, names: Iterable[str]) -> bool:
        """Has any host ever reported one of these metrics?"""
        return not self.columns.metrics.keys().isdisjoint(names)

    def differ_in(self, column: str) -> bool:
        """Do any two hosts of the picture differ in this column? If not, a weigher need not look at it."""
        return self._draft.differ_in(column)

    # Names

    def name(self, at: int) -> str:
        return self.columns.names[self.row(at)]

    def cell_name(self, at: int) -> str:
        return self.columns.cells.names[int(self.columns.cell[self.row(at)])]

    def projects(self, at: int) -> tuple[str, ...]:
        """The projects that the host is bound to."""
        return self.columns.project_sets.names[int(self.columns.projects[self.row(at)])]

    def classes(self, at: int) -> list[str]:
        """The resource classes that the host has an inventory of."""
        row = self.row(at)
        return sorted(resource for resource, stock in self.columns.stocks.items() if stock.step_size[row])

    def zone_name(self, at: int) -> str:
        row = self.row(at)
        return self.columns.zones.names[int(self.columns.zone[row])] if self.columns.registered[row] else ""

    def registered(self, at: int) -> HostState | None:
        """The state of the host at this position, as the host registry has it."""
        return self._draft.picture.registered(self.row(at))
