"""All ways to place one to four guests on a small host, one after another: each fits exactly if brute force finds a placement
beside the earlier ones, and what the scheduler would claim is such a placement.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache

import os_resource_classes
import pytest

from bus.messages.build import BuildInstance
from engine.choosing.choosing import Chosen, choose
from engine.flavors import Flavor, PortRequest, RequestId
from engine.inventories import InventoryState, ProviderState, Vocabulary
from engine.requests import InstanceSpec, read_request
from tests.contracts.placement_orders import an_id, provider
from tests.plugins import standard_plugins
from tests.properties.bounds import TIMEOUT_S
from tests.properties.guest_oracle import SmallGuest, SmallHost, SmallProvider
from tests.unit.choosing.scheduler_worlds import a_picture, a_state

PLUGINS = standard_plugins(io_ops_max=0, instances_max=0)
VOCABULARY = Vocabulary(frozenset(os_resource_classes.STANDARDS), frozenset())
HUGE, CARD, GPU = "CUSTOM_MEMORY_MB_PAGES_2048", "CUSTOM_PCI_8086_10FB", "VGPU"

CELLS = SmallHost(
    SmallProvider("h", {"DISK_GB": 4}),
    SmallProvider(
        "h_NUMA0", {"VCPU": 4, "PCPU": 3, "MEMORY_MB": 6, HUGE: 8}, "h", is_cell=True, steps={HUGE: 2}
    ),
    SmallProvider(
        "h_NUMA1", {"VCPU": 2, "PCPU": 4, "MEMORY_MB": 4, HUGE: 4}, "h", is_cell=True, steps={HUGE: 2}
    ),
    SmallProvider("h_card", {CARD: 1}, "h_NUMA0"),
    SmallProvider("h_card1", {CARD: 1}, "h_NUMA1"),
    SmallProvider("h_nic", {"SRIOV_NET_VF": 2}, "h_NUMA1"),
    SmallProvider("h_gpu", {GPU: 1}, "h"),
    SmallProvider("h_gpu1", {GPU: 1}, "h_NUMA1"),
)
FLAT = SmallHost(
    SmallProvider("h", {"VCPU": 4, "PCPU": 5, "MEMORY_MB": 8, HUGE: 6, "DISK_GB": 4}, steps={HUGE: 2}),
    SmallProvider("h_card", {CARD: 1}, "h"),
    SmallProvider("h_gpu", {GPU: 2}, "h"),
)

DEDICATED = {"hw:cpu_policy": "dedicated"}
REQUIRED = {"hw:pci_numa_affinity_policy": "required"}


def a_build(specs: Mapping[str, str], vcpus: int, ram_mb: int, *ports: PortRequest) -> BuildInstance:
    flavor = Flavor(vcpus=vcpus, ram_mb=ram_mb, root_gb=1, extra_specs=dict(specs))
    return BuildInstance(request_id=RequestId(an_id("r")), flavor=flavor, port_requests=ports)


A_DISK = {"DISK_GB": 1}
A_FUNCTION = PortRequest(id="p", resources={"SRIOV_NET_VF": 1}, vnic_type="")

# What the client asks, and what that is by the rules that the documents state.
GUESTS: list[tuple[BuildInstance, SmallGuest]] = [
    (a_build({}, 2, 3), SmallGuest("plain", loose={"VCPU": 2, "MEMORY_MB": 3, **A_DISK})),
    (a_build(DEDICATED, 2, 2), SmallGuest("pinned", [{"PCPU": 2, "MEMORY_MB": 2}], loose=A_DISK)),
    (
        a_build({**DEDICATED, "hw:emulator_threads_policy": "isolate"}, 2, 1),
        SmallGuest("emulator", [{"PCPU": 3, "MEMORY_MB": 1}], loose=A_DISK),
    ),
    (
        a_build({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0", "hw:mem_page_size": "2048"}, 2, 4),
        SmallGuest("mixed", [{"PCPU": 1, "VCPU": 1, HUGE: 4}], loose=A_DISK),
    ),
    (
        a_build({**DEDICATED, "hw:numa_nodes": "2", "hw:mem_page_size": "2MB"}, 2, 4),
        SmallGuest("two cells", [{"PCPU": 1, HUGE: 2}] * 2, loose=A_DISK),
    ),
    (
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
        SmallGuest(
            "uneven with a card",
            [{"VCPU": 3, "MEMORY_MB": 1}, {"VCPU": 1, "MEMORY_MB": 3}],
            [CARD],
            "required",
            loose=A_DISK,
        ),
    ),
    (
        a_build({**DEDICATED, "resources1:" + GPU: "1"}, 1, 1),
        SmallGuest("a legacy gpu", [{"PCPU": 1, "MEMORY_MB": 1}], [GPU], loose=A_DISK),
    ),
    (
        a_build({**DEDICATED, "resources1:" + CARD: "1", **REQUIRED}, 1, 2, A_FUNCTION),
        SmallGuest(
            "a card and a function",
            [{"PCPU": 1, "MEMORY_MB": 2}],
            [CARD, "SRIOV_NET_VF"],
            "required",
            loose=A_DISK,
        ),
    ),
    (
        a_build({}, 1, 1, A_FUNCTION),
        SmallGuest("a function alone", devices=["SRIOV_NET_VF"], loose={"VCPU": 1, "MEMORY_MB": 1, **A_DISK}),
    ),
    (
        a_build({**DEDICATED, "resources1:" + CARD: "1", "hw:pci_numa_affinity_policy": "preferred"}, 3, 1),
        SmallGuest("a preferred card", [{"PCPU": 3, "MEMORY_MB": 1}], [CARD], "preferred", loose=A_DISK),
    ),
]

Used = frozenset[tuple[tuple[str, str], int]]


class World:
    """A host, and what the scheduler and the oracle say of each guest there."""

    def __init__(self, host: SmallHost) -> None:
        self.host = host
        self.verdicts = Counter[tuple[str, bool]]()
        self.preferred_near = 0

    def states(self, used: Used) -> list[ProviderState]:
        taken = dict(used)
        return [
            a_state(
                each.name,
                {
                    resource: InventoryState(
                        total=total,
                        max_unit=total,
                        step_size=dict(each.steps).get(resource, 1),
                        used=taken.get((each.name, resource), 0),
                    )
                    for resource, total in each.has.items()
                },
                internal=number + 1,
                parent=provider(each.above) if each.above else None,
                root=provider("h"),
                traits=("HW_NUMA_ROOT",) * each.is_cell,
            )
            for number, each in enumerate(self.host.providers.values())
        ]

    def place(self, build: BuildInstance, guest: SmallGuest, used: Used) -> Used | None:
        """Place a guest beside what is used. Returns what is used then; None if it does not fit."""
        spec = read_request(build, VOCABULARY)
        assert isinstance(spec, InstanceSpec), spec
        (found,) = choose(a_picture(*self.states(used)), [spec], PLUGINS, salt=1)
        possible = set(self.host.placements(guest, dict(used)))
        said = f"{guest.name} beside {sorted(used)}"
        self.verdicts[guest.name, bool(possible)] += 1
        if not isinstance(found, Chosen):
            assert not possible, f"{said}: {found}"
            return None
        names = {provider(name): name for name in self.host.providers}
        share = tuple(
            sorted((names[each.provider], each.resource, each.amount) for each in found.choice.share.amounts)
        )
        assert share in possible, f"{said}: {share}"
        if guest.nearness == "preferred":
            near = set(self.host.placements(structs_near(guest), dict(used)))
            assert share in near or not near, f"{said}: {share} is not near, as {near} would be"
            self.preferred_near += share in near
        after = Counter(dict(used))
        for name, resource, amount in share:
            after[name, resource] += amount
        return frozenset(after.items())


def structs_near(guest: SmallGuest) -> SmallGuest:
    return SmallGuest(guest.name, guest.cells, guest.devices, "required", guest.loose)


# The worlds of the fourth guest are most of them.
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("guests", [3, pytest.param(4, marks=pytest.mark.proof)])
@pytest.mark.parametrize("host", [CELLS, FLAT], ids=["cells", "flat"])
def test_each_of_several_guests_fits_exactly_if_brute_force_finds_a_placement(
    host: SmallHost, guests: int
) -> None:
    world = World(host)
    place = cache(lambda number, used: world.place(*GUESTS[number], used))
    worlds: set[Used] = {frozenset()}
    for _ in range(guests):
        after = {place(number, used) for used in worlds for number in range(len(GUESTS))}
        worlds = {used for used in after if used is not None}

    # Otherwise the worlds would prove little.
    with_cells = {guest.name for _, guest in GUESTS if len(guest.cells) > 1}
    for _, guest in GUESTS:
        fits = host is CELLS or not (guest.name in with_cells or "SRIOV_NET_VF" in guest.devices)
        assert bool(world.verdicts[guest.name, True]) == fits, world.verdicts
        assert world.verdicts[guest.name, False], world.verdicts
    assert world.preferred_near


CELL_PLACES, DEVICE_PLACES, IN_CELLS = 0b0000110, 0b1111000, 0b0111110
