"""Boots on hosts with CPUs in NUMA nodes, and on hosts with their disk in a shared pool: from the request to the
release. Guests with processors, pages and devices on a host of two cells are a sample of the small worlds that
tests/properties/test_guest_worlds.py has in full.
"""

import random
from collections import Counter
from collections.abc import Mapping

from bus.messages.build import BuildInstance
from engine.flavors import Flavor
from engine.inventories import ProviderId, ProviderState
from laboratory.computes.hosts import HostSize, SimulatedHost, gpu, pci_function, virtual_functions
from tests.properties.test_guest_worlds import GUESTS
from tests.simulation.demands import Demand, placements
from tests.stories.cloud import Cloud, a_build, cloud, failing, funnel_of, instance_of
from tests.stories.layouts import STAGES
from tests.waiting import until

THREE = Flavor(name="three", vcpus=3, ram_mb=1024, root_gb=1)


def nested(name: str, vcpus: int) -> SimulatedHost:
    """Half of them in each of two NUMA nodes."""
    return SimulatedHost(name=name, size=HostSize(vcpus=vcpus, numa_nodes=2, vcpu_ratio=1.0))


async def until_used(setup: Cloud, resource: str, **used: int) -> None:
    """Wait until exactly these amounts of these providers are used, and nothing else."""

    async def is_so() -> bool:
        now = {
            name: inventory.used
            for name, state in (await setup.providers()).items()
            if (inventory := state.inventories.get(resource)) is not None and inventory.used
        }
        return now == used

    await until(is_so, f"of {resource} used {used}")


@STAGES
async def test_a_boot_is_claimed_in_one_node_swapped_to_a_node_of_another_host_and_released(
    bus: str, books: str
) -> None:
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
        setup.cell(nested("better", 16), nested("other", 8), script=failing("better")),
    ):
        state = await setup.boot(1, flavor=THREE)

        assert (state.host, state.attempt) == ("other", 2)
        assert [failure.host for failure in state.failures] == ["better"]
        await until_used(setup, "VCPU", other_NUMA0=3)
        await until_used(setup, "DISK_GB", other=1)

        await setup.delete(state.id)
        await until_used(setup, "VCPU")


@STAGES
async def test_equal_boots_fill_both_nodes_and_the_next_is_told_what_each_has_left(
    bus: str, books: str
) -> None:
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
        setup.cell(nested("only", 8)),
    ):
        both, one_more = a_build(1, flavor=THREE, count=2), a_build(2, flavor=THREE)

        await setup.built(both)
        await until_used(setup, "VCPU", only_NUMA0=3, only_NUMA1=3)
        (state,) = await setup.built(one_more, "error")

        assert [(step.step, step.example) for step in funnel_of(state).steps] == [
            ("capacity", "only: VCPU asked 3, free 1 of 4 at only_NUMA0, the most of 2")
        ]


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


async def placed(setup: Cloud, build: BuildInstance, guest: Demand) -> bool:
    """Boot a guest; whether it got a place, which is one that brute force finds."""
    before = await setup.providers()
    possible = placements(guest, before.values())
    (state,) = await setup.built(build, "active" if possible else "error")
    assert bool(state.host) == bool(possible)
    taken = used_of(await setup.providers())
    taken.subtract(used_of(before))
    share = frozenset((part, amount) for part, amount in taken.items() if amount)
    assert share in possible if possible else not share, f"{build.name} got {share}"
    return bool(possible)


def used_of(states: Mapping[str, ProviderState]) -> Counter[tuple[ProviderId, str]]:
    return Counter(
        {
            (state.id, resource): each.used
            for state in states.values()
            for resource, each in state.inventories.items()
        }
    )


@STAGES
async def test_guests_in_a_row_get_places_exactly_if_there_are_any(bus: str, books: str) -> None:
    chance, verdicts = random.Random(28), Counter[bool]()
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
        setup.cell(IN_CELLS),
    ):
        number = 0
        for _ in range(SEQUENCES):
            alive = []
            for _ in range(GUESTS_MAX):
                number += 1
                _, asked, guest = chance.choice(GUESTS)
                build = a_build(number, flavor=asked.flavor, port_requests=asked.port_requests)
                fits = await placed(setup, build, guest)
                verdicts[fits] += 1
                alive += [instance_of(build)] * fits
            for instance in alive:
                await setup.delete(instance)
            # Placement hears of a release by a message of its own.
            await until(setup.providers, "nothing is in use", lambda found: not any(used_of(found).values()))
    assert verdicts[True] > 5
    assert verdicts[False] > 2, verdicts
