"""A whole cloud to audit: two cells, hosts with NUMA nodes, a pool of disks; and its instances, in a server group each."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory
from typing import NamedTuple
from uuid import UUID, uuid4

import pytest
from msgspec import structs

from bus.addresses import broker_at
from bus.broker import Broker
from bus.memory import MemoryBroker
from bus.messages.build import (
    AskInstances,
    BuildInstance,
    DeleteInstance,
    InstancesFound,
    InstanceState,
    MoveEnd,
    MoveKind,
)
from bus.messages.moves import EndMove, MoveInstance
from bus.messages.projects import CreateGroup, GroupsFound
from bus.topology import user_of
from bus.workers.connections import Station
from compute_sim import wiring
from compute_sim.settings import ComputePace, ComputeSettings
from engine.flavors import Flavor, InstanceId, JoinedGroup, RequestId
from engine.inventories import GroupId
from laboratory.computes.faults import FaultScript
from moor.client.books.auditing import AuditOptions, AuditResult, audited, with_computes
from moor.client.books.books_reader import BooksReader
from moor.client.bus_client import answer_of, hosts_of, station_on, until_choosable
from moor.clouds.cloud import CloudPlan, cloud
from moor.worker_settings import CloudSettings
from placement_worker.store_sql import PlacementStore
from scheduler_worker.settings import SchedulerSettings
from tests.contracts.stage import SETTINGS
from tests.stories.real_servers import real_servers
from tests.waiting import PATIENCE_S, until

CELLS = ("c1", "c2")
NO_FAULTS = FaultScript()
SIZE = "vcpus=400,ram_mb=400000,numa_nodes=2,vcpu_ratio=1"
FLAVOR = Flavor(name="two", vcpus=2, ram_mb=1024, root_gb=3)
SMALLER = Flavor(name="one", vcpus=1, ram_mb=512, root_gb=3)
# The share of one NUMA node; the disk comes from the cell's pool.
PACE = ComputePace(again_s=0.05, reshape_again_s=0.5, drain_s=0.1)
TUNED = CloudSettings(
    compute=ComputeSettings(
        beat_s=0.1,
        facts_every_s=0.05,
        pools=("nfs:DISK_GB=100000",),
    ),
    scheduler=SchedulerSettings(instances_per_host_max=1000),
    bus=SETTINGS,
)


class BooksStage:
    def __init__(self, client: Station, placement: PlacementStore, database_url: str, bus_url: str) -> None:
        self.client = client
        self.placement = placement
        self.database_url = database_url
        # Empty if the bus is in memory.
        self.bus_url = bus_url

    async def boot(self, first: int, count: int) -> list[InstanceId]:
        """Requests with these numbers are active; each instance is the only member of a group of its own."""
        for number in range(first, first + count):
            await self.ask_boot(number)
        ids = [instance for number in range(first, first + count) for instance in self.ids_of(number)]
        await self.until(ids, {"active"})
        return ids

    async def ask_boot(self, number: int) -> None:
        group = GroupId(UUID(int=number + 10**6))
        await answer_of(
            self.client, CreateGroup(id=group, policy="anti-affinity", name=f"group-{number}"), GroupsFound
        )
        await self.client.send(
            BuildInstance(
                request_id=RequestId(UUID(int=number)),
                instance_ids=self.ids_of(number),
                flavor=FLAVOR,
                name=f"vm-{number}",
                project="shop",
                user="ann",
                group=JoinedGroup(id=group),
                deadline_s=120,
            )
        )

    @staticmethod
    def ids_of(number: int) -> tuple[InstanceId, ...]:
        return (InstanceId(UUID(int=number << 64)),)

    async def ask_many(self, first: int, requests: int, count: int) -> list[InstanceId]:
        """Ask for so many requests of `count` instances each, and return their ids."""
        numbers = range(first, first + requests)
        ids = {
            number: tuple(InstanceId(UUID(int=(number << 64) + index)) for index in range(count))
            for number in numbers
        }
        for number in numbers:
            await self.client.send(
                BuildInstance(
                    request_id=RequestId(UUID(int=number)),
                    instance_ids=ids[number],
                    count=count,
                    flavor=FLAVOR,
                    project="shop",
                    deadline_s=300,
                )
            )
        return [id_ for number in numbers for id_ in ids[number]]

    async def ask_delete(self, ids: Sequence[InstanceId]) -> None:
        for id_ in ids:
            await self.client.send(DeleteInstance(instance=id_))

    async def boot_in(self, first: int, states: Sequence[str]) -> list[InstanceId]:
        """An instance in each of these states. `resized`: it has moved to its own host, and needs less there."""
        ids = await self.boot(first, len(states))
        kinds: dict[str, MoveKind] = {"moved": "migrate", "shelved": "shelve", "offloaded": "offload"}
        for id_, state in zip(ids, states, strict=True):
            if state == "resized":
                await self.move(id_, "resize", "moved", flavor=SMALLER, hosts=((await self.state(id_)).host,))
            elif state in kinds:
                await self.move(id_, kinds[state], state)
        return ids

    async def move(self, instance: InstanceId, kind: MoveKind, *ends: str, **fields: object) -> InstanceState:
        """The instance when this order has brought it into one of these states. A move that arrives waits for long to be confirmed."""
        order = MoveInstance(request_id=RequestId(uuid4()), instance=instance, kind=kind, confirm_s=3600)
        order = structs.replace(order, **fields)
        await answer_of(self.client, order, InstancesFound)
        return await until(
            lambda: self.state(instance),
            f"{kind} has ended in {ends}",
            lambda now: now.move and now.move.request_id == order.request_id and now.state in ends,
        )

    async def end(self, instance: InstanceId, how: MoveEnd) -> None:
        """End the move that waits for it."""
        move = (await self.state(instance)).move
        assert move is not None
        await answer_of(
            self.client, EndMove(request_id=move.request_id, instance=instance, how=how), InstancesFound
        )
        await self.until([instance], {"active"})

    async def delete(self, ids: Sequence[InstanceId]) -> None:
        await self.ask_delete(ids)
        await self.until(ids, {"deleted"})

    async def state(self, instance: InstanceId) -> InstanceState:
        return (await self.states([instance]))[instance]

    async def states(self, ids: Sequence[InstanceId]) -> dict[InstanceId, InstanceState]:
        parts = [tuple(ids[start : start + 200]) for start in range(0, len(ids), 200)]
        answers = [
            await answer_of(self.client, AskInstances(instances=part, limit=200), InstancesFound)
            for part in parts
        ]
        return {each.id: each for found in answers for each in found.instances}

    async def until(self, ids: Sequence[InstanceId], wanted: Collection[str]) -> None:
        await until(
            lambda: self.states(ids),
            f"{len(ids)} instances are {wanted}",
            lambda found: len(found) == len(ids) and all(each.state in wanted for each in found.values()),
        )

    async def audit(
        self,
        *,
        heals: bool = False,
        settle_s: float = 0,
        cell: str = "",
        host: str = "",
        reader: Callable[[Station, Collection[str], Collection[str]], BooksReader] | None = None,
    ) -> AuditResult:
        hosts = await hosts_of(self.client)
        options = AuditOptions(
            settle=timedelta(seconds=settle_s),
            heals=heals,
            cell=cell,
            host=next((each.id for each in hosts if each.name == host), None),
        )
        make = reader or (
            lambda client, cells, computes: BooksReader(client, dict.fromkeys(cells, client), computes)
        )
        return await audited(
            make(self.client, CELLS, with_computes(hosts)), options, clock=lambda: datetime.now(UTC)
        )

    async def until_silent(self) -> None:
        """Everything that is in flight has arrived."""
        await until(self.audit, "the books agree", lambda found: not found.findings and not found.in_flight)


class Site(NamedTuple):
    """The servers of a cloud, which outlive its workers."""

    broker: Broker
    operator: Broker
    as_user: Callable[[str], Broker] | None
    database_url: str
    # Empty if the bus is in memory.
    bus_url: str


@asynccontextmanager
async def a_site(kind: str) -> AsyncIterator[Site]:
    """`embedded` or `real`."""
    if kind == "real":
        async with real_servers() as (bus_url, database_url):
            broker = broker_at(bus_url)
            yield Site(broker, broker, None, database_url, bus_url)
        return
    memory = MemoryBroker()
    with TemporaryDirectory() as directory:
        url = f"sqlite+aiosqlite:///{directory}/moor.db"
        yield Site(memory.as_user(), memory.as_user(user_of("operator")), memory.as_user, url, "")


@asynccontextmanager
async def stage_on(
    site: Site,
    host_size: str = SIZE,
    faults: FaultScript = NO_FAULTS,
    *,
    keeps_hosts: bool = False,
) -> AsyncIterator[BooksStage]:
    """All workers of a cloud with hosts of this size, until the context is left. With `keeps_hosts` the next one finds their instances."""
    plan = CloudPlan(
        cells=dict.fromkeys(CELLS, 2),
        host_size=host_size,
        faults=faults,
        settings=TUNED,
        keeps_hosts=keeps_hosts,
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(wiring, "USUAL_PACE", PACE)
        made = await stack.enter_async_context(
            cloud(plan, site.broker, site.database_url, as_user=site.as_user)
        )
        station, _ = await stack.enter_async_context(station_on(site.operator, "auditor", SETTINGS))
        await asyncio.wait_for(until_choosable(station, lambda up: len(up) == len(CELLS) * 2), PATIENCE_S)
        yield BooksStage(station, made.placement, site.database_url, site.bus_url)


@asynccontextmanager
async def books_stage(kind: str, faults: FaultScript = NO_FAULTS) -> AsyncIterator[BooksStage]:
    """`embedded` or `real`."""
    async with a_site(kind) as site, stage_on(site, faults=faults) as stage:
        yield stage
