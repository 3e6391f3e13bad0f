"""The inventories of a host in Nova and here are compared by class, whatever the two trees look like."""

from msgspec import structs

from nova_bridge.importing.judging import (
    HostAmount,
    inventories_here,
    inventories_in_nova,
    inventory_differences,
)
from nova_bridge.importing.records import NovaInventory
from tests.unit.moor.test_import_judging import HOST, NODE
from tests.unit.moor.test_import_shares import FLAT, NESTED


def test_a_nested_tree_is_summed_and_large_pages_are_memory() -> None:
    here = inventories_here(NESTED)

    assert here["VCPU"] == HostAmount(16, 0, 1.0)
    assert here["MEMORY_MB"].total == 8_192 + 8_192 + 16_384
    assert here["PCPU"].total == 8


def test_each_number_that_differs_is_named_and_what_only_we_have_is_not() -> None:
    nova = structs.replace(
        HOST,
        inventories=(
            NovaInventory("root", "h1", "VCPU", 16, 2, 4.0),
            NovaInventory("root", "h1", "MEMORY_MB", 32_768, 0, 1.0),
            NovaInventory("root", "h1", "CUSTOM_GOLD", 1, 0, 1.0),
        ),
    )

    assert [*inventory_differences(inventories_in_nova(nova), inventories_here(FLAT))] == [
        "inventory of CUSTOM_GOLD: 1 in Nova, none here",
        "inventory of VCPU: reserved is 2 in Nova, and 0 here",
        "inventory of VCPU: allocation_ratio is 4.0 in Nova, and 1.0 here",
    ]


def test_without_placement_the_compute_node_says_it() -> None:
    node = structs.replace(NODE, vcpus=16, memory_mb=32_768, local_gb=90, cpu_ratio=0.0, ram_ratio=1.0)
    nova = structs.replace(HOST, allocations=None, nodes=(node,))

    assert [*inventory_differences(inventories_in_nova(nova), inventories_here(FLAT))] == [
        "inventory of DISK_GB: total is 90 in Nova, and 100 here"
    ]
