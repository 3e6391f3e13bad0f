"""The contract between a compute and what it drives: `update_provider_tree`, as Nova's drivers have it, over values.

A driver is given the tree as it is known and returns its edited copy; the difference is reported. contract.py is the
test kit that every driver must pass.
"""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID, uuid5

from bus.message import ProviderId
from bus.messages.placement import ReportedInventory
from compute_sim.core.faults import Fault
from compute_sim.core.hosts import Host, HostSize, size_at
from compute_sim.core.tree import ProviderTree, TreeProvider, with_only, with_provider

# From a host's name follows its root provider, and from that its NUMA nodes: after a restart they are the same.
HOSTS = UUID("7f6a1f0e-6c3c-4b0e-8a64-5d3a0c1b9e02")


class Driver(Protocol):
    """What is behind one host."""

    @property
    def root(self) -> ProviderId:
        """The host's root provider; always the same."""

    @property
    def host(self) -> Host:
        """What the host is called, and what runs on it."""

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:
        """The tree as this host is now. What is foreign in it comes back as it was; asked again with what it
        returned, a driver whose host has not changed returns the same.
        """


class SimulatedDriver:
    """A host that is what its description says, and what its faults make of that."""

    def __init__(self, host: Host, faults: Sequence[Fault] = ()) -> None:
        self.host = host
        self.root = root_of(host.name)
        self._faults = tuple(faults)

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:
        size = size_at(self.host.size, self._faults, at_s)
        providers = (self._root(size), *self._numa_nodes(size))
        tree = with_only(tree, frozenset(each.id for each in providers))
        for each in providers:
            tree = with_provider(tree, each)
        return tree

    def _root(self, size: HostSize) -> TreeProvider:
        inventories = {"DISK_GB": _inventory(size.disk_gb, size.disk_gb_reserved, size.disk_ratio)}
        if not size.numa_nodes:
            inventories |= _cpus_and_memory(size)
        return TreeProvider(
            id=self.root, name=self.host.name, inventories=_that_are(inventories), traits=size.traits
        )

    def _numa_nodes(self, size: HostSize) -> list[TreeProvider]:
        return [
            TreeProvider(
                id=ProviderId(uuid5(self.root, f"numa-{number}")),
                name=f"{self.host.name}_NUMA{number}",
                parent=self.root,
                inventories=_that_are(_cpus_and_memory(size, number, size.numa_nodes)),
                traits=frozenset({"HW_NUMA_ROOT"}),
            )
            for number in range(size.numa_nodes)
        ]


def root_of(host: str) -> ProviderId:
    return ProviderId(uuid5(HOSTS, host))


def alike(cell: str, count: int, size: HostSize | None = None) -> tuple[Host, ...]:
    """So many hosts of one size, named after their cell and in three availability zones."""
    return tuple(
        Host(
            name=f"{cell}-host-{number:05d}",
            size=size or HostSize(),
            availability_zone=f"az{number % 3 + 1}",
        )
        for number in range(1, count + 1)
    )


def _cpus_and_memory(size: HostSize, number: int = 0, parts: int = 1) -> dict[str, ReportedInventory]:
    return {
        "VCPU": _inventory(
            _part(size.vcpus, number, parts), _part(size.vcpus_reserved, number, parts), size.vcpu_ratio
        ),
        "MEMORY_MB": _inventory(
            _part(size.ram_mb, number, parts), _part(size.ram_mb_reserved, number, parts), size.ram_ratio
        ),
    }


def _part(whole: int, number: int, parts: int) -> int:
    """The first ones get what does not divide."""
    return whole // parts + (number < whole % parts)


def _inventory(total: int, reserved: int, ratio: float) -> ReportedInventory:
    # More cannot be kept back than there is, which matters when a host shrinks.
    return ReportedInventory(total=total, reserved=min(reserved, total), allocation_ratio=ratio)


def _that_are(inventories: dict[str, ReportedInventory]) -> dict[str, ReportedInventory]:
    """What a host has none of it does not report."""
    return {resource: each for resource, each in inventories.items() if each.total}
