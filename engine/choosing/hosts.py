"""The hosts that plugins see while a batch is decided, as columns: the choices of the batch count already.

The columns of a compound host are sums over its tree. So a filter that passes one says that it may have what is asked, and the search
of its providers decides (compounds.py).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVarTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.candidates.columns import Flags, Floats, Ints, Rows, Scalar
from engine.choosing.compounds import CompoundFill, Compounds, WayJudge
from engine.hosts import ZONE, Aggregate, HostState, value_of
from engine.inventories import (
    AggregateId,
    ConsumerId,
    GroupId,
    GroupMember,
    ProviderId,
    ProviderState,
    ResourceAmount,
    ServerGroup,
)
from engine.picture.columns import HostProfile
from engine.picture.members import HostAggregates, Judge
from engine.picture.picture import Picture
from engine.places import is_within
from engine.requests.spec import InstanceSpec

# A picture with the choices that a batch has made so far. The picture itself is not changed: choices are written into
# copies of its columns.

Asked = TypeVarTuple("Asked")


class Occupant(Struct, frozen=True):
    """A consumer with what it holds on a host, also from pools, and its server group."""

    consumer: ConsumerId
    host: ProviderId
    held: tuple[ResourceAmount, ...]
    group: ServerGroup | None = None


def what_if(
    picture: Picture,
    judges: Sequence[WayJudge] = (),
    *,
    gone: Iterable[Occupant] = (),
    there: Iterable[Occupant] = (),
) -> "Draft":
    """The picture as it would be if these consumers were gone from their hosts, and those were there."""
    draft = Draft(picture, judges)
    for occupants, times in ((gone, -1), (there, 1)):
        for each in occupants:
            draft.count(each, times)
    return draft


class Draft:
    """A picture with the choices of a batch so far. Choices are written into copies of the picture's columns."""

    def __init__(self, picture: Picture, judges: Sequence[WayJudge] = ()) -> None:
        self.columns = picture.columns
        self.picture = picture
        self._judges = judges
        self.has_compound = bool(picture.compound.any())
        self._has_groups = False
        # Most clouds have none: then the filters about nodes cost nothing.
        self.has_nodes = bool(self.columns.node[: self.columns.rows].any())
        self.hosts = int(np.count_nonzero(self.columns.present))
        self._holding = self.columns.holding.copy()
        self.everyone = np.ones(self.columns.rows, dtype=np.bool_)
        # The rows of hosts that took an instance, one after another.
        self.takers: list[int] = []
        # Instances, and builds under way, of each host, by the column.
        self._busy: dict[str, Ints] = {}
        # No host has more than this.
        self._busiest: dict[str, int] = {}
        self._free: dict[str, Ints] = {}
        self._differ: dict[str, bool] = {}
        # Answers about all hosts, by the question, each with the number of `takers` that it counts (`Hosts.cached`).
        self.answers: dict[Hashable, tuple[NDArray[Any], int]] = {}
        # By group: the number of members on each host, and the ids of all that are known.
        self._groups: dict[GroupId, tuple[Ints, Sequence[GroupMember]]] = {}

    @cached_property
    def compounds(self) -> Compounds:
        return Compounds(self.picture, self._judges)

    def members(self, group: ServerGroup) -> tuple[Ints, Sequence[GroupMember]]:
        """The number of the group's members on each host, with those that the batch has chosen; and the members that
        were there before the batch. Some of these may be on hosts that the picture does not have.
        """
        found = self._groups.get(group.id)
        if found is None:
            known = self.picture.groups.of_group(group.id)
            counts = np.zeros(len(self._holding), dtype=np.int64)
            np.add.at(counts, [row for each in known if (row := self.picture.row_of(each.host)) >= 0], 1)
            found = self._groups[group.id] = counts, known
        return found

    def searched(self, *, has_groups: bool) -> Compounds | None:
        """The hosts that must be searched, for needs with or without granular groups; None if the columns decide about all
        hosts.
        """
        if has_groups and not self._has_groups:
            self._has_groups = True
            self.compounds.cover_everyone(self.free)
        return self.compounds if self.has_compound or has_groups else None

    def differ_in(self, column: str) -> bool:
        """Do any two hosts differ in this column of numbers? The answer is kept, since the column does not change while
        a batch is decided.
        """
        differ = self._differ.get(column)
        if differ is None:
            values = getattr(self.columns, column)[: self.columns.rows]
            differ = self._differ[column] = bool(len(values)) and bool(values.min() != values.max())
        return differ

    def filling(self, spec: InstanceSpec) -> CompoundFill | None:
        """An object that puts instances of this spec on hosts that must be searched. None if no host is compound, and
        the request has no granular groups.
        """
        compounds = self.searched(has_groups=bool(spec.groups))
        return None if compounds is None else CompoundFill(compounds, spec)

    def must_search(self, spec: InstanceSpec) -> bool:
        """Must the providers of any host be searched for this spec, since the host's columns do not say enough?"""
        return bool(spec.groups) or self.has_compound

    def free(self, resource: str) -> Ints | None:
        """The free amounts of a class; None if no host ever had an inventory of it."""
        own = self._free.get(resource)
        if own is not None:
            return own
        stock = self.columns.stocks.get(resource)
        return None if stock is None else stock.free

    def busy(self, column: str) -> Ints:
        """The numbers of `instances` or `io_ops` on each host. Choices that placement has not answered yet are included."""
        busy = self._busy.get(column)
        if busy is None:
            columns = self.columns
            # Instances as placement counts them: it judges the limit, and what a host reports of itself is late.
            told = columns.io_ops if column == "io_ops" else columns.consumers
            busy = self._busy[column] = told + self._holding
            self._busiest[column] = int(busy[: columns.rows].max(initial=0))
        return busy

    def busiest(self, column: str) -> int:
        """The largest value of `busy` that any host may have."""
        self.busy(column)
        return self._busiest[column]

    def take(self, rows: Rows, times: Ints, spec: InstanceSpec) -> None:
        """Count so many instances of this spec as placed on each of these hosts' rows. On hosts that were searched,
        `compounds` has counted their providers before.
        """
        amounts = dict(spec.amounts)
        if self._has_groups and not spec.groups:
            self.compounds.take_by_columns(rows, times, amounts)
        self.takers += rows.tolist()
        if len(rows) == 1:
            # NumPy is faster with a number than with an array of one.
            self._write(int(rows[0]), int(times[0]), amounts, spec.server_group)
        else:
            self._write(rows, times, amounts, spec.server_group)

    def count(self, occupant: Occupant, times: int) -> None:
        """Count the consumer on its host, its pools and in its server group once more, or with -1 as gone from there. This is
        called before any choice is made. A host that the picture does not have counts nothing.
        """
        host = self.picture.row_of(occupant.host)
        if host < 0:
            return
        index, in_tree = self.picture.index, Counter[str]()
        for each in occupant.held:
            row = index.row_of(each.provider)
            if row is None:
                continue
            if index.state(row).root == occupant.host:
                in_tree[each.resource] += each.amount
            if self.picture.compound[host]:
                self.compounds.room.count(row, each.resource, times * each.amount)
        self._write(host, times, in_tree, occupant.group)

    def _write(
        self, rows: Rows | int, times: Ints | int, amounts: Mapping[str, int], group: ServerGroup | None
    ) -> None:
        if group is not None:
            self.members(group)[0][rows] += times
        for resource, amount in amounts.items():
            stock = self.columns.stocks.get(resource)
            if stock is None:
                # Only sharing providers have it.
                continue
            free = self._free.get(resource)
            if free is None:
                free = self._free[resource] = stock.free.copy()
            free[rows] -= times * amount
        for busy in (self._holding, *self._busy.values()):
            busy[rows] += times
        most = times if isinstance(times, int) else int(times.max(initial=0))
        for column in self._busiest:
            self._busiest[column] += most


