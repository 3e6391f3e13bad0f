"""Finds smaller demands with which more hosts would qualify. First one demand is relaxed at a time, then two, then as
many as it takes. An amount is halved until a host has room; if no host has room as it is, the largest amount is then told
that one has.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
from msgspec import structs

from bus.messages.planning import Relaxation
from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.draft import Draft
from scheduler_worker.core.choosing.hosts.host_columns import Hosts, Searching
from scheduler_worker.core.choosing.needs import needs_of
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.requests import InstanceSpec
from scheduler_worker.core.requests.spec import GranularGroup

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
    found = [one for demand in demands if (one := _mildest(counting, demand))]
    if not found and not qualify:
        mild = [demand[0] for demand in demands]
        found = [one for pair in combinations(mild, 2) if (one := counting.relaxed(pair))]
    if not found and not qualify:
        found = [one] if (one := _least(counting, demands)) else []
    shown = sorted(found, key=lambda each: -each.hosts)[:SHOWN_MAX]
    if not qualify:
        shown = sorted(map(counting.with_most, shown), key=lambda each: -each.hosts)
    return tuple(Relaxation(change=each.words, hosts=each.hosts) for each in shown)


def _mildest(counting: "_Counting", demand: _Demand) -> _Found | None:
    return next((one for change in demand if (one := counting.relaxed((change,)))), None)


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
        hosts = Hosts(self._draft, search=Searching.TOGETHER)
        if not spec.amounts or self._trees > TREES_MAX or self._passes > PASSES_MAX:
            return np.zeros(len(hosts), dtype=np.bool_)
        return self._plugins.qualifying(hosts, spec)
