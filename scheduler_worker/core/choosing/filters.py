"""The filters: which hosts could take one instance more? Cheap ones come first.

Together they pass no host that placement would refuse; filters about the registry and about limits remove others, too.
"""

from collections.abc import Iterator

import numpy as np

from placement_worker.core.candidates.columns import Flags
from placement_worker.core.capacity import capacity_of
from scheduler_worker.core.choosing.compounds import Needs, needs_of
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.requests import InstanceSpec

IO_OPS_PER_HOST_MAX = 8
INSTANCES_PER_HOST_MAX = 50


class InRegistry:
    name = "registered"
    is_per_instance = False

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.registered

    def reason(self, _hosts: Hosts, _spec: InstanceSpec, _at: int) -> str:
        return "no report of it has reached the registry yet"


class Up:
    name = "up"
    is_per_instance = False

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.up

    def reason(self, _hosts: Hosts, _spec: InstanceSpec, _at: int) -> str:
        return "is down: its heartbeats have stopped"


class Enabled:
    name = "enabled"
    is_per_instance = False

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.enabled

    def reason(self, hosts: Hosts, _spec: InstanceSpec, at: int) -> str:
        return f"is disabled: {hosts.disabled_reason(at) or 'no reason given'}"


class HasInventory:
    name = "inventory"
    is_per_instance = False

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.provided

    def reason(self, _hosts: Hosts, _spec: InstanceSpec, _at: int) -> str:
        return "placement has no provider of it"


class OneCell:
    name = "cell"
    is_per_instance = False

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.consistent

    def reason(self, hosts: Hosts, _spec: InstanceSpec, at: int) -> str:
        return f"placement has it in cell {hosts.cell_name(at)!r}, the registry in another one"


class BareMetal:
    """An instance takes a node as a whole. So only a request that asks for the node's resource class gets it. A request with
    fields that only nodes read (an image, a config drive, ports) gets a node or nothing.
    """

    name = "bare metal"
    is_per_instance = False

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if spec.is_for_nodes:
            return hosts.nodes & _asked_by_class(hosts, spec)
        return ~hosts.nodes | _asked_by_class(hosts, spec) if hosts.some_are_nodes else hosts.everyone()

    def reason(self, hosts: Hosts, _spec: InstanceSpec, at: int) -> str:
        if not hosts.nodes[at]:
            return "is no bare-metal node, and the request names an image, a config drive or ports for one"
        classes = hosts.classes(at)
        if not classes:
            return "is a bare-metal node without a resource class"
        return f"is a bare-metal node, only for requests that ask for {' or '.join(classes)}"


class Projects:
    """A node that is bound to projects is for these alone. Nodes whose class is not asked for are left to `BareMetal`."""

    name = "projects"
    is_per_instance = False

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if not hosts.some_are_nodes:
            return hosts.everyone()
        return hosts.open_to(spec.project) | ~_asked_by_class(hosts, spec)

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        projects = hosts.projects(at)
        bound = f"project {projects[0]}" if len(projects) == 1 else f"projects {' and '.join(projects)}"
        return f"this node belongs to {bound}, the request to {spec.project or 'none'}"


def _asked_by_class(hosts: Hosts, spec: InstanceSpec) -> Flags:
    """The hosts that have an inventory, not a shared one, of a class that is asked for."""
    asked = ~hosts.everyone()
    for resource, _ in spec.amounts:
        asked |= hosts.stocked(resource)
    return asked


class AvailabilityZone:
    name = "availability zone"
    is_per_instance = False

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        return hosts.in_zone(spec.availability_zone) if spec.availability_zone else hosts.everyone()

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        return f"asked {spec.availability_zone!r}, is in {hosts.zone_name(at)!r}"


class AskedHosts:
    name = "asked hosts"
    is_per_instance = False

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        passed = hosts.named(spec.hosts) if spec.hosts else hosts.everyone()
        return passed & ~hosts.named(spec.ignore_hosts) if spec.ignore_hosts else passed

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        is_ignored = hosts.name(at).lower() in spec.ignore_hosts
        return "is to be ignored" if is_ignored else "is none of the hosts that were asked for"


class Searched:
    """A compound host whose search was cut may have the amounts, but it is not known."""

    name = "search"
    is_per_instance = False

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        cut = hosts.cut(needs_of(spec))
        return hosts.everyone() if cut is None else np.equal(cut, 0)

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        cut = hosts.cut(needs_of(spec))
        assert cut is not None, "some host was searched"
        return f"its search was cut after {cut[at]} steps: it may have what is asked, to find out would cost too much"


class Traits:
    """A compound host fails by its traits if it has room, but none with these traits. Without any room, `Capacity` removes it."""

    name = "traits"
    is_per_instance = False

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if not spec.required and not spec.forbidden:
            return hosts.everyone()
        passed = hosts.with_all(spec.required)
        if spec.forbidden:
            passed = passed & ~hosts.with_any(spec.forbidden)
        if not hosts.some_are_compound:
            return passed
        has_room = hosts.decided(hosts.everyone(), Needs(spec.amounts))
        return hosts.decided(passed, needs_of(spec)) | ~has_room

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        if hosts.is_compound(at):
            return self._reason_of_compound(hosts, spec, at)
        lacks = [trait for trait in spec.required if not hosts.with_any((trait,))[at]]
        has = [trait for trait in spec.forbidden if hosts.with_any((trait,))[at]]
        said = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has forbidden {', '.join(has)}"] * bool(has)
        return "; ".join(said)

    def _reason_of_compound(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        traits = {trait for provider in hosts.providers_for(at) for trait in provider.state.traits}
        lacks = [trait for trait in spec.required if trait not in traits]
        if lacks:
            return f"lacks {', '.join(lacks)}"
        asked = (*spec.required, *(f"not {trait}" for trait in spec.forbidden))
        return f"has room, but not at providers that together are {', '.join(asked)}"


class Capacity:
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


class IoOps:
    name = "io ops"
    is_per_instance = True

    def __init__(self, maximum: int = IO_OPS_PER_HOST_MAX) -> None:
        self.maximum = maximum

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.io_ops < self.maximum

    def reason(self, hosts: Hosts, _spec: InstanceSpec, at: int) -> str:
        return f"has {int(hosts.io_ops[at])} builds and the like under way, at most {self.maximum}"


class Instances:
    name = "instances"
    is_per_instance = True

    def __init__(self, maximum: int = INSTANCES_PER_HOST_MAX) -> None:
        self.maximum = maximum

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.instances < self.maximum

    def reason(self, hosts: Hosts, _spec: InstanceSpec, at: int) -> str:
        return f"has {int(hosts.instances[at])} instances, at most {self.maximum}"