# Each has an entry for each host.
KEPT_MAX = 64
# More than is free on any host.
_PLENTY = 2**40
# If more than this part of all hosts took an instance, all are asked again: that costs less.
_ASKED_AGAIN_PART = 1 / 8


class Hosts:
    """Some hosts, or all, with one batch's choices counted: every answer is an array with one entry for each host, in
    the same order.

    `taken` has a number for each entry: the host is judged as if it had that many further instances, each of `amounts`. A
    host may have several entries with different numbers, so one pass computes the scores of many hosts at several counts.
    """

    def __init__(
        self,
        draft: Draft,
        rows: Rows | None = None,
        taken: Ints | None = None,
        amounts: Mapping[str, int] | None = None,
    ) -> None:
        self.picture = draft.picture
        self.columns = draft.columns
        self._draft = draft
        self._rows = rows
        self._taken = taken
        self._amounts = amounts or {}
        self._everyone: Flags | None = None
        # Filters and weighers ask for the same column.
        self._free: dict[str, Ints] = {}
        # Hosts that took an instance, by the span of the draft's `takers`: filters and weighers ask about the same ones.
        self._takers: dict[tuple[int, int], Hosts] = {}

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

    def cached(
        self,
        answer: Callable[["Hosts", *Asked], NDArray[Scalar]],
        *asked: *Asked,
        is_steady: bool = False,
    ) -> NDArray[Scalar]:
        """The result of `answer` for these hosts, and for what is `asked`; callers must not write into the array. If they
        are all hosts, it is kept for the batch, since the specs of a batch often ask the same.

        The function and its arguments are the key. So `answer` must be a function of a module: such a one can read nothing
        of a spec that the key leaves out.

        Hosts that took an instance since are asked again. Not if the answer `is_steady`: it does not depend on what the
        batch takes.
        """
        if self._rows is not None:
            return answer(self, *asked)
        answers, takers = self._draft.answers, self._draft.takers
        question = answer, asked
        values, seen = answers.pop(question, (None, 0))
        if values is None or (not is_steady and len(takers) - seen > len(self) * _ASKED_AGAIN_PART):
            values = answer(self, *asked)
        elif not is_steady and seen < len(takers):
            values = values.copy()
            span = seen, len(takers)
            some = self._takers.get(span)
            if some is None:
                rows = np.array(takers[seen:], dtype=np.intp)
                some = self._takers[span] = Hosts(self._draft, rows)
            values[some.rows] = answer(some, *asked)
        if len(answers) >= KEPT_MAX:
            # The one that was asked for the longest time ago.
            del answers[next(iter(answers))]
        answers[question] = values, len(takers)
        return values

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
        codes = self.picture.aggregates.sets_with(set(aggregates))
        return np.isin(self.of(self.columns.aggregates), codes)

    def in_zone(self, zone: str) -> Flags:
        return np.equal(self.of(self.columns.zone), self.columns.zones.find(zone))

    def within(self, place: str) -> Flags:
        """The hosts in this domain (engine/places.py)."""
        inside = np.array([is_within(each, place) for each in self.columns.places.names])
        return inside[self.of(self.columns.place)]

    def in_cell(self, cell: str) -> Flags:
        return np.equal(self.of(self.columns.cell), self.columns.cells.find(cell))

    def named(self, names: tuple[str, ...]) -> Flags:
        """The hosts with one of these names, which are in lower case, and may have a cell before them (`c1/h1`)."""
        named = np.zeros(self.columns.rows, dtype=np.bool_)
        for name in names:
            for row in self.picture.rows_named(name):
                named[row] = True
        return self.of(named)

    def cells_named(self, name: str) -> list[str]:
        """The cells that have a host with this name."""
        return self.picture.cells_named(name)

    def with_all(self, traits: tuple[str, ...]) -> Flags:
        """The hosts whose trees have all of these traits, at one provider or at several."""
        having = [self.with_any((trait,)) for trait in traits]
        if not having:
            return self.everyone()
        have: Flags = having[0] if len(having) == 1 else np.logical_and.reduce(having)
        return have

    def with_any(self, traits: tuple[str, ...]) -> Flags:
        return self.of(self.columns.traits.having_any(traits, slice(self.columns.rows)))

    # Inventories

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
        return self.picture.aggregates

    def by_aggregates(self, judge: Judge, *asked: Hashable) -> NDArray[Any]:
        """The judge's answer about each host's aggregates, and about what is `asked`. It is called once for each set of
        aggregates, and the answers are kept.
        """
        return self.metadata.answers(judge, *asked)[self.of(self.columns.aggregates)]

    def number(self, key: str, otherwise: float) -> float | Floats:
        """The number that each host's aggregates have under this key, the lowest of several; `otherwise` without one."""
        if key not in self.metadata.keys:
            return otherwise
        numbers: Floats = self.metadata.numbers(key, otherwise)
        return numbers[self.of(self.columns.aggregates)]

    def domains(self, key: str) -> Ints:
        """For each host the number of its domain. The hosts with one value of this key in their aggregates' metadata
        are a domain; so are all hosts without a value.
        """
        if key == ZONE:
            # A host may report its zone itself.
            return self.of(self.columns.zone)
        values = self.metadata.answers(_value_under, key)
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

    def lost_by(self, amounts: tuple[tuple[str, int], ...]) -> Floats | None:
        """How much room for the usual shapes each host loses by one instance more with these amounts (engine/picture/usual.py).
        Callers must not write into the array. None if nothing was asked for yet.
        """
        usual = self.picture.usual
        if self._taken is not None or len(self) < self.columns.rows * _ASKED_AGAIN_PART:
            return usual.lost_there(amounts, self.free_with_pools)
        everyone = self if self._rows is None else Hosts(self._draft)
        lost = usual.lost_by(amounts, everyone.free_with_pools, self._draft.takers)
        return None if lost is None else self.of(lost)

    def free_with_pools(self, resource: str) -> Ints:
        """As `free`; but a host may take as much as it likes of what a pool shares with it."""
        free = self.free(resource)
        if not self.picture.index.sharing:
            return free
        return np.where(self.shared(resource) >= 0, _PLENTY, free)

    def giving(self, resource: str, amount: int) -> Flags:
        """The hosts that have this amount free, and whose inventories allow it: min_unit, max_unit and step_size.
        Callers must not write into the array.
        """
        return self.cached(_gives, resource, amount)

    # Compound hosts

    def shared(self, resource: str) -> Ints:
        """The largest free amount of a class at one provider that shares with the host; -1 where none shares it."""
        most = self.compounds.pools.most(resource)
        return np.full(len(self), -1, dtype=np.int64) if most is None else self.of(most)

    def are_searched(self, *, has_groups: bool) -> Flags:
        """The hosts whose providers must be searched, for needs with or without granular groups."""
        compounds = self._draft.searched(has_groups=has_groups)
        return ~self.everyone() if compounds is None else self.of(compounds.flags(has_groups=has_groups))

    def may_share(self, resource: str, amount: int) -> Flags | None:
        """The hosts that may take this amount from one pool; None if no pool has the class."""
        shared = self.compounds.pools.most_at_first(resource)
        return None if shared is None else self.of(shared) >= amount

    def may_have_all(self, traits: Iterable[str]) -> Flags:
        """The hosts whose trees have all of these traits. A trait that any pool has is not looked for, since a host may
        get it from the pool.
        """
        of_pools = self.compounds.pools.traits
        return self.with_all(tuple([trait for trait in dict.fromkeys(traits) if trait not in of_pools]))

    def some_are_searched(self, spec: InstanceSpec) -> bool:
        """Must the providers of any host be searched for this spec?"""
        return self._draft.must_search(spec)

    @property
    def compounds(self) -> Compounds:
        return self._draft.compounds

    # Server groups

    def members(self, group: ServerGroup) -> Ints:
        """How many members of the group each host has, with those that this batch has chosen."""
        members = self.of(self._draft.members(group)[0])
        return members if self._taken is None else members + self._taken

    def members_before(self, group: ServerGroup) -> Sequence[GroupMember]:
        """The members that the group had before this batch, on hosts of the picture or not."""
        return self._draft.members(group)[1]

    def has_members(self, group: ServerGroup) -> bool:
        """Has the group any member, on a host of the picture or not?"""
        counts, known = self._draft.members(group)
        return bool(known) or bool(counts.any())

    def members_inside(self, group: ServerGroup, level: int, mover: ConsumerId | None) -> Ints:
        """How many members of the group are in each host's domain of this level, with those that this batch has chosen, and
        without the one that moves.
        """
        domains = self.columns.domain(level)
        counts, known = self._draft.members(group)
        inside = np.bincount(domains, weights=counts)
        for each in known if mover is not None else ():
            if each.consumer == mover and (row := self.picture.row_of(each.host)) >= 0:
                inside[domains[row]] -= 1
        return inside[self.of(domains)].astype(np.int64) + self.taken

    def members_in_all(self, group: ServerGroup, mover: ConsumerId | None) -> int:
        """How many members the group has, on hosts of the picture or not, without the one that moves."""
        counts, known = self._draft.members(group)
        unknown = sum(self.picture.row_of(each.host) < 0 for each in known)
        return int(counts.sum()) + unknown - any(each.consumer == mover for each in known)

    def load_of_domains(self, key: str) -> Ints:
        """For each domain of this key (see `domains`), how many instances all its hosts have together."""
        everyone = Hosts(self._draft)
        load = np.bincount(everyone.domains(key), weights=everyone.busy("instances") * everyone.present)
        return load.astype(np.int64)

    @property
    def take_more(self) -> bool:
        """Is each host assumed to have instances more than now?"""
        return self._taken is not None

    @property
    def taken(self) -> Ints | int:
        """How many instances more than now each host is assumed to have."""
        return 0 if self._taken is None else self._taken

    # Load

    def have_fewer(self, column: str, limit: float | Floats) -> Flags:
        """The hosts with fewer `instances` or `io_ops` (as `column` says) than this limit, or than each host's own
        limit.
        """
        if isinstance(limit, float | int) and self._taken is None and self._draft.busiest(column) < limit:
            return self.everyone()
        fewer: Flags = self.busy(column) < limit
        return fewer

    def busy(self, column: str) -> Ints:
        """The `instances` of each host as placement counts them, or the `io_ops` (builds and the like under way) that the
        host reports; both with unanswered choices.
        """
        busy = self.of(self._draft.busy(column))
        return busy if self._taken is None else busy + self._taken


