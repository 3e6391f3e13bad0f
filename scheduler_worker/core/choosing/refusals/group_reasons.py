"""Why a host that is searched cannot give what is needed: a class is short, or a granular group finds no provider, or a
condition between groups fails.
"""

from collections.abc import Sequence

from placement_worker.core.capacity import capacity_of
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.needs import Needs
from scheduler_worker.core.requests.parts import is_of_flavor

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
