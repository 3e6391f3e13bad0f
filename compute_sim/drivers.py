"""The contract between a compute and its drivers: `update_provider_tree`, as in Nova's drivers, over values.

A driver gets the known tree and returns an edited copy; the diff is reported. Every driver must pass the test kit in
contract.py.
"""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID, uuid5

from bus.message import ProviderId
from bus.messages.placement import ReportedInventory
from compute_sim.core.faults import Fault
from compute_sim.core.hosts import Host, HostSize, size_at
from compute_sim.core.tree import ProviderTree, TreeProvider, with_only, with_provider

# The root provider's id is derived from the host's name, and the NUMA nodes' ids from that: they survive a restart.
HOSTS = UUID("7f6a1f0e-6c3c-4b0e-8a64-5d3a0c1b9e02")


class Driver(Protocol):
    """Controls one host."""

    @property
    def root(self) -> ProviderId:
        """The id of the host's root provider; it never changes."""

    @property
    def host(self) -> Host:
        """The host's description."""

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:
        """The tree as this host is now, with foreign parts unchanged. If the host has not changed, a call with an
        earlier result returns an equal tree.
        """


class SimulatedDriver:
    """A simulated host: its description, changed by its faults."""

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


def equal_hosts(cell: str, count: int, size: HostSize | None = None) -> tuple[Host, ...]:
    """Hosts of one size, named after their cell, in three availability zones."""
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
    """The remainder goes to the first ones."""
    return whole // parts + (number < whole % parts)


def _inventory(total: int, reserved: int, ratio: float) -> ReportedInventory:
    # The reserve cannot be more than the total, which matters when a host shrinks.
    return ReportedInventory(total=total, reserved=min(reserved, total), allocation_ratio=ratio)


def _that_are(inventories: dict[str, ReportedInventory]) -> dict[str, ReportedInventory]:
    """Inventories without anything in them are not reported."""
    return {resource: each for resource, each in inventories.items() if each.total}
