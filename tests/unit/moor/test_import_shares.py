"""What an instance holds here, by what it holds in Nova: on flat trees and nested ones, with devices, and what cannot be."""

from uuid import UUID, uuid5

from engine.inventories import InventoryState, ProviderId, ProviderState, Share
from nova_bridge.importing.records import (
    NovaAllocation,
    NovaDevice,
    NovaGuestCell,
    NovaInstance,
)
from nova_bridge.importing.shares import HostTree, share_of, wanted_of

ROOT = ProviderId(UUID(int=1))
NOVA_ROOT = "nova-root"
ONE = NovaInstance(id=str(UUID(int=7)), host="h1", state="active")


def provider(name: str, *, is_root: bool = False, **inventories: int) -> ProviderState:
    id_ = ProviderId(uuid5(ROOT, name)) if not is_root else ROOT
    return ProviderState(
        internal=1,
        id=id_,
        name=name,
        root=ROOT,
        parent=None if is_root else ROOT,
        inventories={resource: InventoryState(total=total) for resource, total in inventories.items()},
    )


NESTED = (
    provider("h1", is_root=True, DISK_GB=100),
    provider("h1_NUMA0", VCPU=8, PCPU=4, MEMORY_MB=8_192, CUSTOM_MEMORY_MB_PAGES_2048=8_192),
    provider("h1_NUMA1", VCPU=8, PCPU=4, MEMORY_MB=16_384),
)


def held(**amounts: int) -> list[NovaAllocation]:
    return [
        NovaAllocation(ONE.id, NOVA_ROOT, "h1.org", NOVA_ROOT, name, each) for name, each in amounts.items()
    ]


def share(
    tree: HostTree,
    allocations: list[NovaAllocation],
    cells: tuple[NovaGuestCell, ...] = (),
    devices: tuple[NovaDevice, ...] = (),
) -> Share:
    wanted = wanted_of(allocations, {}, frozenset({NOVA_ROOT}))
    return share_of(ONE, wanted, cells, devices, tree)


def named(found: Share, tree: HostTree) -> set[tuple[str, str, int]]:
    return {(tree.own[each.provider].name, each.resource, each.amount) for each in found.amounts}


def test_its_own_cells_say_which_node_gives_what() -> None:
    tree = HostTree(ROOT, NESTED)
    cells = (NovaGuestCell(0, 0, 2, 4_096, 2_048), NovaGuestCell(1, 0, 2, 4_096, 4))

    assert named(share(tree, held(PCPU=4, MEMORY_MB=8_192), cells), tree) == {
        ("h1_NUMA0", "PCPU", 2),
        ("h1_NUMA0", "CUSTOM_MEMORY_MB_PAGES_2048", 4_096),
        ("h1_NUMA1", "PCPU", 2),
        ("h1_NUMA1", "MEMORY_MB", 4_096),
    }


# Objects
