"""Moves that fail, are aborted or meet each other. After each story the instance runs on one host, or on none, and only that
is held.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from bus.messages.build import BuildRejected, InstancesFound, MoveEnd
from bus.messages.hosts import SetHost
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.faults import (
    FailsToReceive,
    FallsSilent,
    Fault,
    FaultScript,
)
from laboratory.computes.hosts import SimulatedHost
from moor.client.bus_client import hosts_of
from tests.contracts.conductor_stores import open_conductor_store
from tests.stories.cells.held_driver import HeldDriver
from tests.stories.cloud import CELL_PACE, cloud
from tests.stories.layouts import BOTH
from tests.stories.moves.test_moves import NARROW, Movers, movers
from tests.waiting import Clock, until

pytestmark = pytest.mark.asyncio

# Longer than any story.
NEVER_MS = 3_600_000.0


def script(*faults: Fault) -> FaultScript:
    return FaultScript(spawn_ms=5, receive_ms=5, stop_ms=5, start_ms=5, faults=faults)


@BOTH
async def test_the_host_that_cannot_receive_it_costs_an_alternate(bus: str, books: str) -> None:
    fault = FailsToReceive(hosts=("h2",), reason="no room for its disk")
    async with movers(bus, books, "h1", "h2", "h3", script=script(fault), wide="h2") as here:
        instance = await here.booted()
        await here.move(instance)
        there = await here.until(instance, "moved")
        # There, back, and there again.
        assert (there.host, there.attempt) == ("h3", 4)
        assert [(each.host, each.reason) for each in there.failures] == [("h2", "no room for its disk")]
        await here.until_used(h1=1, h2=0, h3=1)
        await here.end(instance, "confirm")
        await here.until(instance, "active", "confirmed")
        await here.until_used(h1=0, h2=0, h3=1)


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

        answers = await asyncio.gather(*[here.end(instance, how) for how in ends])

        (won,) = [number for number, each in enumerate(answers) if isinstance(each, InstancesFound)]
        (lost,) = [each for each in answers if isinstance(each, BuildRejected)]
        assert lost.reason in (f"the move is about to be {outcomes[won]}", f"the move is {outcomes[won]}")
        assert (await here.until(instance, "active", outcomes[won])).host == hosts[won]
        await here.until_used(h1=won, h2=1 - won)


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
        open_conductor_store(books, "c1") as rows,
    ):
        drivers = [driver(SimulatedDriver(host, script), held) for host in hosts]
        async with setup.cell(rows, drivers=drivers, pace=often):
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
        await here.until_used(h1=1, h2=1)

        held.pass_s(10)
        await here.until_used(h1=0, h2=1)


@BOTH
async def test_a_move_is_not_reverted_while_its_first_host_is_down(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2") as here:
        instance = await here.booted()
        await here.move(instance)
        await here.until(instance, "moved")
        await down(here, "h1")

        refused = await here.end(instance, "revert")

        assert isinstance(refused, BuildRejected)
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
