"""Guests with processors, pages and devices on a host of two cells, through all rooms: a sample of the small worlds that
tests/properties/test_guest_worlds.py has in full, compared with the same brute force.
"""

import random
from collections import Counter

import pytest

from bus.messages.build import BuildInstance, DeleteInstance
from engine.flavors import Flavor
from laboratory.computes.hosts import HostSize, SimulatedHost, gpu, pci_function, virtual_functions
from tests.contracts.conductor_stores import open_conductor_store
from tests.properties.guest_oracle import SmallGuest, SmallHost, SmallProvider
from tests.properties.test_guest_worlds import GUESTS
from tests.stories.cloud import Cloud, a_build, cloud, instance_of, wait_until
from tests.stories.layouts import STAGES
from tests.stories.scheduling.test_scheduler_nested import a_cell

pytestmark = pytest.mark.asyncio

SEQUENCES, GUESTS_MAX = 6, 4
IN_CELLS = SimulatedHost(
    name="h",
    size=HostSize(
        vcpus=6,
        vcpu_ratio=1.0,
        ram_mb=10,
        ram_mb_reserved=0,
        disk_gb=4,
        numa_nodes=2,
        pcpus=7,
        pages=((2048, 12),),
        devices=(
            pci_function("8086", "10fb"),
            virtual_functions(2, "blue"),
            gpu("nvidia", 1),
            gpu("nvidia", 1),
        ),
    ),
)
Used = dict[tuple[str, str], int]


async def host_and_used(setup: Cloud) -> tuple[SmallHost, Used]:
    """The host's tree as placement has it, and what is used of it."""
    states = await setup.providers()
    names = {state.id: state.name for state in states.values()}
    small = SmallHost(
        *(
            SmallProvider(
                state.name,
                {resource: each.total for resource, each in state.inventories.items()},
                names[state.parent] if state.parent else "",
                is_cell="HW_NUMA_ROOT" in state.traits,
                steps={resource: each.step_size for resource, each in state.inventories.items()},
            )
            for state in states.values()
        )
    )
    used = {
        (state.name, resource): each.used
        for state in states.values()
        for resource, each in state.inventories.items()
        if each.used
    }
    return small, used


async def placed(setup: Cloud, build: BuildInstance, guest: SmallGuest) -> bool:
    """Boot a guest; whether it got a place, which is one that brute force finds."""
    host, before = await host_and_used(setup)
    possible = set(host.placements(guest, before))
    await setup.send(build)
    state = await setup.until_state(instance_of(build), "active" if possible else "error")
    assert bool(state.host) == bool(possible)
    _, after = await host_and_used(setup)
    grown = Counter(after)
    grown.subtract(before)
    share = tuple(sorted((*part, amount) for part, amount in grown.items() if amount))
    assert share in possible if possible else not share, f"{guest.name} got {share}"
    return bool(possible)


@STAGES
async def test_guests_in_a_row_get_places_exactly_if_there_are_any(bus: str, books: str) -> None:
    chance, verdicts = random.Random(28), Counter[bool]()
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
        open_conductor_store(books, "c1") as rows,
        a_cell(setup, rows, IN_CELLS),
    ):
        await setup.until_reported("h")

        async def is_free() -> bool:
            return not (await host_and_used(setup))[1]

        number = 0
        for _ in range(SEQUENCES):
            alive = []
            for _ in range(GUESTS_MAX):
                number += 1
                asked, guest = chance.choice(GUESTS)
                build = a_build(number, flavor=asked.flavor, port_requests=asked.port_requests)
                fits = await placed(setup, build, guest)
                verdicts[fits] += 1
                alive += [instance_of(build)] * fits
            for instance in alive:
                await setup.client.ask(DeleteInstance(instance=instance))
                await setup.until_state(instance, "deleted")
            # Placement hears of a release by a message of its own.
            await wait_until(is_free, "nothing is in use")
    assert verdicts[True] > 5
    assert verdicts[False] > 2, verdicts


@STAGES
async def test_a_guest_of_two_cells_is_tried_on_no_flat_host_however_much_room_that_has(
    bus: str, books: str
) -> None:
    two = Flavor(name="two", vcpus=2, ram_mb=2, root_gb=1, extra_specs={"hw:numa_nodes": "2"})
    flat = [
        SimulatedHost(name=f"flat-{number}", size=HostSize(vcpus=64, ram_mb=65_536)) for number in range(5)
    ]
    nested = SimulatedHost(
        name="nested", size=HostSize(vcpus=4, vcpu_ratio=1.0, ram_mb=64, ram_mb_reserved=0, numa_nodes=2)
    )
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
        open_conductor_store(books, "c1") as rows,
        a_cell(setup, rows, *flat, nested),
    ):
        await setup.until_reported("nested", *(each.name for each in flat))
        fits, too_many = a_build(1, flavor=two, count=2), a_build(2, flavor=two)
        await setup.send(fits)
        states = [await setup.until_state(instance_of(fits, index), "active") for index in range(2)]
        await setup.send(too_many)
        refused = await setup.until_state(instance_of(too_many), "error")

    assert [(each.host, each.attempt, each.failures) for each in states] == [("nested", 1, ())] * 2
    assert (refused.failures, refused.attempt) == ((), 0)
    assert refused.no_valid_host is not None
    assert [(step.step, step.removed) for step in refused.no_valid_host.steps] == [("capacity", 6)]


@STAGES
async def test_a_guest_without_a_cell_is_told_what_each_cell_has_left(bus: str, books: str) -> None:
    pinned = Flavor(name="pinned", vcpus=3, ram_mb=1, root_gb=1, extra_specs={"hw:cpu_policy": "dedicated"})
    two = Flavor(name="two", vcpus=2, ram_mb=2, root_gb=1, extra_specs={"hw:numa_nodes": "2"})
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
        open_conductor_store(books, "c1") as rows,
        a_cell(setup, rows, IN_CELLS, SimulatedHost(name="flat", size=HostSize(vcpus=4, ram_mb=1024))),
    ):
        await setup.until_reported("h", "flat")
        both, one_more = a_build(1, flavor=pinned, count=2), a_build(2, flavor=pinned)
        on_flat = a_build(3, flavor=two, hosts=("flat",))
        await setup.send(both)
        for index in range(2):
            assert (await setup.until_state(instance_of(both, index), "active")).host == "h"
        await setup.send(one_more)
        state = await setup.until_state(instance_of(one_more), "error")
        await setup.send(on_flat)
        flat = await setup.until_state(instance_of(on_flat), "error")

    assert state.no_valid_host is not None
    nearest = {miss.host: miss.reason for miss in state.no_valid_host.nearest}
    assert nearest == {
        "h": "guest cell 0: PCPU asked 3, free 1 of 4 at h_NUMA0, the nearest of 2",
        "flat": "guest cell 0: PCPU asked 3, has none at flat",
    }
    assert flat.no_valid_host is not None
    (_, refused) = flat.no_valid_host.steps
    assert refused.step == "capacity"
    assert refused.example == (
        "flat: the resources outside of groups, guest cell 0, guest cell 1 have room together, but not each guest cell at a NUMA "
        "cell of its own"
    )
