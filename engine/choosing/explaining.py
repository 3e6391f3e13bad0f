"""Explains why no host qualifies for a request, and what a single host lacks. This is slow and thorough: it runs only for a refusal or a plan."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import structs

from engine.candidates.columns import Flags, Floats, Ints, Rows
from engine.choosing.hosts import Draft, Hosts, OneHost
from engine.choosing.plugins import Filter, Plugins
from engine.inventories import capacity_of, near, near_in_words
from engine.picture.picture import NO_HOST
from engine.refusals import FunnelStep, Miss, NoValidHost
from engine.requests.grammar import is_of_flavor
from engine.requests.spec import InstanceSpec, Needs, needs_of

NEAREST = 3
# A refusal explains so many of the hosts that a request names.
ASKED_MAX = 10


def explain(draft: Draft, spec: InstanceSpec, plugins: Plugins) -> NoValidHost:
    """The funnel: each step removes hosts that passed all steps before it; a step that removes none is left out. A request
    that names hosts is told why these do not qualify; any other request is told the nearest misses.
    """
    hosts = Hosts(draft)
    passed = judged(hosts, spec, plugins)
    first, failed = failures(passed)
    removed_by = [
        (one, removed)
        for number, one in enumerate(plugins.filters)
        if len(removed := np.flatnonzero(hosts.present & (first == number)))
    ]
    lacking = np.zeros(len(hosts), dtype=np.int64)
    for resource, _ in spec.amounts:
        # An inventory counts, its own or shared with it, even if nothing is free.
        lacking += ~(hosts.stocked(resource) | (hosts.shared(resource) >= 0))
    steps = [_step(hosts, spec, one, removed, lacking) for one, removed in removed_by]
    if spec.hosts:
        misses = list(_asked(hosts, spec, plugins, passed))[:ASKED_MAX]
    else:
        nearest = _nearest(hosts, failed, _shortfall(hosts, spec, lacking))
        misses = [_miss(hosts, spec, plugins, passed, at) for at in nearest]
    return NoValidHost(
        hosts=int(np.count_nonzero(hosts.present)),
        steps=tuple(steps),
        nearest=tuple(misses),
        unknown=tuple(_unknown(draft, spec)) if hosts.present.any() else (),
    )


def _unknown(draft: Draft, spec: InstanceSpec) -> Iterator[str]:
    """For the zone, and for each trait and class that is asked for and that no host has: the names near it that some host has."""
    columns = draft.columns
    zones = {
        columns.zones.names[code] for code in np.unique(columns.zone[np.flatnonzero(Hosts(draft).present)])
    }
    if (zone := spec.availability_zone) and zone not in zones:
        yield f"no host is in zone {zone}{near_in_words(near(zone, zones))}"
    asked = {*spec.required, *dict(spec.amounts)}.union(
        *[{*each.required, *dict(each.amounts)} for each in spec.groups]
    )
    known = columns.traits.names | draft.picture.index.stocks.keys()
    for name in sorted(asked - known)[:ASKED_MAX]:
        yield f"no host has {name}{near_in_words(near(name, known))}"


def judged(hosts: Hosts, spec: InstanceSpec, plugins: Plugins) -> list[Flags]:
    """For each filter, which hosts pass it: of compound hosts the search says it, for the filters that stand for its verdicts."""
    passed = [one.passes(hosts, spec) for one in plugins.filters]
    if not hosts.some_are_searched(spec):
        return passed
    searched = hosts.are_searched(has_groups=bool(spec.groups))
    against = hosts.of(hosts.compounds.against(needs_of(spec)))
    return [
        flags if one.verdict is None else np.where(searched, against != one.verdict.value, flags)
        for one, flags in zip(plugins.filters, passed, strict=True)
    ]


def failures(passed: Sequence[Flags]) -> tuple[Ints, Ints]:
    """For each host, the number of the first filter that removes it (the number of all filters if none does), and how
    many filters would remove it. `passed` says for each filter which hosts pass it.
    """
    first = np.full(len(passed[0]), len(passed), dtype=np.int64)
    failed = np.zeros(len(passed[0]), dtype=np.int64)
    for number, flags in enumerate(passed):
        first[~flags & (failed == 0)] = number
        failed += ~flags
    return first, failed


def _step(hosts: Hosts, spec: InstanceSpec, one: Filter, removed: Rows, lacking: Ints) -> FunnelStep:
    """The funnel's step for this filter, with one of the hosts that it removed as an example: the first of those that
    lack the fewest resource classes.
    """
    first = int(removed[np.argmin(lacking[removed])])
    host = OneHost(hosts, first)
    example = f"{host.name}: {one.reason(host, spec)}"
    return FunnelStep(step=one.name, removed=len(removed), example=example)


def _asked(hosts: Hosts, spec: InstanceSpec, plugins: Plugins, passed: Sequence[Flags]) -> Iterator[Miss]:
    unknown = 0
    for name in spec.hosts:
        places = np.flatnonzero(hosts.named((name,))).tolist()
        if not places:
            unknown += 1
            # To look for those near a name costs more than all else here.
            yield Miss(host=name, reason=hosts.picture.no_host(name) if unknown == 1 else NO_HOST)
        for at in places:
            miss = _miss(hosts, spec, plugins, passed, at)
            if miss.reason:
                yield miss


def _miss(hosts: Hosts, spec: InstanceSpec, plugins: Plugins, passed: Sequence[Flags], at: int) -> Miss:
    """The reasons of all filters that remove this host; empty if it qualifies."""
    failed = [one for one, flags in zip(plugins.filters, passed, strict=True) if not flags[at]]
    host = OneHost(hosts, at)
    return Miss(host=host.name, reason="; ".join(one.reason(host, spec) for one in failed))


def _nearest(hosts: Hosts, failed: Ints, shortfall: Floats) -> list[int]:
    """The hosts that failed the fewest filters; among these, the hosts with the smallest shortfall."""
    lost = np.flatnonzero(hosts.present & (failed > 0))
    nearest: list[int] = lost[np.argsort((failed + shortfall)[lost], kind="stable")[:NEAREST]].tolist()
    return nearest


def _shortfall(hosts: Hosts, spec: InstanceSpec, lacking: Ints) -> Floats:
    """The part of the request that a host cannot give: below 1, so that it only decides between equals. A host without a
    class is farther away than a host where that class is used up.
    """
    short = lacking.astype(np.float64)
    for resource, amount in spec.amounts:
        free = np.maximum(hosts.free(resource), hosts.shared(resource))
        short += np.clip(amount - free, 0, amount) / amount
    return short / (2 * len(spec.amounts) + 1)


def in_words(refusal: NoValidHost) -> str:
    steps = [f"{step.removed} removed by {step.step} ({step.example})" for step in refusal.steps]
    return f"no host among {refusal.hosts}" + (f": {', '.join(steps)}" if steps else "")


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
    unbound = structs.replace(needs, isolates=False, same_subtree=(), near=(), cells=needs.cells[:1])
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
