"""Boots on hosts with CPUs in NUMA nodes, and on hosts with their disk in a shared pool: from the request to the
release.
"""

import pytest

from bus.messages.build import DeleteInstance
from bus.messages.placement import ReportInventory
from engine.flavors import Flavor
from engine.inventories import ReportedInventory, ReportedProvider
from laboratory.computes.hosts import HostSize, SimulatedHost
from tests.contracts.conductor_stores import open_conductor_store
from tests.contracts.placement_orders import aggregate
from tests.stories.cloud import Cloud, a_build, cloud, failing, host_id, instance_of
from tests.stories.layouts import STAGES
from tests.waiting import until

pytestmark = pytest.mark.asyncio

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
        open_conductor_store(books, "c1") as rows,
        setup.cell(rows, nested("better", 16), nested("other", 8), script=failing("better")),
    ):
        await setup.until_reported("better", "other")
        build = a_build(1, flavor=THREE)

        await setup.send(build)
        state = await setup.until_state(instance_of(build), "active")

        assert (state.host, state.attempt) == ("other", 2)
        assert [failure.host for failure in state.failures] == ["better"]
        await until_used(setup, "VCPU", other_NUMA0=3)
        await until_used(setup, "DISK_GB", other=1)

        await setup.client.ask(DeleteInstance(instance=instance_of(build)))
        await setup.until_state(instance_of(build), "deleted")
        await until_used(setup, "VCPU")


@STAGES
async def test_equal_boots_fill_both_nodes_and_the_next_is_told_what_each_has_left(
    bus: str, books: str
) -> None:
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
        open_conductor_store(books, "c1") as rows,
        setup.cell(rows, nested("only", 8)),
    ):
        await setup.until_reported("only")
        both, one_more = a_build(1, flavor=THREE, count=2), a_build(2, flavor=THREE)

        await setup.send(both)
        for index in range(2):
            await setup.until_state(instance_of(both, index), "active")
        await until_used(setup, "VCPU", only_NUMA0=3, only_NUMA1=3)
        await setup.send(one_more)
        state = await setup.until_state(instance_of(one_more), "error")

        assert state.no_valid_host is not None
        assert [(step.step, step.example) for step in state.no_valid_host.steps] == [
            ("capacity", "only: VCPU asked 3, free 1 of 4 at only_NUMA0, the most of 2")
        ]


def alone(name: str, totals: dict[str, int], *traits: str) -> ReportInventory:
    """A tree of one provider, in the aggregate of a rack."""
    provider = ReportedProvider(
        id=host_id(name),
        name=name,
        inventories={resource: ReportedInventory(total=total) for resource, total in totals.items()},
        traits=traits,
        aggregates=(aggregate("rack"),),
    )
    return ReportInventory(cell="c1", root=host_id(name), providers=(provider,))
