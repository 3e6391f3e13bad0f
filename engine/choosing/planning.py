"""What would fit where, why not, and which smaller demand would help: hosts are filtered and counted as for a choice."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from engine.candidates.columns import Flags, Rows, Scalar
from engine.choosing.choosing import Chosen, choose, choose_together
from engine.choosing.explaining import explain, failures, judged
from engine.choosing.hosts import Draft, Hosts, OneHost
from engine.choosing.plugins import BAND, Plugins, Scoring, room_on, together
from engine.inventories import INSTANCES, ProviderId, QuotaState
from engine.picture.picture import Picture
from engine.refusals import (
    ExhaustedPool,
    HostVerdict,
    NoValidHost,
    OverLimit,
    PlannedCell,
    PlannedFlavor,
    QuotaRoom,
    Relaxation,
)
from engine.requests import Alternative
from engine.requests.spec import GranularGroup, InstanceSpec, needs_of

# The step that stands for hosts which no step removes.
QUALIFY = "qualify"
# Of the instances that would not leave a host, the refusals of so many specs are explained: each costs passes over all hosts.
DRAIN_EXPLAINED_MAX = 10


def plan_flavors(
    picture: Picture, alternatives: Sequence[Alternative], plugins: Plugins, quota: QuotaState | None = None
) -> tuple[PlannedFlavor, ...]:
    """The plan for each flavor that a request accepts, with what its project's quota allows of it."""
    return tuple([plan(picture, each.spec, plugins, quota, each.name) for each in alternatives])


def plan(
    picture: Picture, spec: InstanceSpec, plugins: Plugins, quota: QuotaState | None = None, name: str = ""
) -> PlannedFlavor:
    """How many hosts qualify for the spec, how many instances fit on them, and what each filter removed. `name` is the
    flavor's.
    """
    draft = Draft(picture, plugins.way_judges)
    rows = np.flatnonzero(plugins.able(draft, spec))
    funnel = explain(draft, spec, plugins)
    pools = tuple(_exhausted_pools(draft, spec))
    # Before the draft takes what is tried.
    relaxed = relaxations(draft, spec, plugins, len(rows))
    room = room_on(draft, spec, plugins, rows)
    cells = draft.columns.cell[rows]
    return PlannedFlavor(
        flavor=name,
        qualify=len(rows),
        fit=together(draft, rows, room.counts, spec),
        is_cut=room.is_cut,
        cells=tuple(
            sorted(
                [
                    PlannedCell(
                        cell=draft.columns.cells.names[cell],
                        hosts=int(np.count_nonzero(cells == cell)),
                        fit=together(draft, rows[cells == cell], room.counts[cells == cell], spec),
                    )
                    for cell in np.unique(cells).tolist()
                ],
                key=lambda each: each.cell,
            )
        ),
        funnel=funnel,
        relaxations=relaxed,
        pools=pools,
        quota=None if quota is None else _quota_room(spec, quota),
    )


