"""All ways to place one to four guests on a small host, one after another: each fits exactly if brute force finds a placement
beside the earlier ones, and what the scheduler would claim is such a placement.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import os_resource_classes
import pytest
from msgspec import structs

from bus.messages.build import BuildInstance
from engine.choosing.choosing import Chosen, choose
from engine.flavors import Flavor, PortRequest, RequestId
from engine.inventories import InventoryState, ProviderId, ProviderState, Vocabulary
from engine.requests import InstanceSpec, read_request
from tests.contracts.placement_orders import an_id, provider
from tests.plugins import standard_plugins
from tests.properties.bounds import TIMEOUT_S
from tests.simulation.demands import NUMA_CELL, Demand, Part, placements
from tests.unit.choosing.scheduler_worlds import a_picture, a_state

PLUGINS = standard_plugins(io_ops_max=0, instances_max=0)
VOCABULARY = Vocabulary(frozenset(os_resource_classes.STANDARDS), frozenset())
HUGE, CARD, GPU = "CUSTOM_MEMORY_MB_PAGES_2048", "CUSTOM_PCI_8086_10FB", "VGPU"


def a_provider(
    name: str, has: Mapping[str, int], above: str = "h", *, is_cell: bool = False
) -> ProviderState:
    """A provider of the host. Memory in pages is given in steps."""
    return a_state(
        name,
        {
            resource: InventoryState(total=total, max_unit=total, step_size=1 + (resource == HUGE))
            for resource, total in has.items()
        },
        parent=provider(above) if above else None,
        root=provider("h"),
        traits=(NUMA_CELL,) * is_cell,
    )


Host = tuple[ProviderState, ...]
CELLS: Host = (
    a_provider("h", {"DISK_GB": 4}, ""),
    a_provider("h_NUMA0", {"VCPU": 4, "PCPU": 3, "MEMORY_MB": 6, HUGE: 8}, is_cell=True),
    a_provider("h_NUMA1", {"VCPU": 2, "PCPU": 4, "MEMORY_MB": 4, HUGE: 4}, is_cell=True),
    a_provider("h_card", {CARD: 1}, "h_NUMA0"),
    a_provider("h_card1", {CARD: 1}, "h_NUMA1"),
    a_provider("h_nic", {"SRIOV_NET_VF": 2}, "h_NUMA1"),
    a_provider("h_gpu", {GPU: 1}),
    a_provider("h_gpu1", {GPU: 1}, "h_NUMA1"),
)
FLAT: Host = (
    a_provider("h", {"VCPU": 4, "PCPU": 5, "MEMORY_MB": 8, HUGE: 6, "DISK_GB": 4}, ""),
    a_provider("h_card", {CARD: 1}),
    a_provider("h_gpu", {GPU: 2}),
)

DEDICATED = {"hw:cpu_policy": "dedicated"}
REQUIRED = {"hw:pci_numa_affinity_policy": "required"}


def a_build(specs: Mapping[str, str], vcpus: int, ram_mb: int, *ports: PortRequest) -> BuildInstance:
    return BuildInstance(
        request_id=RequestId(an_id("r")),
        flavor=Flavor(vcpus=vcpus, ram_mb=ram_mb, root_gb=1, extra_specs=dict(specs)),
        port_requests=ports,
    )


A_DISK = {"DISK_GB": 1}
A_FUNCTION = PortRequest(id="p", resources={"SRIOV_NET_VF": 1}, vnic_type="")


def a_guest(
    *cells: Mapping[str, int],
    devices: Sequence[str] = (),
    nearness: str = "legacy",
    loose: Mapping[str, int] = A_DISK,
) -> Demand:
    """For each cell its amounts, the class of each device, and how near these are. `loose` comes from anywhere."""
    return Demand(
        (
            Part("", tuple(loose.items())),
            *[Part(f"cell {number}", tuple(each.items()), kind="cell") for number, each in enumerate(cells)],
            *[
                Part(f"device {number}", ((each, 1),), nearness=nearness if cells else "")
                for number, each in enumerate(devices)
            ],
        )
    )


# What the client asks, and what that is by the rules that the documents state.
GUESTS: list[tuple[str, BuildInstance, Demand]] = [
    ("plain", a_build({}, 2, 3), a_guest(loose={"VCPU": 2, "MEMORY_MB": 3, **A_DISK})),
    ("pinned", a_build(DEDICATED, 2, 2), a_guest({"PCPU": 2, "MEMORY_MB": 2})),
    (
        "emulator",
        a_build({**DEDICATED, "hw:emulator_threads_policy": "isolate"}, 2, 1),
        a_guest({"PCPU": 3, "MEMORY_MB": 1}),
    ),
    (
        "mixed",
        a_build({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0", "hw:mem_page_size": "2048"}, 2, 4),
        a_guest({"PCPU": 1, "VCPU": 1, HUGE: 4}),
    ),
    (
        "two cells",
        a_build({**DEDICATED, "hw:numa_nodes": "2", "hw:mem_page_size": "2MB"}, 2, 4),
        a_guest(*[{"PCPU": 1, HUGE: 2}] * 2),
    ),
    (
        "uneven with a card",
        a_build(
            {
                "hw:numa_nodes": "2",
                "hw:numa_cpus.0": "0-2",
                "hw:numa_cpus.1": "3",
                "hw:numa_mem.0": "1",
                "hw:numa_mem.1": "3",
                "resources1:" + CARD: "1",
                **REQUIRED,
            },
            4,
            4,
        ),
        a_guest(
            {"VCPU": 3, "MEMORY_MB": 1}, {"VCPU": 1, "MEMORY_MB": 3}, devices=[CARD], nearness="required"
        ),
    ),
    (
        "a legacy gpu",
        a_build({**DEDICATED, "resources1:" + GPU: "1"}, 1, 1),
        a_guest({"PCPU": 1, "MEMORY_MB": 1}, devices=[GPU]),
    ),
    (
        "a card and a function",
        a_build({**DEDICATED, "resources1:" + CARD: "1", **REQUIRED}, 1, 2, A_FUNCTION),
        a_guest({"PCPU": 1, "MEMORY_MB": 2}, devices=[CARD, "SRIOV_NET_VF"], nearness="required"),
    ),
    (
        "a function alone",
        a_build({}, 1, 1, A_FUNCTION),
        a_guest(devices=["SRIOV_NET_VF"], loose={"VCPU": 1, "MEMORY_MB": 1, **A_DISK}),
    ),
    (
        "a preferred card",
        a_build({**DEDICATED, "resources1:" + CARD: "1", "hw:pci_numa_affinity_policy": "preferred"}, 3, 1),
        a_guest({"PCPU": 3, "MEMORY_MB": 1}, devices=[CARD], nearness="preferred"),
    ),
]

Used = frozenset[tuple[tuple[ProviderId, str], int]]


class World:
    """A host, and what the scheduler and the oracle say of each guest there."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.verdicts = Counter[tuple[str, bool]]()
        self.preferred_near = 0

    def states(self, used: Used) -> list[ProviderState]:
        taken = dict(used)
        return [
            structs.replace(
                each,
                inventories={
                    name: structs.replace(stock, used=taken.get((each.id, name), 0))
                    for name, stock in each.inventories.items()
                },
            )
            for each in self.host
        ]

    def place(self, name: str, build: BuildInstance, guest: Demand, used: Used) -> Used | None:
        """Place a guest beside what is used. Returns what is used then; None if it does not fit."""
        spec = read_request(build, VOCABULARY)
        assert isinstance(spec, InstanceSpec), spec
        states = self.states(used)
        (found,) = choose(a_picture(*states), [spec], PLUGINS, salt=1)
        possible = placements(guest, states)
        said = f"{name} beside {used}"
        self.verdicts[name, bool(possible)] += 1
        if not isinstance(found, Chosen):
            assert not possible, f"{said}: {found}"
            return None
        taken = {(each.provider, each.resource): each.amount for each in found.choice.share.amounts}
        share = frozenset(taken.items())
        assert share in possible, f"{said}: {share}"
        if name == "a preferred card":
            near = placements(nearer(guest), states)
            assert share in near or not near, f"{said}: {share} is not near, as {near} would be"
            self.preferred_near += share in near
        return frozenset((Counter(dict(used)) + Counter(taken)).items())


def nearer(guest: Demand) -> Demand:
    return structs.replace(
        guest,
        parts=tuple([structs.replace(each, nearness=each.nearness and "required") for each in guest.parts]),
    )


# The worlds of the fourth guest are most of them.
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("guests", [3, pytest.param(4, marks=pytest.mark.proof)])
@pytest.mark.parametrize("host", [CELLS, FLAT], ids=["cells", "flat"])
def test_each_of_several_guests_fits_exactly_if_brute_force_finds_a_placement(
    host: Host, guests: int
) -> None:
    world = World(host)
    place = cache(lambda number, used: world.place(*GUESTS[number], used))
    worlds: set[Used] = {frozenset()}
    for _ in range(guests):
        after = {place(number, used) for used in worlds for number in range(len(GUESTS))}
        worlds = {used for used in after if used is not None}

    # Otherwise the worlds would prove little. The flat host has one place for cells, and no virtual functions.
    only_in_cells = {"two cells", "uneven with a card", "a card and a function", "a function alone"}
    for name, *_ in GUESTS:
        assert bool(world.verdicts[name, True]) == (host is CELLS or name not in only_in_cells), (
            world.verdicts
        )
        assert world.verdicts[name, False], world.verdicts
    assert world.preferred_near
