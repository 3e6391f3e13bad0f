"""The columns of hosts that plugins see while a batch is decided: the choices of the batch count already.

The picture is not changed: the choices of a batch are written into copies of its columns.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bus.message import AggregateId, ConsumerId
from bus.messages.aggregates import Aggregate
from bus.messages.placement import GroupMember, ProviderState, ServerGroup
from placement_worker.core.candidates.columns import Flags, Floats, Ints, Rows, Scalar
from scheduler_worker.core.aggregates.metadata import ZONE, least_of, value_of
from scheduler_worker.core.choosing.compounds import CompoundFill, Compounds, FreeAtProvider, Pool
from scheduler_worker.core.choosing.needs import Needs, needs_of
from scheduler_worker.core.choosing.ways.judge import WayJudge
from scheduler_worker.core.picture.aggregates import HostAggregates, Judge
from scheduler_worker.core.picture.columns import HostProfile
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec


class Draft:
    """A picture with the choices of a batch so far."""

    def __init__(self, picture: Picture, judges: Sequence[WayJudge] = ()) -> None:
        self.columns = picture.columns
        self.picture = picture
        self._judges = judges
        self.compounds = Compounds(picture, judges) if picture.compound.any() else None
        # Most clouds have none: then the filters about nodes cost nothing.
        self.has_nodes = bool(self.columns.node[: self.columns.rows].any())
        self.holding = self.columns.holding.copy()
        self._free: dict[str, Ints] = {}
        self._differ: dict[str, bool] = {}
        # By group: the number of members on each host, and the ids of all that are known.
        self._groups: dict[int, tuple[Ints, Sequence[GroupMember]]] = {}

    def members(self, group: ServerGroup) -> Ints:
        """How many members of the group each host has, with those that the batch has chosen."""
        return self._members(group)[0]

    def known_members(self, group: ServerGroup) -> Sequence[GroupMember]:
        """Without those that the batch has chosen; some may be on hosts that the picture does not have."""
        return self._members(group)[1]

    def _members(self, group: ServerGroup) -> tuple[Ints, Sequence[GroupMember]]:
        found = self._groups.get(group.id.int)
        if found is None:
            known = self.picture.groups.of_group(group.id)
            counts = np.zeros(len(self.holding), dtype=np.int64)
            rows = [row for each in known if (row := self.picture.row_of(each.host)) >= 0]
            np.add.at(counts, rows, 1)
            found = self._groups[group.id.int] = counts, known
        return found

    def searched(self, needs: Needs) -> Compounds | None:
        """The hosts that must be searched for these needs; None if the columns decide about all hosts."""
        if needs.groups:
            if self.compounds is None:
                self.compounds = Compounds(self.picture, self._judges)
            self.compounds.cover_everyone(self.free)
        return self.compounds

    def differ_in(self, column: str) -> bool:
        """Do any two hosts differ in this column of numbers? It does not change while a batch is decided."""
        differ = self._differ.get(column)
        if differ is None:
            values = getattr(self.columns, column)[: self.columns.rows]
            differ = self._differ[column] = bool(len(values)) and bool(values.min() != values.max())
        return differ

    def domains(self, key: str) -> Ints:
        """The domain of each set of aggregates; or of each host, for zones, which a host may report itself."""
        if key == ZONE:
            return self.columns.zone
        aggregates = self.picture.aggregates
        values = aggregates.answers(("value of", key), lambda each: value_of(key, each))
        return np.unique(values, return_inverse=True)[1].astype(np.int64)

    def load_of_domains(self, key: str) -> Ints:
        everyone = Hosts(self)
        load: Ints = np.bincount(everyone.domains(key), weights=everyone.instances * everyone.present).astype(
            np.int64
        )
        return load

    def filling(self, spec: InstanceSpec) -> CompoundFill | None:
        """None if no host is compound, and the request has no groups."""
        compounds = self.searched(needs_of(spec))
        return None if compounds is None else CompoundFill(compounds, spec)

    def free(self, resource: str) -> Ints | None:
        """The free amounts of a class; None if no host ever had an inventory of it."""
        own = self._free.get(resource)
        if own is not None:
            return own
        stock = self.columns.stocks.get(resource)
        return None if stock is None else stock.free

    def take(self, rows: Rows, times: Ints, spec: InstanceSpec) -> None:
        """These rows take so many instances each. `compounds` counts the providers of the hosts that were searched."""
        if spec.server_group is not None:
            self.members(spec.server_group)[rows] += times
        amounts = dict(spec.amounts)
        if self.compounds is not None and not spec.groups:
            self.compounds.take_by_columns(rows, times, amounts)
        for resource, amount in amounts.items():
            stock = self.columns.stocks.get(resource)
            if stock is None:
                # Only sharing providers have it.
                continue
            free = self._free.get(resource)
            if free is None:
                free = self._free[resource] = stock.free.copy()
            free[rows] -= times * amount
        self.holding[rows] += times


class Hosts:
    """Some hosts, or all: every answer is an array with one entry for each host, in the same order.

    With `taken`, each host has taken that many more instances of `amounts`, and a host may be here several times. So one
    pass computes the scores of many hosts at several counts.
    """

    def __init__(
        self,
        draft: Draft,
        rows: Rows | None = None,
        taken: Ints | None = None,
        amounts: Mapping[str, int] | None = None,
    ) -> None:
        self._draft = draft
        self.columns = draft.columns
        self._rows = rows
        self._taken = taken
        self._amounts = amounts or {}
        self._everyone: Flags | None = None
        # Filters and weighers ask for the same column.
        self._free: dict[str, Ints] = {}

    def __len__(self) -> int:
        return self.columns.rows if self._rows is None else len(self._rows)

    @property
    def rows(self) -> Rows | slice:
        """Their rows in the columns."""
        return slice(self.columns.rows) if self._rows is None else self._rows

    def row(self, at: int) -> int:
        return at if self._rows is None else int(self._rows[at])

    def of(self, column: NDArray[Scalar]) -> NDArray[Scalar]:
        """The entries of one of the `columns` for these hosts."""
        return column[: self.columns.rows] if self._rows is None else column[self._rows]

    # Room

    def free(self, resource: str) -> Ints:
        """The amount that is neither used nor held by an unanswered choice. Negative where an inventory shrank."""
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
            self.of(column) if self._taken is None or not amount else self.of(column) - self._taken * amount
        )

    def within_bounds(self, resource: str, amount: int) -> Flags:
        """Does the amount keep min_unit, max_unit and step_size?"""
        within = self.everyone()
        stock = self.columns.stocks.get(resource)
        if stock is None:
            return within
        if stock.has_min_unit:
            within = within & (self.of(stock.min_unit) <= amount)
        if stock.has_max_unit:
            within = within & (self.of(stock.max_unit) >= amount)
        if stock.has_step_size:
            # Without an inventory the step is 0, and `free` is 0, too.
            within = within & (amount % np.maximum(self.of(stock.step_size), 1) == 0)
        return within

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

    def stocked_with_any(self, amounts: Iterable[tuple[str, int]]) -> Flags:
        """The hosts that have an inventory, not a shared one, of one of these classes."""
        stocked = ~self.everyone()
        for resource, _ in amounts:
            stocked |= self.stocked(resource)
        return stocked

    # Compound hosts

    def shared(self, resource: str) -> Ints:
        """The largest free amount of a class at one provider that shares with the host; -1 where none shares it."""
        compounds = self._draft.compounds
        if compounds is None:
            return np.full(len(self), -1, dtype=np.int64)
        return self.of(compounds.shared(resource))

    def pools(self, resource: str) -> list[Pool]:
        """The sharing providers with an inventory of a class. Only of all hosts of a draft, not of some."""
        assert self._rows is None, "pools name the hosts that may use them by row"
        return [] if self._draft.compounds is None else list(self._draft.compounds.pools(resource))

    def decided(self, by_columns: Flags, needs: Needs) -> Flags:
        """The columns decide about most hosts, and the search about compound ones. With `taken`, compound hosts pass: each
        is searched when an instance takes it. A host whose search was cut passes, too.
        """
        compounds = self._draft.searched(needs)
        if compounds is None:
            return by_columns
        flags = compounds.flags(needs)
        if self._taken is not None:
            return by_columns | self.of(flags)
        found = compounds.found(needs)
        # Hosts that were cut, and those whose ways were struck, are left to the filters that say so.
        passed = found.flags | (found.cut > 0)
        if found.some_are_struck:
            passed |= found.struck > 0
        return np.where(self.of(flags), self.of(passed), by_columns)

    def cut(self, needs: Needs) -> Ints | None:
        """The number of steps after which the search of each host was cut, 0 if it was not; None if none was searched."""
        compounds = self._draft.searched(needs)
        return None if compounds is None else self.of(compounds.found(needs).cut)

    def struck(self, needs: Needs) -> Ints | None:
        """The number of ways that plugins struck, of hosts that were left with none; None if they struck none."""
        compounds = self._draft.searched(needs)
        found = None if compounds is None else compounds.found(needs)
        if found is None or not found.some_are_struck:
            return None
        return self.of(found.struck * ~found.flags)

    def worth(self, needs: Needs) -> tuple[Flags, Floats] | None:
        """Which hosts are searched, and what the preferred traits of their candidates are worth; None if none is searched."""
        compounds = self._draft.searched(needs)
        return (
            None if compounds is None else (self.of(compounds.flags(needs)), self.of(compounds.worth(needs)))
        )

    def can_give(self, at: int, needs: Needs) -> bool:
        """Has one host, which is searched, all of this?"""
        compounds = self._draft.searched(needs)
        assert compounds is not None, "the host is searched"
        return compounds.can_give(needs, self.row(at))

    @property
    def some_are_compound(self) -> bool:
        return self._draft.compounds is not None

    def is_compound(self, at: int) -> bool:
        return self._draft.compounds is not None and bool(self._draft.picture.compound[self.row(at)])

    def providers_for(self, at: int, resource: str = "") -> list[FreeAtProvider]:
        """All providers that instances on a compound host may take from; with a class, those that have an inventory of it."""
        assert self._draft.compounds is not None, "there are compound hosts"
        return list(self._draft.compounds.providers_for(self.row(at), resource))

    def free_at(self, provider: ProviderState, resource: str) -> int:
        """The free amount of one class at a provider of a host that is searched."""
        assert self._draft.compounds is not None, "the host is searched"
        return self._draft.compounds.free_at(provider.id, resource)

    # Facts

    def everyone(self) -> Flags:
        """All true; callers must not write into it."""
        if self._everyone is None:
            self._everyone = np.ones(len(self), dtype=np.bool_)
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
        return np.isin(self.of(self.columns.projects), self.columns.sets_open_to(project))

    def in_any_aggregate(self, aggregates: Iterable[AggregateId]) -> Flags:
        """The hosts whose root provider is in one of these."""
        codes = self._draft.picture.aggregates.sets_with(set(aggregates))
        return np.isin(self.of(self.columns.aggregates), codes)

    def in_zone(self, zone: str) -> Flags:
        code = self.columns.zones.find(zone)
        return np.equal(self.of(self.columns.zone), code)

    def named(self, names: tuple[str, ...]) -> Flags:
        """The hosts with one of these names, which are in lower case."""
        named = np.zeros(self.columns.rows, dtype=np.bool_)
        for name in names:
            for row in self._draft.picture.rows_named(name):
                named[row] = True
        return self.of(named)

    def places_named(self, name: str) -> list[int]:
        """The positions, among all hosts, of those with this name, which is in lower case."""
        return sorted(self._draft.picture.rows_named(name))

    def with_all(self, traits: tuple[str, ...]) -> Flags:
        """The hosts whose trees have all of these traits, at one provider or at several."""
        having = [self.with_any((trait,)) for trait in traits]
        if not having:
            return self.everyone()
        have: Flags = having[0] if len(having) == 1 else np.logical_and.reduce(having)
        return have

    def with_any(self, traits: tuple[str, ...]) -> Flags:
        return self.of(self.columns.traits.having_any(traits, self.columns.rows))

    # Server groups

    def members(self, group: ServerGroup) -> Ints:
        """How many members of the group each host has, with those that this batch has chosen."""
        members = self.of(self._draft.members(group))
        return members if self._taken is None else members + self._taken

    def members_at(self, group: ServerGroup, at: int) -> list[ConsumerId]:
        """The members on one host, without those that this batch has chosen."""
        host = self.columns.ids[self.row(at)]
        return [each.consumer for each in self._draft.known_members(group) if each.host == host]

    def first_member(self, group: ServerGroup) -> tuple[ConsumerId, str] | None:
        """A member of the group, and the name of its host; of a host that the picture does not have, the id."""
        for each in self._draft.known_members(group):
            row = self._draft.picture.row_of(each.host)
            return each.consumer, str(each.host) if row < 0 else self.columns.names[row]
        return None

    def has_members(self, group: ServerGroup) -> bool:
        """Has the group any member, on a host of the picture or not?"""
        return bool(self._draft.known_members(group)) or bool(self._draft.members(group).any())

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

    def number_at(self, at: int, key: str, otherwise: float) -> float:
        return least_of(key, self.aggregates(at), otherwise)

    def domains(self, key: str) -> Ints:
        """A small number for each host: hosts with the same value of this key have the same one, and those without any, too."""
        found = self._draft.domains(key)
        return self.of(found) if key == ZONE else found[self.of(self.columns.aggregates)]

    def load_of_domains(self, key: str) -> Ints:
        """How many instances all hosts of each domain have together."""
        return self._draft.load_of_domains(key)

    @property
    def taken(self) -> Ints | int:
        """How many instances more than now each host has taken."""
        return 0 if self._taken is None else self._taken

    # What hosts tell

    def judged(self, judge: Callable[[HostProfile], bool]) -> Flags:
        """The hosts whose profile the judge accepts. It is asked once for each profile, not for each host."""
        profiles = self.columns.profiles.names
        verdicts = np.fromiter((judge(profile) for profile in profiles), dtype=np.bool_, count=len(profiles))
        accepted: Flags = verdicts[self.of(self.columns.profile)]
        return accepted

    def profile(self, at: int) -> HostProfile:
        return self.columns.profiles.names[int(self.columns.profile[self.row(at)])]

    def metric(self, name: str) -> Floats:
        """NaN for a host that does not tell it."""
        column = self.columns.metrics.get(name)
        return np.full(len(self), np.nan) if column is None else self.of(column)

    def some_tell(self, names: Iterable[str]) -> bool:
        """Has any host ever told one of these metrics?"""
        return not self.columns.metrics.keys().isdisjoint(names)

    @property
    def stocked_classes(self) -> list[str]:
        """The resource classes that any host ever had an inventory of."""
        return sorted(self.columns.stocks)

    def differ_in(self, column: str) -> bool:
        """Do any two hosts of the picture differ in this column? If not, a weigher need not look at it."""
        return self._draft.differ_in(column)

    # Load

    @property
    def failed_builds(self) -> Ints:
        """Builds that failed on each host since the last one that succeeded."""
        return self.of(self.columns.failed_builds)

    @property
    def hypervisor_versions(self) -> Ints:
        return self.of(self.columns.hypervisor_version)

    @property
    def instances(self) -> Ints:
        """The instances of each host, and unanswered choices. Placement counts instances that are still to be built, the
        host counts instances without a claim: the larger number is taken.
        """
        columns = self.columns
        return self._busy(np.maximum(self.of(columns.instances), self.of(columns.consumers)))

    @property
    def io_ops(self) -> Ints:
        """Builds and the like under way on each host, and unanswered choices."""
        return self._busy(self.of(self.columns.io_ops))

    def _busy(self, already: Ints) -> Ints:
        busy = already + self.of(self._draft.holding)
        return busy if self._taken is None else busy + self._taken

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

    def disabled_reason(self, at: int) -> str:
        return self.columns.disabled_reasons[self.row(at)]
