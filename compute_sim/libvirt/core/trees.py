"""The provider tree of a host: what it offers of its machine, less what runs there and is not the host's own."""

from collections.abc import Mapping, Sequence
from uuid import uuid5

from compute_sim.core.hosts import Network
from compute_sim.core.trees import ProviderTree, TreeProvider
from compute_sim.libvirt.core.foreign import (
    foreign_dedicated,
    foreign_devices,
    foreign_memory,
    foreign_shared,
)
from compute_sim.libvirt.core.layout import Gives, HostLayout, OfferedCell, OfferedDevices, in_proportion
from compute_sim.libvirt.core.machine import HugePages
from compute_sim.libvirt.core.plans import ForeignGuest
from compute_sim.libvirt.core.traits import traits_of
from engine.guests import memory_class
from engine.inventories import ProviderId, ReportedInventory

NUMA_ROOT = "HW_NUMA_ROOT"
BANDWIDTHS = ("NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC")
NORMAL_PORTS = "CUSTOM_VNIC_TYPE_NORMAL"


def tree_of(layout: HostLayout, foreign: Sequence[ForeignGuest] = ()) -> ProviderTree:
    """The tree as it is now."""
    providers = (
        _root(layout, foreign),
        *_cells(layout, foreign),
        *(_devices(layout, each, foreign) for each in layout.devices),
        *(_network(layout, each) for each in layout.offer.networks),
    )
    return ProviderTree(layout.root, {each.id: each for each in providers})


def _root(layout: HostLayout, foreign: Sequence[ForeignGuest]) -> TreeProvider:
    offer = layout.offer
    inventories = {"DISK_GB": _inventory(offer.disk_gb, offer.disk_reserved_gb, offer.disk_ratio)}
    if layout.is_flat:
        inventories |= _of_cell(layout, layout.cells[0], _reserves(layout, foreign))
    return TreeProvider(
        id=layout.root,
        name=offer.name,
        inventories=_its_own(layout, inventories),
        traits=traits_of(layout.machine, offer),
        joins=layout.joins,
    )


def _cells(layout: HostLayout, foreign: Sequence[ForeignGuest]) -> list[TreeProvider]:
    if layout.is_flat:
        return []
    reserves = _reserves(layout, foreign)
    return [
        TreeProvider(
            id=cell.provider,
            name=f"{layout.offer.name}_NUMA{cell.number}",
            parent=layout.root,
            inventories=_its_own(layout, _of_cell(layout, cell, reserves)),
            traits=frozenset({NUMA_ROOT}),
        )
        for cell in layout.cells
    ]


def _its_own(
    layout: HostLayout, inventories: Mapping[str, ReportedInventory]
) -> dict[str, ReportedInventory]:
    """The inventories that the host reports itself: those that are not empty, and whose class no pool shares."""
    return {
        resource: each
        for resource, each in inventories.items()
        if each.total and resource not in layout.pooled
    }


# What is reserved, by provider and class.
_Reserves = Mapping[tuple[ProviderId, str], int]


def _reserves(layout: HostLayout, foreign: Sequence[ForeignGuest]) -> _Reserves:
    offer, cells = layout.offer, layout.cells
    pinned = foreign_dedicated(layout, foreign)
    shared, memory = foreign_shared(layout, foreign), foreign_memory(layout, foreign)
    own_cpus = in_proportion(offer.cpus_reserved, [len(cell.shared) for cell in cells])
    own_memory = in_proportion(offer.memory_reserved_mb, [cell.memory_mb for cell in cells])
    reserves: dict[tuple[ProviderId, str], int] = {}
    for cell, cpus, memory_mb in zip(cells, own_cpus, own_memory, strict=True):
        reserves[cell.provider, "VCPU"] = cpus + shared[cell.provider]
        reserves[cell.provider, "PCPU"] = len(pinned.intersection(cell.dedicated))
        # Foreign guests have the memory that the host does not offer, first.
        foreign_mb = max(0, memory[cell.provider] - cell.outside_mb)
        reserves[cell.provider, memory_class(0)] = memory_mb + foreign_mb
        for pages in cell.huge_pages:
            kept = sum(
                each.count * each.kib // 1024
                for each in offer.pages_kept
                if each.kib == pages.kib and cell.number in (None, each.cell)
            )
            # The pages that are kept are for foreign guests, too.
            in_use = foreign_memory(layout, foreign, pages.kib)[cell.provider]
            reserves[cell.provider, memory_class(pages.kib)] = max(kept, in_use)
    return reserves


def _of_cell(layout: HostLayout, cell: OfferedCell, reserves: _Reserves) -> dict[str, ReportedInventory]:
    def inventory(resource: str, total: int, ratio: float = 1.0) -> ReportedInventory:
        return _inventory(total, reserves[cell.provider, resource], ratio)

    return {
        "VCPU": inventory("VCPU", len(cell.shared), layout.offer.cpu_ratio),
        "PCPU": inventory("PCPU", len(cell.dedicated)),
        memory_class(0): inventory(memory_class(0), cell.memory_mb, layout.offer.memory_ratio),
        **{
            memory_class(pages.kib): _pages(pages, reserves[cell.provider, memory_class(pages.kib)])
            for pages in cell.huge_pages
        },
    }


def _pages(pages: HugePages, reserved_mb: int) -> ReportedInventory:
    page_mb = max(1, pages.kib // 1024)
    return ReportedInventory(
        total=pages.mb,
        # Whole pages.
        reserved=min(pages.mb, -(-reserved_mb // page_mb) * page_mb),
        min_unit=page_mb,
        step_size=page_mb,
    )


def _devices(
    layout: HostLayout,
    devices: OfferedDevices,
    foreign: Sequence[ForeignGuest],
) -> TreeProvider:
    gives = devices.gives
    total = _total(layout, gives)
    inventory = _inventory(total, foreign_devices(layout, gives, foreign))
    return TreeProvider(
        id=devices.provider,
        name=devices.name,
        parent=devices.parent,
        inventories={gives.resource: inventory} if total else {},
        traits=devices.traits,
    )


def _total(layout: HostLayout, gives: Gives) -> int:
    """How many there are, those in use too."""
    if not gives.mediated_type:
        return len(gives.functions)
    exist = sum(
        1 for each in layout.mediated if each.type == gives.mediated_type and each.parent in gives.parents
    )
    return exist + sum(
        each.available
        for function in layout.functions
        if function.address in gives.parents
        for each in function.mediated_types
        if each.name == gives.mediated_type
    )


def _network(layout: HostLayout, network: Network) -> TreeProvider:
    """The provider of the host's ports on this network, as Neutron's agents report it."""
    bandwidth = ReportedInventory(total=network.kilobits)
    return TreeProvider(
        id=ProviderId(uuid5(layout.root, f"network-{network.name}")),
        name=f"{layout.offer.name}:{network.name}",
        parent=layout.root,
        inventories=dict.fromkeys(BANDWIDTHS, bandwidth),
        traits=frozenset({network.trait, NORMAL_PORTS}),
    )


def _inventory(total: int, reserved: int, ratio: float = 1.0) -> ReportedInventory:
    # What is reserved cannot be more than the total, which matters when a host shrinks.
    return ReportedInventory(total=total, reserved=min(reserved, total), allocation_ratio=ratio)
