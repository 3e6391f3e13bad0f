"""What an instance holds here, by what it holds in Nova: on flat trees and nested ones, with devices, and what cannot be."""

import json
from uuid import UUID, uuid5

import pytest
from msgspec import structs

from engine.flavors import Flavor
from engine.inventories import InventoryState, ProviderId, ProviderState, Share
from nova_bridge.importing.records import (
    ContradictionError,
    NovaAllocation,
    NovaDevice,
    NovaGuestCell,
    NovaInstance,
    cells_in,
    flavor_in,
    image_properties_in,
)
from nova_bridge.importing.shares import HostTree, needs_of, share_of, totals_of, wanted_of
from tests.nova.rows import SMALL, stored

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


FLAT = (provider("h1", is_root=True, VCPU=16, MEMORY_MB=32_768, DISK_GB=100),)
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


def test_of_a_flat_host_it_holds_the_same() -> None:
    tree = HostTree(ROOT, FLAT)

    assert named(share(tree, held(VCPU=2, MEMORY_MB=2048, DISK_GB=20)), tree) == {
        ("h1", "VCPU", 2),
        ("h1", "MEMORY_MB", 2048),
        ("h1", "DISK_GB", 20),
    }


def test_without_numa_cells_it_gets_the_node_with_most_memory_that_has_room_for_all() -> None:
    tree = HostTree(ROOT, NESTED)
    first = share(tree, held(VCPU=2, MEMORY_MB=12_000, DISK_GB=20))
    tree.take(first.amounts)

    assert named(first, tree) == {
        ("h1_NUMA1", "VCPU", 2),
        ("h1_NUMA1", "MEMORY_MB", 12_000),
        ("h1", "DISK_GB", 20),
    }
    assert named(share(tree, held(VCPU=2, MEMORY_MB=6_000)), tree) == {
        ("h1_NUMA0", "VCPU", 2),
        ("h1_NUMA0", "MEMORY_MB", 6_000),
    }


def test_one_that_no_node_has_room_for_is_spread() -> None:
    tree = HostTree(ROOT, NESTED)

    found = share(tree, held(VCPU=12, MEMORY_MB=20_000))

    assert totals(found) == {"VCPU": 12, "MEMORY_MB": 20_000}
    tree.take(found.amounts)
    assert tree.shortfalls() == []


def totals(found: Share) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in found.amounts:
        sums[each.resource] = sums.get(each.resource, 0) + each.amount
    return sums


def test_its_own_cells_say_which_node_gives_what() -> None:
    tree = HostTree(ROOT, NESTED)
    cells = (NovaGuestCell(0, 0, 2, 4_096, 2_048), NovaGuestCell(1, 0, 2, 4_096, 4))

    assert named(share(tree, held(PCPU=4, MEMORY_MB=8_192), cells), tree) == {
        ("h1_NUMA0", "PCPU", 2),
        ("h1_NUMA0", "CUSTOM_MEMORY_MB_PAGES_2048", 4_096),
        ("h1_NUMA1", "PCPU", 2),
        ("h1_NUMA1", "MEMORY_MB", 4_096),
    }


def test_devices_are_found_by_their_address_and_virtual_functions_by_their_parent() -> None:
    tree = HostTree(
        ROOT,
        (
            *FLAT,
            provider("h1_0000:05:00.0", CUSTOM_PCI_8086_10ED=1),
            provider("h1_0000:06:00.0", CUSTOM_PCI_8086_1572=1, SRIOV_NET_VF=4),
        ),
    )
    devices = (
        NovaDevice("0000:05:00.0", "10ed", "8086", "allocated", instance=ONE.id),
        NovaDevice("0000:06:02.1", "154c", "8086", "allocated", "0000:06:00.0", ONE.id),
    )

    found = named(share(tree, held(VCPU=1), devices=devices), tree)

    assert ("h1_0000:05:00.0", "CUSTOM_PCI_8086_10ED", 1) in found
    assert ("h1_0000:06:00.0", "SRIOV_NET_VF", 1) in found
    # What Nova's placement knows of a device is not taken twice.
    of_placement = [
        *held(VCPU=1),
        NovaAllocation(ONE.id, "x", "h1_0000:05:00.0", NOVA_ROOT, "CUSTOM_PCI_8086_10ED", 1),
    ]
    assert totals(share(tree, of_placement, devices=devices[:1]))["CUSTOM_PCI_8086_10ED"] == 1


