"""The rule by which the simulation judges what demanding requests get, on trees that a person can check."""

from uuid import UUID

import pytest

from engine.inventories import ProviderId
from tests.simulation.demands import Demand, Part, ProviderNow, Taken, Tree, has_room, ways

ROOT, LEFT, RIGHT, DEVICE = (ProviderId(UUID(int=n)) for n in range(1, 5))
CPU = (("VCPU", 2),)
# Two NUMA nodes, and a device in the right one.
TREE: Tree = {
    ROOT: ProviderNow(None, frozenset({"GOLD"}), {"DISK_GB": 5}),
    LEFT: ProviderNow(ROOT, frozenset({"NUMA"}), {"VCPU": 4}),
    RIGHT: ProviderNow(ROOT, frozenset({"NUMA"}), {"VCPU": 3}),
    DEVICE: ProviderNow(RIGHT, frozenset({"FAST"}), {"PCI_DEVICE": 1}),
}


@pytest.mark.parametrize(
    ("demand", "expected"),
    [
        (Demand((Part("", CPU),)), [{(LEFT, "VCPU"): 2}, {(RIGHT, "VCPU"): 2}]),
        (Demand((Part("", CPU, required=("GOLD",)),)), []),
        (
            Demand((Part("", (*CPU, ("DISK_GB", 1)), required=("GOLD",), forbidden=("FAST",)),)),
            [{(LEFT, "VCPU"): 2, (ROOT, "DISK_GB"): 1}, {(RIGHT, "VCPU"): 2, (ROOT, "DISK_GB"): 1}],
        ),
        (
            Demand((Part("_A", CPU), Part("_B", CPU)), isolates=True),
            [{(LEFT, "VCPU"): 2, (RIGHT, "VCPU"): 2}] * 2,
        ),
        (
            Demand((Part("_A", CPU), Part("_B", (("PCI_DEVICE", 1),))), same_subtree=("_A", "_B")),
            [{(RIGHT, "VCPU"): 2, (DEVICE, "PCI_DEVICE"): 1}],
        ),
        # The root is above both.
        (
            Demand(
                (Part("_A", CPU), Part("_B", (("PCI_DEVICE", 1),)), Part("_TOP", required=("GOLD",))),
                same_subtree=("_A", "_B", "_TOP"),
            ),
            [
                {(LEFT, "VCPU"): 2, (DEVICE, "PCI_DEVICE"): 1},
                {(RIGHT, "VCPU"): 2, (DEVICE, "PCI_DEVICE"): 1},
            ],
        ),
        (Demand((Part("_A", (("PCI_DEVICE", 1),), forbidden=("FAST",)),)), []),
        (Demand((Part("p", (("PCI_DEVICE", 1),), kind="port", physical_network="blue"),)), []),
    ],
)
def test_the_ways_are_all_that_serve_each_part(demand: Demand, expected: list[Taken]) -> None:
    assert list(ways(demand, TREE)) == expected


def test_there_is_room_if_one_provider_has_it_for_all_that_take_from_it() -> None:
    twice = Demand((Part("_A", CPU), Part("_B", CPU)))
    assert has_room(twice, TREE)
    assert not has_room(Demand((Part("_A", (("VCPU", 5),)),)), TREE)
    assert not has_room(Demand((*twice.parts, Part("_C", CPU), Part("_D", CPU))), TREE)


HOST, NUMA_A, NUMA_B, CARD_A, CARD_B, OUTSIDE = (ProviderId(UUID(int=n)) for n in range(10, 16))
CELLS_TREE: Tree = {
    HOST: ProviderNow(None, frozenset(), {}),
    NUMA_A: ProviderNow(HOST, frozenset({"HW_NUMA_ROOT"}), {"PCPU": 2}),
    NUMA_B: ProviderNow(HOST, frozenset({"HW_NUMA_ROOT"}), {"PCPU": 1}),
    CARD_A: ProviderNow(NUMA_A, frozenset(), {"FPGA": 1}),
    CARD_B: ProviderNow(NUMA_B, frozenset(), {"FPGA": 1}),
    OUTSIDE: ProviderNow(HOST, frozenset(), {"FPGA": 1}),
}


@pytest.mark.parametrize(
    ("nearness", "cards"),
    [
        ("required", {CARD_A}),
        ("legacy", {CARD_A, OUTSIDE}),
        ("preferred", {CARD_A, CARD_B, OUTSIDE}),
    ],
)
def test_a_device_is_as_near_to_the_cell_of_the_guest_as_it_asks(
    nearness: str, cards: set[ProviderId]
) -> None:
    cell = Part("guest cell 0", (("PCPU", 1),), kind="cell")
    demand = Demand((cell, Part("_D", (("FPGA", 1),), nearness=nearness)))

    beside_a = [way for way in ways(demand, CELLS_TREE) if (NUMA_A, "PCPU") in way]

    assert {provider for way in beside_a for provider, name in way if name == "FPGA"} == cards


def test_two_cells_of_a_guest_are_at_two_cells_of_the_host() -> None:
    cells = [Part(f"guest cell {number}", (("PCPU", 1),), kind="cell") for number in range(2)]

    assert [set(way) for way in ways(Demand(tuple(cells)), CELLS_TREE)] == [
        {(NUMA_A, "PCPU"), (NUMA_B, "PCPU")},
        {(NUMA_A, "PCPU"), (NUMA_B, "PCPU")},
    ]
    flat = {HOST: ProviderNow(None, frozenset(), {"PCPU": 4})}
    assert has_room(Demand((cells[0],)), flat)
    assert not has_room(Demand(tuple(cells)), flat)
