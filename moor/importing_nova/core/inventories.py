"""What a host has in Nova and here: totals, reserves and ratios, by resource class. They need not agree to hand the host over, if its
instances fit; but an operator wants to know.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from bus.messages.placement import ProviderState
from moor.importing_nova.core.records import NovaHost
from moor.importing_nova.core.shares import PAGES


class HostAmount(Struct, frozen=True):
    """Of one class, in the whole tree. A reserve or ratio that is None is not known."""

    total: int
    reserved: int | None = None
    ratio: float | None = None


def inventories_in_nova(host: NovaHost) -> dict[str, HostAmount]:
    """By Nova's placement; without it, by `compute_nodes`."""
    found: dict[str, HostAmount] = {}
    if host.allocations is None:
        for node in host.nodes:
            found["VCPU"] = HostAmount(node.vcpus, ratio=node.cpu_ratio)
            found["MEMORY_MB"] = HostAmount(node.memory_mb, ratio=node.ram_ratio)
            found["DISK_GB"] = HostAmount(node.local_gb, ratio=node.disk_ratio)
        return found
    for each in host.inventories:
        _add(found, each.resource, each.total, each.reserved, each.ratio)
    return found


def inventories_here(providers: Iterable[ProviderState]) -> dict[str, HostAmount]:
    """Of the host's own providers and the pools that share with it. Memory in large pages counts as memory, as in Nova."""
    found: dict[str, HostAmount] = {}
    for provider in providers:
        for name, stock in provider.inventories.items():
            resource = "MEMORY_MB" if name.startswith(PAGES) else name
            _add(found, resource, stock.total, stock.reserved, stock.allocation_ratio)
    return found


def _add(found: dict[str, HostAmount], resource: str, total: int, reserved: int, ratio: float) -> None:
    before = found.get(resource, HostAmount(0, 0, ratio))
    # Of several providers the first ratio counts: a host has one for each class.
    found[resource] = HostAmount(before.total + total, (before.reserved or 0) + reserved, before.ratio)


def inventory_differences(in_nova: Mapping[str, HostAmount], here: Mapping[str, HostAmount]) -> Iterator[str]:
    """Of the classes that Nova has: those that only Moorage knows, such as devices, are no differences."""
    for resource, there in sorted(in_nova.items()):
        ours = here.get(resource)
        if ours is None:
            yield f"inventory of {resource}: {there.total} in Nova, none here"
            continue
        for what, one, other in (
            ("total", there.total, ours.total),
            ("reserved", there.reserved, ours.reserved),
            ("allocation_ratio", there.ratio, ours.ratio),
        ):
            # In `compute_nodes`, 0 stands for Nova's default.
            if one is not None and one != other and (one or there.reserved is not None):
                yield f"inventory of {resource}: {what} is {one} in Nova, and {other} here"
