"""Hosts whose disk and addresses come from pools that the compute reports: a boot, a swap, a refusal, a delete."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from msgspec import structs

from bus.message import Message
from bus.messages.books import SetAggregates
from bus.messages.build import BuildRejected, InstancesFound
from bus.messages.moves import MoveInstance
from cell_conductor.store_sql import ConductorStore
from compute_sim.settings import ComputeSettings
from engine.flavors import Flavor, RequestId
from engine.inventories import AggregateId
from laboratory.computes.hosts import HostSize, SimulatedHost
from tests.contracts.stores import open_conductor_store
from tests.stories.cloud import Cloud, a_build, cloud, instance_of
from tests.stories.layouts import STAGES
from tests.waiting import until

PRETENDING = ComputeSettings(
    cell="c1",
    beat_s=0.1,
    facts_every_s=0.05,
    pools=("nfs:DISK_GB=20", "segment:IPV4_ADDRESS=2"),
)
NFS = "c1-nfs"
FLAVOR = Flavor(
    name="small", vcpus=1, ram_mb=1024, root_gb=5, extra_specs={"resources_NET:IPV4_ADDRESS": "1"}
)
# What each instance has, wherever it is.
DISK = 5


def a_host(name: str, vcpus: int) -> SimulatedHost:
    return SimulatedHost(name=name, size=HostSize(vcpus=vcpus, vcpu_ratio=1.0))


@asynccontextmanager
async def a_cell(
    setup: Cloud, *hosts: SimulatedHost, rows: ConductorStore | None = None
) -> AsyncIterator[None]:
    """c1, with a real conductor, simulated hypervisors, and two pools."""
    async with setup.cell(*hosts, rows=rows, computing=PRETENDING):
        # Pools are reported before hosts.
        await setup.until_reported(*(host.name for host in hosts))
        yield


@STAGES
async def test_a_resize_on_a_full_host_counts_what_its_numa_node_and_its_pool_gave(
    bus: str, books: str
) -> None:
    """Each NUMA node has four processors, and the pool 20 GB of disk."""
    small, large = Flavor(vcpus=2, ram_mb=512, root_gb=9), Flavor(vcpus=3, ram_mb=512, root_gb=11)
    size = HostSize(vcpus=8, numa_nodes=2, vcpu_ratio=1.0)
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
        a_cell(setup, SimulatedHost(name="host-1", size=size)),
    ):
        builds = [a_build(1, flavor=small), a_build(2, flavor=structs.replace(small, vcpus=4))]
        for build in builds:
            await setup.built(build)

        async def resized(number: int, flavor: Flavor) -> Message:
            return await setup.client.ask(
                MoveInstance(
                    request_id=RequestId(UUID(int=number)),
                    instance=instance_of(builds[0]),
                    kind="resize",
                    flavor=flavor,
                    hosts=("host-1",),
                    confirm_s=0,
                )
            )

        for number, (too_large, why) in enumerate(
            (
                (structs.replace(large, vcpus=5), "host-1: VCPU asked 5, free 4 of 4 at host-1_NUMA"),
                (structs.replace(large, root_gb=12), "host-1: DISK_GB asked 12, free 11 of 20 at c1-nfs"),
            )
        ):
            refusal = await resized(1000 + number, too_large)
            assert isinstance(refusal, BuildRejected)
            assert why in refusal.reason
        assert isinstance(await resized(2000, large), InstancesFound)
        await until(
            lambda: setup.instance(instance_of(builds[0])),
            "it has the larger size",
            lambda told: told.state == "active" and told.attempt == 2,
        )
        nodes = await setup.providers()
        used = sorted(nodes[f"host-1_NUMA{number}"].inventories["VCPU"].used for number in range(2))
        assert (used, nodes[NFS].inventories["DISK_GB"].used) == ([3, 4], 20)


@STAGES
async def test_pools_keep_what_is_held_while_their_compute_is_away_and_when_it_is_back(
    bus: str, books: str
) -> None:
    racks = AggregateId(UUID(int=7))
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
        open_conductor_store(books, "c1") as rows,
    ):
        first, second = a_build(1, flavor=FLAVOR), a_build(2, flavor=FLAVOR)
        async with a_cell(setup, a_host("one", 8), a_host("two", 8), rows=rows):
            await setup.built(first)
            before = await setup.providers()
            member = before["one"]
            aggregates = (*member.aggregates, racks)
            await setup.client.ask(
                SetAggregates(provider=member.id, generation=member.generation, aggregates=aggregates)
            )
        async with a_cell(setup, a_host("one", 9), a_host("two", 8), rows=rows):
            await until(
                setup.providers,
                "the host reported again",
                lambda found: found["one"].inventories["VCPU"].total == 9,
            )
            await setup.client.ask(second)
            await setup.until_state(instance_of(second), "active")

            after = await setup.providers()
            assert after[NFS].inventories["DISK_GB"].used == 2 * DISK
            assert after[NFS].shape == before[NFS].shape
            assert set(after["one"].aggregates) == {*aggregates}
