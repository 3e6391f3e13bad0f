"""Which hosts could take one instance more? One class a question, from what is cheap to answer to what is not.

None of them keeps a host that placement would refuse; those about the registry and about limits remove more than that.
"""

from collections.abc import Iterator

from scheduler_worker.core.columns import Flags
from scheduler_worker.core.hosts import Hosts
from scheduler_worker.core.requests import Wish

IO_OPS_PER_HOST_MAX = 8
INSTANCES_PER_HOST_MAX = 50


class InRegistry:
    name = "registered"
    is_per_instance = False

    def passes(self, hosts: Hosts, _wish: Wish) -> Flags:
        return hosts.registered

    def reason(self, _hosts: Hosts, _wish: Wish, _at: int) -> str:
        return "no compute has reported it to the registry yet"


class Up:
    name = "up"
    is_per_instance = False

    def passes(self, hosts: Hosts, _wish: Wish) -> Flags:
        return hosts.up

    def reason(self, _hosts: Hosts, _wish: Wish, _at: int) -> str:
        return "is down: its heartbeats have stopped"


class Enabled:
    name = "enabled"
    is_per_instance = False

    def passes(self, hosts: Hosts, _wish: Wish) -> Flags:
        return hosts.enabled

    def reason(self, hosts: Hosts, _wish: Wish, at: int) -> str:
        return f"is disabled: {hosts.disabled_reason(at) or 'no reason given'}"


class HasInventory:
    name = "inventory"
    is_per_instance = False

    def passes(self, hosts: Hosts, _wish: Wish) -> Flags:
        return hosts.provided

    def reason(self, _hosts: Hosts, _wish: Wish, _at: int) -> str:
        return "placement has no provider of it"


class OneCell:
    name = "cell"
    is_per_instance = False

    def passes(self, hosts: Hosts, _wish: Wish) -> Flags:
        return hosts.consistent

    def reason(self, hosts: Hosts, _wish: Wish, at: int) -> str:
        return f"placement has it in cell {hosts.cell_name(at)!r}, the registry in another one"


class AvailabilityZone:
    name = "availability zone"
    is_per_instance = False

    def passes(self, hosts: Hosts, wish: Wish) -> Flags:
        return hosts.in_zone(wish.availability_zone) if wish.availability_zone else hosts.everyone()

    def reason(self, hosts: Hosts, wish: Wish, at: int) -> str:
        return f"asked {wish.availability_zone!r}, is in {hosts.zone_name(at)!r}"


class AskedHosts:
    name = "asked hosts"
    is_per_instance = False

    def passes(self, hosts: Hosts, wish: Wish) -> Flags:
        passed = hosts.named(wish.hosts) if wish.hosts else hosts.everyone()
        return passed & ~hosts.named(wish.ignore_hosts) if wish.ignore_hosts else passed

    def reason(self, hosts: Hosts, wish: Wish, at: int) -> str:
        is_ignored = hosts.name(at).lower() in wish.ignore_hosts
        return "is to be ignored" if is_ignored else "is none of the hosts that were asked for"


class Traits:
    name = "traits"
    is_per_instance = False

    def passes(self, hosts: Hosts, wish: Wish) -> Flags:
        passed = hosts.with_all(wish.required) if wish.required else hosts.everyone()
        return passed & ~hosts.with_any(wish.forbidden) if wish.forbidden else passed

    def reason(self, hosts: Hosts, wish: Wish, at: int) -> str:
        lacks = [trait for trait in wish.required if not hosts.with_any((trait,))[at]]
        has = [trait for trait in wish.forbidden if hosts.with_any((trait,))[at]]
        said = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has forbidden {', '.join(has)}"] * bool(has)
        return "; ".join(said)


class Capacity:
    name = "capacity"
    is_per_instance = True

    def passes(self, hosts: Hosts, wish: Wish) -> Flags:
        passed = hosts.everyone()
        for resource, amount in wish.amounts:
            passed = passed & (hosts.free(resource) >= amount) & hosts.within_bounds(resource, amount)
        return passed

    def reason(self, hosts: Hosts, wish: Wish, at: int) -> str:
        return "; ".join(
            said for resource, amount in wish.amounts for said in _shortfall(hosts, resource, amount, at)
        )


def _shortfall(hosts: Hosts, resource: str, amount: int, at: int) -> Iterator[str]:
    """What the inventory could never give is said before what it cannot give now."""
    capacity, min_unit, max_unit, step_size = hosts.bounds(resource, at)
    free = int(hosts.free(resource)[at])
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

    def passes(self, hosts: Hosts, _wish: Wish) -> Flags:
        return hosts.io_ops < self.maximum

    def reason(self, hosts: Hosts, _wish: Wish, at: int) -> str:
        return f"has {int(hosts.io_ops[at])} builds and the like under way, at most {self.maximum}"


class Instances:
    name = "instances"
    is_per_instance = True

    def __init__(self, maximum: int = INSTANCES_PER_HOST_MAX) -> None:
        self.maximum = maximum

    def passes(self, hosts: Hosts, _wish: Wish) -> Flags:
        return hosts.instances < self.maximum

    def reason(self, hosts: Hosts, _wish: Wish, at: int) -> str:
        return f"has {int(hosts.instances[at])} instances, at most {self.maximum}"
