"""Guests with processors, pages and devices on a host of two cells, through all rooms: a sample of the small worlds that
tests/properties/test_guest_worlds.py has in full, compared with the same brute force.
"""

import random
from collections import Counter

import pytest

from bus.messages.build import BuildInstance, DeleteInstance
from laboratory.computes.hosts import HostSize, SimulatedHost, gpu, pci_function, virtual_functions
from tests.contracts.conductor_stores import open_conductor_store
from tests.properties.guest_oracle import SmallGuest, SmallHost, SmallProvider
from tests.properties.test_guest_worlds import GUESTS
from tests.stories.cloud import Cloud, a_build, cloud, instance_of
from tests.stories.layouts import STAGES
from tests.waiting import until

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
        setup.cell(rows, IN_CELLS),
    ):
        await setup.until_reported("h")

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
            await until(lambda: host_and_used(setup), "nothing is in use", lambda found: not found[1])
    assert verdicts[True] > 5
    assert verdicts[False] > 2, verdicts
