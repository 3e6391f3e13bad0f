"""Instances move between simulated hosts: every worker is real. After each story nothing is left in the books."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildRejected, DeleteInstance, InstancesFound, InstanceState, MoveEnd, MoveKind
from bus.messages.moves import AskHistory, AskMoves, EndMove, HistoryFound, MoveInstance, MovesFound
from engine.flavors import Flavor, InstanceId, RequestId
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import SUPPORTS, HostSize, SimulatedHost
from tests.contracts.conductor_stores import open_conductor_store
from tests.stories.cloud import QUICK, Cloud, a_build, cloud, instance_of
from tests.stories.layouts import STAGES
from tests.waiting import until

pytestmark = pytest.mark.asyncio

SMALL = Flavor(name="small", vcpus=1, ram_mb=64, root_gb=1)
LARGE = Flavor(name="large", vcpus=4, ram_mb=256, root_gb=2)
NARROW = HostSize(vcpus=8)


class Movers:
    """A cloud with one cell of simulated hosts, and one client."""

    def __init__(self, setup: Cloud) -> None:
        self.setup = setup

    async def booted(self, number: int = 1, host: str = "h1") -> InstanceId:
        build = a_build(number, flavor=SMALL, hosts=(host,))
        await self.setup.send(build)
        assert (await self.setup.until_state(instance_of(build), "active")).host == host
        return instance_of(build)

    async def move(self, instance: InstanceId, kind: MoveKind = "migrate", **fields: object) -> Message:
        order = MoveInstance(request_id=RequestId(UUID(int=1000)), instance=instance, kind=kind)
        return await self.setup.client.ask(structs.replace(order, **fields))

    async def end(self, instance: InstanceId, how: MoveEnd) -> Message:
        return await self.setup.client.ask(
            EndMove(request_id=RequestId(UUID(int=1000)), instance=instance, how=how)
        )

    async def until(self, instance: InstanceId, state: str, outcome: str = "") -> InstanceState:
        """The instance in this state, with this outcome of its move."""
        return await until(
            lambda: self.setup.instance(instance),
            f"{instance} is {state}, {outcome}",
            lambda told: (told.state, told.move.outcome if told.move else "") == (state, outcome),
        )

    async def until_used(self, **used: int) -> None:
        """So many cores of each host are in use."""
        await self.setup.until_used(**used)


@asynccontextmanager
async def movers(
    bus: str, books: str, *names: str, script: FaultScript | None = None, wide: str = ""
) -> AsyncIterator[Movers]:
    """The host with the name `wide` is the first choice."""
    hosts = [
        SimulatedHost(
            name=name,
            size=HostSize(64, 2 * HostSize().ram_mb, 8_000) if name == wide else NARROW,
            supports=SUPPORTS,
        )
        for name in names
    ]
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(settings=QUICK),
        open_conductor_store(books, "c1") as rows,
        setup.cell(rows, *hosts, script=script),
    ):
        await setup.until_reported(*names)
        yield Movers(setup)


@STAGES
async def test_a_migrated_instance_is_confirmed_and_its_first_host_is_free(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2") as here:
        instance = await here.booted()
        answer = await here.move(instance)
        assert isinstance(answer, InstancesFound)
        assert answer.instances[0].state == "moving"
        there = await here.until(instance, "moved")
        assert (there.host, there.attempt) == ("h2", 2)
        await here.until_used(h1=1, h2=1)
        assert isinstance(await here.end(instance, "confirm"), InstancesFound)
        assert (await here.until(instance, "active", "confirmed")).host == "h2"
        await here.until_used(h1=0, h2=1)
        await here.setup.client.ask(DeleteInstance(instance=instance))
        await here.until_used(h1=0, h2=0)


@STAGES
async def test_a_reverted_resize_is_where_it_was_with_the_size_that_it_had(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2") as here:
        instance = await here.booted()
        await here.move(instance, "resize", flavor=LARGE)
        assert (await here.until(instance, "moved")).host == "h2"
        await here.until_used(h1=1, h2=4)
        await here.end(instance, "revert")
        back = await here.until(instance, "active", "reverted")
        assert (back.host, back.attempt) == ("h1", 3)
        await here.until_used(h1=1, h2=0)


@STAGES
async def test_a_move_without_a_host_is_refused_and_changes_nothing(bus: str, books: str) -> None:
    async with movers(bus, books, "h1") as here:
        instance = await here.booted()
        refused = await here.move(instance)
        assert isinstance(refused, BuildRejected)
        assert "no valid host" in refused.reason
        told = await here.setup.instance(instance)
        assert told is not None
        assert (told.state, told.move) == ("active", None)


@STAGES
async def test_the_history_says_what_was_ordered_and_how_it_ended(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2") as here:
        instance = await here.booted()
        await here.move(instance)
        await here.until(instance, "moved")
        going = await here.setup.client.ask(AskMoves(host="h2"))
        assert isinstance(going, MovesFound)
        assert [(each.what, each.source, each.destination) for each in going.moves] == [
            ("migrate", "h1", "h2")
        ]
        await here.end(instance, "revert")
        await here.until(instance, "active", "reverted")
        await here.setup.client.ask(DeleteInstance(instance=instance))
        await here.setup.until_state(instance, "deleted")

        found = await here.setup.client.ask(AskHistory(instance=instance))

        assert isinstance(found, HistoryFound)
        assert [(each.what, each.outcome, each.destination) for each in found.changes] == [
            ("boot", "active", "h1"),
            ("migrate", "reverted", "h2"),
            ("delete", "deleted", ""),
        ]
        assert all(each.ended_at for each in found.changes)
        boot, move, _ = found.changes
        assert boot.ended_at is not None
        assert boot.asked_at < boot.ended_at < move.asked_at
        assert await here.setup.client.ask(AskMoves()) == MovesFound(moves=())