def _quota_room(spec: InstanceSpec, quota: QuotaState) -> QuotaRoom | None:
    """How many more instances of the spec the quota allows; None if it limits nothing that they ask for."""
    asked = {**dict(spec.amounts), INSTANCES: 1}
    limits = [
        OverLimit(name=name, limit=limit, used=quota.used.get(name, 0), asked=asked[name])
        for name, limit in sorted(quota.limits.items())
        if asked.get(name)
    ]
    if not limits:
        return None
    fits = [max(0, each.limit - each.used) // each.asked for each in limits]
    least = min(fits)
    return QuotaRoom(
        fit=least, limits=tuple([each for each, fit in zip(limits, fits, strict=True) if fit == least])
    )


def reasons(
    picture: Picture,
    alternatives: Sequence[Alternative],
    plugins: Plugins,
    *,
    step: str,
    after: str,
    limit: int,
) -> tuple[list[HostVerdict], bool]:
    """A page of hosts, ordered by name, each with the filter that removes it and why, or how many instances fit; and
    whether there are more after it. The verdict on a host is about the first flavor for which it qualifies.
    """
    draft = Draft(picture, plugins.way_judges)
    hosts = Hosts(draft)
    first, _ = failures(judged(hosts, alternatives[0].spec, plugins))
    flavors = np.zeros(len(hosts), dtype=np.intp)
    for number, other in enumerate(alternatives[1:], 1):
        passed, _ = failures(judged(hosts, other.spec, plugins))
        newly = (passed == len(plugins.filters)) & (first < len(plugins.filters))
        first[newly], flavors[newly] = len(plugins.filters), number
    steps = [*(one.name for one in plugins.filters), QUALIFY]
    wanted = hosts.present
    if step:
        wanted = wanted & np.isin(first, [at for at, name in enumerate(steps) if name == step])
    names = picture.columns.names
    named = sorted((name, at) for at in np.flatnonzero(wanted).tolist() if (name := names[at]) > after)
    end = limit
    # Hosts of one name stay on one page: the next page begins behind the name.
    while 0 < end < len(named) and named[end][0] == named[end - 1][0]:
        end += 1
    page = [at for _, at in named[:end]]
    fit: dict[int, int] = {}
    for number, each in enumerate(alternatives):
        qualify = [at for at in page if first[at] == len(steps) - 1 and flavors[at] == number]
        room = room_on(draft, each.spec, plugins, np.array(qualify, dtype=np.intp))
        fit.update(zip(qualify, room.counts.tolist(), strict=True))
    verdicts = []
    for at in page:
        flavor = alternatives[flavors[at]]
        host = OneHost(hosts, at)
        verdict = HostVerdict(host=host.name, cell=host.cell, fit=fit.get(at, 0))
        if (number := int(first[at])) < len(plugins.filters):
            reason = plugins.filters[number].reason(host, flavor.spec)
            verdict = structs.replace(verdict, step=steps[number], reason=reason)
        if len(alternatives) > 1:
            verdict = structs.replace(verdict, flavor=flavor.name)
        verdicts.append(verdict)
    return verdicts, end < len(named)


def drain(
    picture: Picture, specs: Sequence[InstanceSpec], plugins: Plugins, salt: int
) -> list[Chosen | NoValidHost]:
    """Choose a host for each of these instances, as if all left their hosts at once. Their shares on these and in pools count as used
    still; the specs say that the hosts are to be ignored.
    """
    return choose(picture, specs, plugins, salt, alternates=0, explained_max=DRAIN_EXPLAINED_MAX)


def drain_together(
    picture: Picture, specs: Sequence[InstanceSpec], plugins: Plugins, salt: int
) -> Sequence[Chosen | NoValidHost]:
    """Choose one host for instances that leave theirs together; if there is none, the same reason for all."""
    chosen = choose_together(picture, specs, plugins, salt, alternates=0)
    return [chosen] * len(specs) if isinstance(chosen, NoValidHost) else chosen


def has_other_hosts(picture: Picture, cell: str, host: str) -> bool:
    """Has the cell a host beside this one?"""
    columns = picture.columns
    there = columns.present[: columns.rows] & (columns.cell[: columns.rows] == columns.cells.find(cell))
    there[picture.rows_in(cell, host)] = False
    return bool(there.any())


def _exhausted_pools(draft: Draft, spec: InstanceSpec) -> Iterator[ExhaustedPool]:
    for resource, amount in spec.amounts:
        for state, free, capacity, users in draft.compounds.pools.of_class(resource):
            lacking = int(np.count_nonzero(Hosts(draft, users).free(resource) < amount))
            if free < amount and lacking:
                yield ExhaustedPool(
                    pool=state.name,
                    resource=resource,
                    asked=amount,
                    free=free,
                    capacity=capacity,
                    hosts=lacking,
                )


# Finds smaller demands with which more hosts would qualify. First one demand is relaxed at a time, then two, then as
# many as it takes. An amount is halved until a host has room; if no host has room as it is, the largest amount is then told
# that one has.


DEMANDS_MAX = 32
SHOWN_MAX = 10
# Passes of all filters over all hosts: a quarter of a millisecond each for 10,000 hosts.
PASSES_MAX = 150
# Trees of compound hosts that all relaxations together may search: a tenth of a millisecond each.
TREES_MAX = 1_000
# To find the largest amount. The first one tells it, unless the free amount is spread over several providers of a host.
TRIES_MAX = 12

# Tuples of which each item is a demand of its own, and the words for a spec without that item.
DEMANDS_BY_ITEM = {
    "required": "without trait {}",
    "forbidden": "with trait {} allowed",
    "extra_specs": "without {0[0]}={0[1]}",
    "image_properties": "without the image's {0[0]}={0[1]}",
    "same_subtree": "with groups {} in different subtrees",
}
# Fields that are one demand as a whole.
DEMANDS_AS_A_WHOLE = {
    "availability_zone": "in any zone",
    "place": "in any place",
    "member_of": "in any aggregate",
    "forbidden_aggregates": "in the forbidden aggregates, too",
    "hosts": "on any host",
    "ignore_hosts": "on the hosts to ignore, too",
    "different_hosts": "on the hosts of the instances to be apart from, too",
    "server_group": "without its server group",
    "near": "with its devices in any NUMA cell",
    "same_hosts": "on other hosts than those of the instances to be together with",
}


_DEFAULTS = {field.name: field.default for field in structs.fields(InstanceSpec)}


class _Change(NamedTuple):
    """`resource` and `amount` are set if it asks for less of a class."""

    words: str
    made: Callable[[InstanceSpec], InstanceSpec]
    resource: str = ""
    amount: int = 0


# The ways to relax one demand, the mildest first.
_Demand = tuple[_Change, ...]


class _Found(NamedTuple):
    changes: tuple[_Change, ...]
    hosts: int

    @property
    def words(self) -> str:
        return " and ".join(change.words for change in self.changes)


def relaxations(draft: Draft, spec: InstanceSpec, plugins: Plugins, qualify: int) -> tuple[Relaxation, ...]:
    """The changes of the request with which more hosts qualify than the `qualify` that do now, the most helpful first.

    If no host qualifies, and none would with one demand relaxed, two are relaxed together; if that is not enough
    either, as many as must be.
    """
    counting = _Counting(draft, spec, plugins, qualify)
    demands = list(_demands(spec))[:DEMANDS_MAX]
    # Of each demand the mildest change that helps.
    found = [
        one
        for demand in demands
        if (one := next((it for change in demand if (it := counting.relaxed((change,)))), None))
    ]
    if not found and not qualify:
        mild = [demand[0] for demand in demands]
        found = [one for pair in combinations(mild, 2) if (one := counting.relaxed(pair))]
    if not found and not qualify:
        found = [one] if (one := _least(counting, demands)) else []
    shown = sorted(found, key=lambda each: -each.hosts)[:SHOWN_MAX]
    if not qualify:
        shown = sorted(map(counting.with_most, shown), key=lambda each: -each.hosts)
    return tuple(Relaxation(change=each.words, hosts=each.hosts) for each in shown)


def _least(counting: "_Counting", demands: Sequence[_Demand]) -> _Found | None:
    """The fewest and mildest changes with which some host qualifies: relax all demands as far as possible, then take
    back each change without which a host still qualifies, and make the others milder.
    """
    changes = [demand[-1] for demand in demands]
    found = counting.relaxed(changes)
    for demand in demands if found else ():
        others = [change for change in changes if change is not demand[-1]]
        without = counting.relaxed(others)
        if without is not None:
            found, changes = without, others
    for demand in demands if found else ():
        for change in demand[:-1] if demand[-1] in changes else ():
            milder = [change if each is demand[-1] else each for each in changes]
            if (with_it := counting.relaxed(milder)) is not None:
                found, changes = with_it, milder
                break
    return found


def _demands(spec: InstanceSpec) -> Iterator[_Demand]:
    for field, words in DEMANDS_AS_A_WHOLE.items():
        if getattr(spec, field) != _DEFAULTS[field]:
            yield (_Change(words, partial(_with, field, value=_DEFAULTS[field])),)
    for field, words in DEMANDS_BY_ITEM.items():
        for item in getattr(spec, field):
            yield (_Change(words.format(item), partial(_without, field, item)),)
    yield from _demands_of_groups(spec)
    in_groups = {resource for group in spec.groups for resource, _ in group.amounts}
    for resource, amount in spec.amounts:
        if amount > 1 and resource not in in_groups:
            # A half, a quarter, and so on down to 1.
            yield tuple(
                _less(resource, amount >> halvings, amount) for halvings in range(1, amount.bit_length())
            )


def _less(resource: str, amount: int, asked: int) -> _Change:
    words = f"with {amount} {resource} in place of {asked}"
    return _Change(words, partial(_with_amount, resource, amount), resource, amount)


def _demands_of_groups(spec: InstanceSpec) -> Iterator[_Demand]:
    if spec.cells:
        yield (_Change("with its processors and memory from any NUMA cells", _without_cells),)
    for group in spec.groups:
        if group.suffix not in spec.cells:
            yield (_Change(f"without group {group.suffix}", partial(_without_group, group)),)
    if spec.isolates:
        yield (_Change("with several groups at one provider", partial(_with, "isolates", value=False)),)


def _with(field: str, spec: InstanceSpec, *, value: object) -> InstanceSpec:
    return structs.replace(spec, **{field: value})


def _without(field: str, item: object, spec: InstanceSpec) -> InstanceSpec:
    return _with(field, spec, value=tuple(each for each in getattr(spec, field) if each != item))


def _without_group(group: GranularGroup, spec: InstanceSpec) -> InstanceSpec:
    left = dict(spec.amounts)
    for resource, amount in group.amounts:
        left[resource] -= amount
    return structs.replace(
        spec,
        amounts=tuple((resource, amount) for resource, amount in left.items() if amount),
        groups=tuple(each for each in spec.groups if each != group),
        same_subtree=tuple(each for each in spec.same_subtree if group.suffix not in each),
        near=tuple(each for each in spec.near if each[0] != group.suffix),
    )


def _without_cells(spec: InstanceSpec) -> InstanceSpec:
    return structs.replace(
        spec, groups=tuple(each for each in spec.groups if each.suffix not in spec.cells), cells=(), near=()
    )


def _with_amount(resource: str, amount: int, spec: InstanceSpec) -> InstanceSpec:
    amounts = tuple((name, amount if name == resource else other) for name, other in spec.amounts)
    return _with("amounts", spec, value=amounts)


class _Counting:
    """Counts how many hosts would qualify with a changed request. It stops when all counts together have cost too much."""

    def __init__(self, draft: Draft, spec: InstanceSpec, plugins: Plugins, qualify: int) -> None:
        self._draft = draft
        self._spec = spec
        self._needs = needs_of(spec)
        self._plugins = plugins
        self._qualify = qualify
        self._compounds = int(np.count_nonzero(draft.picture.compound))
        self._trees = self._passes = 0

    def relaxed(self, changes: Sequence[_Change]) -> _Found | None:
        """How many hosts qualify with these changes. None if no more than now, or if it would cost too much to find out."""
        hosts = int(np.count_nonzero(self._qualifying(changes)))
        return _Found(tuple(changes), hosts) if hosts > self._qualify else None

    def with_most(self, found: _Found) -> _Found:
        """These changes, with the largest amounts for which some host still has room."""
        for at, change in enumerate(found.changes):
            if change.resource:
                found = self._with_most(found, at)
        return found

    def _with_most(self, found: _Found, at: int) -> _Found:
        resource = found.changes[at].resource
        asked = dict(self._spec.amounts)[resource]
        hosts = Hosts(self._draft)
        free = np.maximum(hosts.free(resource), hosts.shared(resource))[self._qualifying(found.changes)]
        low, high = found.changes[at].amount, min(int(free.max(initial=0)), asked - 1)
        tried = high
        for _ in range(TRIES_MAX):
            if low >= high:
                break
            changes = [*found.changes[:at], _less(resource, tried, asked), *found.changes[at + 1 :]]
            if (one := self.relaxed(changes)) is not None:
                found, low = one, tried
            else:
                high = tried - 1
            tried = (low + high + 1) // 2
        return found

    def _qualifying(self, changes: Sequence[_Change]) -> Flags:
        """The hosts that qualify with these changes; none if it would cost too much to find out."""
        spec = self._spec
        for change in changes:
            spec = change.made(spec)
        self._passes += 1
        if needs_of(spec) != self._needs:
            self._trees += self._draft.hosts if spec.groups else self._compounds
        if not spec.amounts or self._trees > TREES_MAX or self._passes > PASSES_MAX:
            return ~self._draft.everyone
        return self._plugins.able(self._draft, spec)


# How each host looks to a spec at one moment: which filter removes it, and how good it is. It is kept until it is known which host
# another scheduler chose, so that both choices are judged as of the same moment.


# A request for many instances: hosts are judged with up to so many of them.
COUNTS_MAX = 20
# For all counts together, so that views of large clouds stay small.
ENTRIES_MAX = 200_000

_Small = NDArray[np.int32]


class WeigherView(Struct, frozen=True):
    """What one weigher says of one host. `part` is what it adds to the host's score: 1 is the weigher's whole range."""

    weigher: str
    weight: float
    part: float


class _PartKept(NamedTuple):
    """A `WeigherPart` in half of its space."""

    weigher: str
    weights: NDArray[np.float32]
    bands: NDArray[np.float32]


class HostViews(Struct, frozen=True, eq=False):
    """All hosts, in the order of their rows. `removed_by` has the number of a filter, or the number of all filters if none removes
    the host. `below` says by how many bands the host is below the best one, with no instance of the request, with one, and so on.
    """

    hosts: Sequence[ProviderId]
    filters: tuple[str, ...]
    removed_by: _Small
    below: tuple[_Small, ...] = ()
    parts: tuple[_PartKept, ...] = ()

    def row_of(self, host: ProviderId) -> int:
        """The row that the host had; -1 if it was not known."""
        return self.hosts.index(host) if host in self.hosts else -1

    def filter_against(self, row: int) -> str:
        """The name of the filter that removes this host; empty if it qualifies."""
        number = int(self.removed_by[row])
        return self.filters[number] if number < len(self.filters) else ""

    def bands_below(self, row: int, taken: int) -> int:
        """How far the host is below the best one, with so many instances of the request on it."""
        return int(self.below[min(taken, len(self.below) - 1)][row])

    def weighed(self, row: int) -> tuple[WeigherView, ...]:
        return tuple(
            WeigherView(each.weigher, float(each.weights[row]), float(each.bands[row]) * BAND)
            for each in self.parts
        )


def views_of(
    draft: Draft,
    spec: InstanceSpec,
    plugins: Plugins,
    *,
    salt: int,
    instances: int = 1,
) -> HostViews:
    """How each host of the draft looks to each of so many instances."""
    picture = draft.picture
    hosts = Hosts(draft)
    first, _ = failures(judged(hosts, spec, plugins))
    qualify = np.flatnonzero(hosts.present & (first == len(plugins.filters)))
    ids, names = tuple(picture.columns.ids[: len(hosts)]), tuple(one.name for one in plugins.filters)
    removed_by = first.astype(np.int32)
    if not len(qualify):
        return HostViews(ids, names, removed_by)
    some = Hosts(draft, qualify)
    scoring = Scoring(
        some, spec, plugins.weighing(spec.policy, picture.aggregates), picture.preferences(salt)
    )
    counts = max(1, min(instances, COUNTS_MAX, ENTRIES_MAX // len(hosts)))
    amounts = dict(spec.amounts)
    below: list[_Small] = []
    for count in range(counts):
        with_some = Hosts(draft, qualify, np.full(len(qualify), count), amounts)
        below.append(_among_all(scoring.below(with_some).astype(np.int32), qualify, len(hosts)))
    parts = tuple(
        _PartKept(
            each.weigher,
            _among_all(each.weights.astype(np.float32), qualify, len(hosts)),
            _among_all(each.bands.astype(np.float32), qualify, len(hosts)),
        )
        for each in scoring.parts(some)
    )
    return HostViews(ids, names, removed_by, tuple(below), parts)


def reason_against(draft: Draft, spec: InstanceSpec, plugins: Plugins, row: int) -> str:
    """Why the host in this row does not qualify, by the first filter that removes it; empty if it does."""
    hosts = Hosts(draft, np.array([row]))
    for one, passed in zip(plugins.filters, judged(hosts, spec, plugins), strict=True):
        if not passed[0]:
            return one.reason(OneHost(hosts, 0), spec)
    return ""


def _among_all(values: NDArray[Scalar], rows: Rows, hosts: int) -> NDArray[Scalar]:
    """The values of these rows among all rows; 0 elsewhere."""
    found = np.zeros(hosts, dtype=values.dtype)
    found[rows] = values
    return found
