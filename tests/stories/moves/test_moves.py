"""Instances move between simulated hosts: every worker is real. After each story nothing is left in the books."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from msgspec import structs

from bus.messages.build import BuildRejected, DeleteInstance, InstancesFound, InstanceState, MoveEnd, MoveKind
from bus.messages.hosts import SetHost
from bus.messages.moves import AskHistory, AskMoves, EndMove, HistoryFound, MoveInstance, MovesFound
from engine.flavors import Flavor, InstanceId, RequestId
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.faults import (
    FailsToReceive,
    FallsSilent,
    Fault,
    FaultScript,
)
from laboratory.computes.hosts import SUPPORTS, HostSize, SimulatedHost
from moor.client.bus_client import hosts_of
from scheduler_worker.settings import SchedulerSettings
from tests.stories.cells.held_driver import HeldDriver
from tests.stories.cloud import CELL_PACE, QUICK, Cloud, cloud
from tests.stories.layouts import BOTH, STAGES
from tests.waiting import Clock, until

SMALL = Flavor(name="small", vcpus=1, ram_mb=64, root_gb=1)
LARGE = Flavor(name="large", vcpus=4, ram_mb=256, root_gb=2)
NARROW = HostSize(vcpus=8)


class Movers:
    """A cloud with one cell of simulated hosts, and one client."""

    def __init__(self, setup: Cloud) -> None:
        self.setup = setup

    async def booted(
        self, number: int = 1, host: str = "h1", flavor: Flavor = SMALL, **fields: object
    ) -> InstanceId:
        booted = await self.setup.boot(number, flavor=flavor, hosts=(host,), **fields)
        assert booted.host == host
        return booted.id

    @staticmethod
    def order(instance: InstanceId, kind: MoveKind = "migrate", **fields: object) -> MoveInstance:
        order = MoveInstance(request_id=RequestId(UUID(int=1000)), instance=instance, kind=kind)
        return structs.replace(order, **fields)

    async def move(
        self, instance: InstanceId, kind: MoveKind = "migrate", **fields: object
    ) -> InstancesFound:
        return await self.setup.ask(self.order(instance, kind, **fields), InstancesFound)

    async def refused(
        self, instance: InstanceId, kind: MoveKind = "migrate", **fields: object
    ) -> BuildRejected:
        return await self.setup.ask(self.order(instance, kind, **fields), BuildRejected)

    @staticmethod
    def ending(instance: InstanceId, how: MoveEnd) -> EndMove:
        return EndMove(request_id=RequestId(UUID(int=1000)), instance=instance, how=how)

    async def end(self, instance: InstanceId, how: MoveEnd) -> None:
        await self.setup.ask(self.ending(instance, how), InstancesFound)

    async def until(self, instance: InstanceId, state: str, outcome: str = "") -> InstanceState:
        """The instance in this state, with this outcome of its move."""
        return await until(
            lambda: self.setup.instance(instance),
            f"{instance} is {state}, {outcome}",
            lambda told: (told.state, told.move.outcome if told.move else "") == (state, outcome),
        )


@asynccontextmanager
async def movers(
    bus: str,
    books: str,
    *names: str,
    script: FaultScript | None = None,
    wide: str = "",
    settings: SchedulerSettings = QUICK,
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
        setup.scheduler(settings=settings),
        setup.cell(*hosts, script=script),
    ):
        await setup.until_reported(*names)
        yield Movers(setup)


@STAGES
async def test_a_migrated_instance_is_confirmed_and_its_first_host_is_free(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2") as here:
        instance = await here.booted()
        assert (await here.move(instance)).instances[0].state == "moving"
        there = await here.until(instance, "moved")
        assert (there.host, there.attempt) == ("h2", 2)
        await here.setup.until_used(h1=1, h2=1)
        await here.end(instance, "confirm")
        assert (await here.until(instance, "active", "confirmed")).host == "h2"
        await here.setup.until_used(h1=0, h2=1)
        await here.setup.client.ask(DeleteInstance(instance=instance))
        await here.setup.until_used(h1=0, h2=0)


@STAGES
async def test_a_reverted_resize_is_where_it_was_with_the_size_that_it_had(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2") as here:
        instance = await here.booted()
        await here.move(instance, "resize", flavor=LARGE)
        assert (await here.until(instance, "moved")).host == "h2"
        await here.setup.until_used(h1=1, h2=4)
        await here.end(instance, "revert")
        back = await here.until(instance, "active", "reverted")
        assert (back.host, back.attempt) == ("h1", 3)
        await here.setup.until_used(h1=1, h2=0)


@STAGES
async def test_a_move_without_a_host_is_refused_and_changes_nothing(bus: str, books: str) -> None:
    async with movers(bus, books, "h1") as here:
        instance = await here.booted()
        assert "no valid host" in (await here.refused(instance)).reason
        assert (await here.until(instance, "active")).move is None


@STAGES
async def test_the_history_says_what_was_ordered_and_how_it_ended(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2") as here:
        instance = await here.booted()
        await here.move(instance)
        await here.until(instance, "moved")
        going = await here.setup.ask(AskMoves(host="h2"), MovesFound)
        assert [(each.what, each.source, each.destination) for each in going.moves] == [
            ("migrate", "h1", "h2")
        ]
        await here.end(instance, "revert")
        await here.until(instance, "active", "reverted")
        await here.setup.delete(instance)

        found = await here.setup.ask(AskHistory(instance=instance), HistoryFound)

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


# Longer than any story.
NEVER_MS = 3_600_000.0


def script(*faults: Fault) -> FaultScript:
    return FaultScript(spawn_ms=5, receive_ms=5, stop_ms=5, start_ms=5, faults=faults)


@BOTH
async def test_the_host_that_cannot_receive_it_costs_an_alternate(bus: str, books: str) -> None:
    async with movers(
        bus,
        books,
        "h1",
        "h2",
        "h3",
        script=script(FailsToReceive(hosts=("h2",), reason="no room for its disk")),
        wide="h2",
    ) as here:
        instance = await here.booted()
        await here.move(instance)
        there = await here.until(instance, "moved")
        # There, back, and there again.
        assert (there.host, there.attempt) == ("h3", 4)
        assert [(each.host, each.reason) for each in there.failures] == [("h2", "no room for its disk")]
        await here.setup.until_used(h1=1, h2=0, h3=1)
        await here.end(instance, "confirm")
        await here.until(instance, "active", "confirmed")
        await here.setup.until_used(h1=0, h2=0, h3=1)


async def until_empty(here: Movers) -> None:
    """The hosts say that they have no instance."""
    await until(
        lambda: hosts_of(here.setup.client),
        "the hosts are empty",
        lambda found: not any(host.instances for host in found),
    )


@BOTH
async def test_of_confirm_and_revert_at_once_one_wins_and_the_other_gets_its_reason(
    bus: str, books: str
) -> None:
    ends: tuple[MoveEnd, ...] = ("confirm", "revert")
    outcomes, hosts = ("confirmed", "reverted"), ("h2", "h1")
    async with movers(bus, books, "h1", "h2", script=script()) as here:
        instance = await here.booted()
        await here.move(instance)
        await here.until(instance, "moved")

        answers = await asyncio.gather(*[here.setup.client.ask(here.ending(instance, how)) for how in ends])

        (won,) = [number for number, each in enumerate(answers) if isinstance(each, InstancesFound)]
        (lost,) = [each for each in answers if isinstance(each, BuildRejected)]
        assert lost.reason in (f"the move is about to be {outcomes[won]}", f"the move is {outcomes[won]}")
        assert (await here.until(instance, "active", outcomes[won])).host == hosts[won]
        await here.setup.until_used(h1=won, h2=1 - won)


# By the held clock.
SILENT = FallsSilent(hosts=("h1",), after_s=10, for_s=10)


@asynccontextmanager
async def hosts_of_held_time(
    bus: str, books: str, held: Clock[float], fault: Fault, driver: type[HeldDriver] = HeldDriver
) -> AsyncIterator[tuple[Movers, list[HeldDriver]]]:
    script = FaultScript(spawn_ms=0, receive_ms=0, stop_ms=0, start_ms=0, faults=(fault,))
    hosts = [SimulatedHost(name=name, size=NARROW) for name in ("h1", "h2")]
    often = structs.replace(CELL_PACE, remind_every_s=0.2)
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
    ):
        drivers = [driver(SimulatedDriver(host, script), held) for host in hosts]
        async with setup.cell(drivers=drivers, pace=often):
            await setup.until_reported("h1", "h2")
            yield Movers(setup), drivers


@BOTH
async def test_an_evacuated_host_holds_its_share_until_it_returns_and_cleans_up(bus: str, books: str) -> None:
    held = Clock(0.0)
    async with hosts_of_held_time(bus, books, held, SILENT) as (here, _):
        instance = await here.booted()
        held.pass_s(10)
        await down(here, "h1")
        await here.move(instance, "evacuate")
        there = await here.until(instance, "active", "confirmed")
        assert (there.host, there.attempt) == ("h2", 2)
        await here.setup.until_used(h1=1, h2=1)

        held.pass_s(10)
        await here.setup.until_used(h1=0, h2=1)


@BOTH
async def test_a_move_is_not_reverted_while_its_first_host_is_down(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2") as here:
        instance = await here.booted()
        await here.move(instance)
        await here.until(instance, "moved")
        await down(here, "h1")

        refused = await here.setup.ask(here.ending(instance, "revert"), BuildRejected)

        assert refused.reason.startswith("its first host h1 is down")
        assert (await here.until(instance, "moved")).host == "h2"
        await here.end(instance, "confirm")
        await here.until(instance, "active", "confirmed")


async def down(here: Movers, name: str) -> None:
    """An operator sets the host down, and the schedulers' pictures have it."""
    await here.setup.client.ask(SetHost(host=name, mode="down", reason="no power"))
    await until(
        lambda: (
            not any(
                picture.columns.up[row] for picture in here.setup.pictures for row in picture.rows_named(name)
            )
        ),
        f"{name} is down in the pictures",
    )
