"""Which hosts could take one instance more? One class a question, from what is cheap to answer to what is not.

None of them keeps a host that placement would refuse; those about the registry and about limits remove more than that.
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
        return "nobody has reported it to the registry yet"


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
    """A node is given as a whole, to requests that ask for it by its resource class; any other would waste it. What only a
    node reads (an image, a config drive, ports) is for nodes alone.
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
    """Of a node that nothing asked for by its class, that alone is told: `BareMetal` removes it."""

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
    """Those that have an inventory of their own of a class that is asked for."""
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
    """Nothing is known of a compound host whose search was cut: it may have what is asked."""

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
    """A compound host fails by its traits if it has room, and none with these traits; without any room, it fails by that."""

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
        borne = {trait for giver in hosts.givers(at) for trait in giver.state.traits}
        lacks = [trait for trait in spec.required if trait not in borne]
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
            # Each class may be had somewhere, and nothing in the host's own tree.
            return "; ".join(filter(None, said)) or "all of it would be shared with it, and nothing its own"
        return "; ".join(
            said
            for resource, amount in spec.amounts
            for said in _shortfall(
                resource, amount, hosts.bounds(resource, at), int(hosts.free(resource)[at])
            )
        )


def _shortfall_of_compound(hosts: Hosts, resource: str, amount: int, at: int) -> str:
    """Of whoever has the most left, if nobody could give it."""
    givers = sorted(hosts.givers(at, resource), key=lambda giver: -giver.free)
    shortfalls = []
    for state, free in givers:
        inventory = state.inventories[resource]
        bounds = (capacity_of(inventory), inventory.min_unit, inventory.max_unit, inventory.step_size)
        shortfalls += list(_shortfall(resource, amount, bounds, free))
    if not givers:
        return f"{resource} asked {amount}, has none"
    if len(shortfalls) < len(givers):
        return ""
    beside = f", the most of {len(givers)}" if len(givers) > 1 else ""
    return f"{shortfalls[0]} at {givers[0].state.name}{beside}"


def _shortfall(resource: str, amount: int, bounds: tuple[int, int, int, int], free: int) -> Iterator[str]:
    """What the inventory could never give is said before what it cannot give now."""
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
