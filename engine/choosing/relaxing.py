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

from engine.candidates.columns import Flags
from engine.capacity import capacity_of
from engine.choosing.draft import Draft
from engine.choosing.hosts import Hosts, OneHost, Searching
from engine.choosing.needs import Needs, needs_of
from engine.choosing.plugins import Plugins
from engine.refusals import Relaxation
from engine.requests.groups_grammar import is_of_flavor
from engine.requests.spec import GranularGroup, InstanceSpec

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


# Why a host that is searched cannot give what is needed: a class is short, or a granular group finds no provider, or a
# condition between groups fails.


Amounts = Sequence[tuple[str, int]]


def why_no_room(host: OneHost, needs: Needs) -> str:
    """Why this host has no room: the first group, or the amounts outside of groups, that would not fit even if it were
    asked for alone. If there is none, why they do not fit together.
    """
    for alone in needs.one_by_one():
        if not host.compounds.can_give(alone, host.row):
            if not alone.groups:
                return shortfalls_of_compound(host, alone.amounts)
            return f"{name_of(alone)}: {_shortfalls_of_group(host, alone.amounts)}"
    unbound = needs._replace(isolates=False, same_subtree=(), near=(), cells=needs.cells[:1])
    if unbound == needs or not host.compounds.can_give(unbound, host.row):
        return f"each of {_names(needs)} has room alone, but not all together"
    return f"{_names(needs)} have room together, but not {_conditions(needs)}"


def why_no_traits(host: OneHost, needs: Needs) -> str:
    """Which groups of a request find room on this host, but not with their traits."""
    if needs.cells and (said := _root_traits(host, needs)):
        return said
    for alone in needs.one_by_one():
        if not host.compounds.can_give(alone, host.row):
            return f"{name_of(alone)}: {_missing_traits(host, alone)}"
    missing = [
        f"{_named(group.suffix)}: {_missing_traits(host, Needs((), group.required, group.forbidden))}"
        for group in needs.groups
        if not group.amounts and not traits_at(host).issuperset(group.required)
    ]
    return "; ".join(missing) or f"each of {_names(needs)} finds its traits alone, but not all together"


def _root_traits(host: OneHost, needs: Needs) -> str:
    """The traits that a guest with NUMA cells asks of the host's root, and that the root does not have as asked."""
    root = {trait for state in host.providers if state.id == state.root for trait in state.traits}
    lacks = [trait for trait in needs.required if trait not in root]
    has = [trait for trait in needs.forbidden if trait in root]
    said = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has forbidden {', '.join(has)}"] * bool(has)
    return "; ".join(said)


def name_of(needs: Needs) -> str:
    return _named(needs.groups[0].suffix) if needs.groups else "resources outside of groups"


def _named(suffix: str) -> str:
    return f"group {suffix}" if is_of_flavor(suffix) else suffix


def shortfalls_of_compound(host: OneHost, amounts: Amounts) -> str:
    """For each class of which no provider has enough: how much is missing at the provider that has most. Empty if there is no
    such class.
    """
    said = [_shortfall_of_compound(host, resource, amount) for resource, amount in amounts]
    return "; ".join(filter(None, said))


def _shortfall_of_compound(host: OneHost, resource: str, amount: int) -> str:
    shortfalls: list[str] = []
    providers = [
        (state, host.compounds.room.free_at(state.id, resource))
        for state in host.providers
        if resource in state.inventories
    ]
    providers.sort(key=lambda each: -each[1])
    for state, free in providers:
        inventory = state.inventories[resource]
        bounds = (capacity_of(inventory), inventory.min_unit, inventory.max_unit, inventory.step_size)
        shortfalls += shortfalls_of(resource, amount, bounds, free)
    if not providers:
        return f"{resource} asked {amount}, has none"
    if len(shortfalls) < len(providers):
        return ""
    beside = f", the most of {len(providers)}" if len(providers) > 1 else ""
    return f"{shortfalls[0]} at {providers[0][0].name}{beside}"


def _shortfalls_of_group(host: OneHost, amounts: Amounts) -> str:
    """The shortfalls at the provider that lacks the fewest classes: one provider must give the whole group."""
    best: tuple[int, int, str, str] | None = None
    providers = 0
    for state in host.providers:
        if not any(resource in state.inventories for resource, _ in amounts):
            continue
        providers += 1
        said: list[str] = []
        missing = 0
        for resource, amount in amounts:
            inventory = state.inventories.get(resource)
            free = host.compounds.room.free_at(state.id, resource) if inventory else 0
            bounds = (
                (capacity_of(inventory), inventory.min_unit, inventory.max_unit, inventory.step_size)
                if inventory
                else (0, 0, 0, 0)
            )
            said += shortfalls_of(resource, amount, bounds, free)
            missing += max(0, amount - free)
        mine = (len(said), missing, state.name, "; ".join(said))
        best = mine if best is None else min(best, mine)
    if best is None:
        return f"no provider has {' and '.join(resource for resource, _ in amounts)}"
    beside = f", the nearest of {providers}" if providers > 1 else ""
    return f"{best[3]} at {best[2]}{beside}"


def shortfalls_of(resource: str, amount: int, bounds: tuple[int, int, int, int], free: int) -> list[str]:
    """Why an inventory with these bounds and this free amount cannot give the amount; nothing if it can. Limits that
    always hold are named before the amount that is free now.
    """
    capacity, min_unit, max_unit, step_size = bounds
    if not step_size:
        return [f"{resource} asked {amount}, has none"]
    if amount < min_unit:
        return [f"{resource} asked {amount}, gives at least {min_unit}"]
    if amount > max_unit:
        return [f"{resource} asked {amount}, gives at most {max_unit}"]
    if amount % step_size:
        return [f"{resource} asked {amount}, gives multiples of {step_size}"]
    if amount > free:
        # Inventory may shrink below what is used: then nothing is free.
        return [f"{resource} asked {amount}, free {max(free, 0)} of {capacity}"]
    return []


def _missing_traits(host: OneHost, needs: Needs) -> str:
    group = needs.groups[0] if needs.groups else needs
    known = traits_at(host)
    lacks = [trait for trait in group.required if trait not in known]
    if lacks:
        return f"lacks {', '.join(lacks)}"
    asked = (*group.required, *(f"not {trait}" for trait in group.forbidden))
    where = "a provider that is" if needs.groups else "providers that together are"
    return f"has room, but not at {where} {', '.join(asked)}"


def traits_at(host: OneHost) -> set[str]:
    """The traits of all providers that instances on this host may take from."""
    return {trait for state in host.providers for trait in state.traits}


def _names(needs: Needs) -> str:
    outside = ["the resources outside of groups"] if needs.outside_of_groups else []
    return ", ".join([*outside, *(_named(group.suffix) for group in needs.groups)])


def _conditions(needs: Needs) -> str:
    said = ["each guest cell at a NUMA cell of its own"] if len(needs.cells) > 1 else []
    said += ["each group at a provider of its own (group_policy isolate)"] if needs.isolates else []
    said += [f"{', '.join(suffixes)} in one subtree (same_subtree)" for suffixes in needs.same_subtree]
    said += [
        f"{_named(suffix)} at a NUMA cell of the guest"
        for suffix, nearness in needs.near
        if nearness != "preferred"
    ]
    return " and ".join(said)
