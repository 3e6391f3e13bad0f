"""The host has room: of each class enough is free, within the bounds of its inventory."""

from collections.abc import Iterator

from placement_worker.core.candidates.columns import Flags
from placement_worker.core.capacity import capacity_of
from scheduler_worker.core.choosing.compounds import Needs
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Filter
from scheduler_worker.core.requests import InstanceSpec


class Capacity(Filter):
    name = "capacity"
    is_per_instance = True

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        passed = hosts.everyone()
        for resource, amount in spec.amounts:
            passed = passed & (hosts.free(resource) >= amount) & hosts.within_bounds(resource, amount)
        return hosts.decided(passed, Needs(spec.amounts))

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        if hosts.is_compound(at):
            said = [_shortfall_of_compound(hosts, resource, amount, at) for resource, amount in spec.amounts]
            # Sharing providers have room for each class, and the host's own tree for none.
            return "; ".join(filter(None, said)) or "all of it would be shared with it, and nothing its own"
        return "; ".join(
            said
            for resource, amount in spec.amounts
            for said in _shortfall(
                resource, amount, hosts.bounds(resource, at), int(hosts.free(resource)[at])
            )
        )


def _shortfall_of_compound(hosts: Hosts, resource: str, amount: int, at: int) -> str:
    """The shortfall at the provider with the most free amount; empty if some provider has room."""
    providers = sorted(hosts.providers_for(at, resource), key=lambda provider: -provider.free)
    shortfalls = []
    for state, free in providers:
        inventory = state.inventories[resource]
        bounds = (capacity_of(inventory), inventory.min_unit, inventory.max_unit, inventory.step_size)
        shortfalls += list(_shortfall(resource, amount, bounds, free))
    if not providers:
        return f"{resource} asked {amount}, has none"
    if len(shortfalls) < len(providers):
        return ""
    beside = f", the most of {len(providers)}" if len(providers) > 1 else ""
    return f"{shortfalls[0]} at {providers[0].state.name}{beside}"


def _shortfall(resource: str, amount: int, bounds: tuple[int, int, int, int], free: int) -> Iterator[str]:
    """A limit that the inventory always has is named before the amount that is free now."""
    capacity, min_unit, max_unit, step_size = bounds
    if not step_size:
        yield f"{resource} asked {amount}, has none"
    elif amount < min_unit:
        yield f"{resource} asked {amount}, gives at least {min_unit}"
    elif amount > max_unit:
        yield f"{resource} asked {amount}, gives at most {max_unit}"
    elif amount % step_size:
        yield f"{resource} asked {amount}, gives multiples of {step_size}"
    elif amount > free:
        yield f"{resource} asked {amount}, free {free} of {capacity}"