def _gives(hosts: Hosts, resource: str, amount: int) -> Flags:
    stock = hosts.columns.stocks.get(resource)
    giving: Flags = hosts.free(resource) >= amount
    if stock is not None and stock.has_limits:
        # Without an inventory nothing is free.
        giving &= stock.allowing(amount, hosts.rows)
    return giving


def _value_under(aggregates: tuple[Aggregate, ...], key: str) -> str:
    return value_of(key, aggregates)


# One host of those that a filter has judged: the facts that the reason of a refusal names.


class OneHost:
    """The host at the position `at` of some hosts. Each answer is that of the same question to `hosts`, for this host."""

    def __init__(self, hosts: Hosts, at: int) -> None:
        self.hosts = hosts
        self.at = at
        self.row = hosts.row(at)
        self._columns = hosts.columns

    @property
    def name(self) -> str:
        return self._columns.names[self.row]

    @property
    def cell(self) -> str:
        return self._columns.cells.names[int(self._columns.cell[self.row])]

    @property
    def why_cell_is_down(self) -> str:
        return self._columns.cells_down.get(int(self._columns.cell[self.row]), "")

    @property
    def zone(self) -> str:
        code = int(self._columns.zone[self.row])
        return self._columns.zones.names[code] if self._columns.registered[self.row] else ""

    @property
    def place(self) -> str:
        return self._columns.places.names[int(self._columns.place[self.row])]

    @property
    def is_node(self) -> bool:
        """Is it a bare-metal node?"""
        return bool(self._columns.node[self.row])

    @property
    def projects(self) -> tuple[str, ...]:
        """The projects that the host is bound to."""
        return self._columns.project_sets.names[int(self._columns.projects[self.row])]

    @property
    def profile(self) -> HostProfile:
        return self._columns.profiles.names[int(self._columns.profile[self.row])]

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """The aggregates of the host that have metadata."""
        return self.hosts.metadata.of_set(int(self._columns.aggregates[self.row]))

    def is_in(self, aggregates: tuple[AggregateId, ...]) -> bool:
        """Is its root provider in one of these aggregates?"""
        return bool(self.hosts.in_any_aggregate(aggregates)[self.at])

    @property
    def registered(self) -> HostState | None:
        """The state of the host, as the host registry has it."""
        return self.hosts.picture.registered(self.row)

    def metric(self, name: str) -> float:
        """The value of this metric; NaN if the host does not report it."""
        return float(self.hosts.metric(name)[self.at])

    # Room

    @property
    def classes(self) -> list[str]:
        """The resource classes that the host has an inventory of."""
        stocks = self._columns.stocks.items()
        return sorted(resource for resource, stock in stocks if stock.step_size[self.row])

    def bounds(self, resource: str) -> tuple[int, int, int, int]:
        """Capacity, min_unit, max_unit and step_size; all 0 without an inventory of the class."""
        stock, row = self._columns.stocks.get(resource), self.row
        if stock is None or not stock.step_size[row]:
            return 0, 0, 0, 0
        columns = (stock.capacity, stock.min_unit, stock.max_unit, stock.step_size)
        capacity, min_unit, max_unit, step_size = [int(column[row]) for column in columns]
        return capacity, min_unit, max_unit, step_size

    def free(self, resource: str) -> int:
        return int(self.hosts.free(resource)[self.at])

    def busy(self, column: str) -> int:
        return int(self.hosts.busy(column)[self.at])

    def has_trait(self, trait: str) -> bool:
        return bool(self.hosts.with_any((trait,))[self.at])

    @property
    def is_compound(self) -> bool:
        return bool(self.hosts.picture.compound[self.row])

    @property
    def compounds(self) -> Compounds:
        return self.hosts.compounds

    @property
    def providers(self) -> list[ProviderState]:
        """All providers that instances on this host may take from."""
        return self.compounds.pools.providers_for(self.row)

    # Server groups

    def members_count(self, group: ServerGroup) -> int:
        """How many members of the group the host has, with those that this batch has chosen."""
        return int(self.hosts.members(group)[self.at])

    def members(self, group: ServerGroup) -> list[ConsumerId]:
        """The members on the host, without those that this batch has chosen."""
        host = self._columns.ids[self.row]
        return [each.consumer for each in self.hosts.members_before(group) if each.host == host]

    def first_member(self, group: ServerGroup) -> tuple[ConsumerId, str] | None:
        """A member that the group had before this batch, with the name of its host, or with the host's id if the
        picture does not have that host. None if there is no such member.
        """
        for each in self.hosts.members_before(group):
            row = self.hosts.picture.row_of(each.host)
            return each.consumer, str(each.host) if row < 0 else self._columns.names[row]
        return None