@pytest.mark.parametrize(
    ("allocations", "cells", "devices", "why"),
    [
        (held(CUSTOM_GOLD=3), (), (), "holds 3 CUSTOM_GOLD, and the host has no such inventory here"),
        ([], (), (), "holds nothing"),
        (held(PCPU=4), (NovaGuestCell(0, 0, 2, 64),), (), "holds 4 PCPU, and its NUMA cells have 2"),
        (held(PCPU=2), (NovaGuestCell(7, 0, 2, 64),), (), "NUMA node 7 of the host has no PCPU here"),
        (held(VCPU=1), (), (NovaDevice("0000:99:00.0", "1", "2", "allocated"),), "PCI device 0000:99:00.0"),
    ],
)
def test_what_the_host_cannot_give_is_named(
    allocations: list[NovaAllocation],
    cells: tuple[NovaGuestCell, ...],
    devices: tuple[NovaDevice, ...],
    why: str,
) -> None:
    with pytest.raises(ContradictionError, match=why.replace("(", r"\(")) as raised:
        share(HostTree(ROOT, NESTED), allocations, cells, devices)
    assert ONE.id in str(raised.value)


def test_more_than_there_is_is_named_with_the_amount() -> None:
    tree = HostTree(ROOT, FLAT)
    for _ in range(2):
        tree.take(share(tree, held(VCPU=10)).amounts)

    assert tree.shortfalls() == ["VCPU of h1: its instances need 4 more than the host has here"]


def test_without_a_placement_database_the_flavor_says_what_is_held() -> None:
    flavor = Flavor(
        name="f",
        vcpus=4,
        ram_mb=512,
        root_gb=10,
        ephemeral_gb=1,
        swap_mb=1025,
        extra_specs={"resources:VGPU": "1"},
    )

    assert needs_of(flavor, on_volume=False) == {"VCPU": 4, "MEMORY_MB": 512, "DISK_GB": 13, "VGPU": 1}
    assert needs_of(flavor, on_volume=True)["DISK_GB"] == 3
    pinned = needs_of(flavor, on_volume=True, cells=(NovaGuestCell(0, 1, 3, 512),))
    assert (pinned["VCPU"], pinned["PCPU"]) == (1, 3)
    bare = structs.replace(flavor, extra_specs={"resources:VCPU": "0", "resources:CUSTOM_BM": "1"})
    assert "VCPU" not in needs_of(bare, on_volume=False)
    assert totals_of(held(VCPU=1)) == {"VCPU": 1}


# Objects


def test_nova_objects_are_read_as_nova_writes_them() -> None:
    cell = stored(
        "InstanceNUMACell",
        "1.6",
        {"id": 1, "cpuset": [0], "pcpuset": [1, 2], "memory": 512, "pagesize": 2048, "cpu_policy": "mixed"},
    )
    topology = json.dumps(stored("InstanceNUMATopology", "1.3", {"cells": [cell]}))

    assert cells_in(topology, "it") == (NovaGuestCell(1, 1, 2, 512, 2048),)
    old = stored(
        "InstanceNUMACell", "1.3", {"id": 0, "cpuset": [0, 1], "memory": 64, "cpu_policy": "dedicated"}
    )
    assert cells_in(json.dumps(stored("InstanceNUMATopology", "1.2", {"cells": [old]})), "it") == (
        NovaGuestCell(0, 0, 2, 64, None),
    )
    assert flavor_in(json.dumps({"cur": SMALL.object}), "it").ram_mb == SMALL.ram_mb


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it is not JSON"),
        ("{}", "it has no current flavor"),
        ('{"cur": 3}', "it is no Flavor"),
        (
            json.dumps({"cur": stored("Flavor", "2.0", {})}),
            "it is a Flavor of version 2.0, known are 1.0 to 1.2",
        ),
        (
            json.dumps({"cur": stored("Flavor", "1.9", {})}),
            "it is a Flavor of version 1.9, known are 1.0 to 1.2",
        ),
        (json.dumps({"cur": stored("Flavor", "x", {})}), "version x"),
        (json.dumps({"cur": stored("Flavor", "1.2", {"name": "f"})}), "a field is missing or wrong"),
    ],
)
def test_an_object_that_is_not_known_is_refused_by_its_version(text: str, why: str) -> None:
    with pytest.raises(ContradictionError, match=why):
        flavor_in(text, "it")


def test_image_properties_of_an_unknown_request_spec_are_refused() -> None:
    with pytest.raises(ContradictionError, match=r"RequestSpec of version 3\.0, known are 1\.0 to 1\.15"):
        image_properties_in(json.dumps(stored("RequestSpec", "3.0", {})), "it")
