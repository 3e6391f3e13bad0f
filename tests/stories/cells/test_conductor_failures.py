"""Conductors of one cell when one of them dies, when placement is away, and when two of them compete."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from bus.message import Message
from bus.workers.station import Station
from cell_conductor.wiring import conductor_parts
from placement_worker.settings import FeedPace, PlacementSettings
from placement_worker.wiring import placement_parts
from tests.contracts.stage import PATIENCE_S, SETTINGS, until
from tests.stories.cells.cell_setup import (
    BUILD,
    CONDUCTING,
    FAIL,
    IMPATIENT,
    PACE,
    SILENT,
    cell_setup,
    conducting,
    order_for,
    provider,
    removal,
    running,
)
from tests.stories.layouts import ONE_BROKER

pytestmark = pytest.mark.asyncio


@ONE_BROKER
async def test_while_placement_is_away_swaps_wait_and_other_work_goes_on(bus: str, books: str) -> None:
    async with cell_setup(bus, books, conductor=IMPATIENT) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD)
        waiting, other = order_for(1, "h1", "h2", ends_in_s=100_000), order_for(2, "h2")
        await setup.claim(other)
        await setup.claim(waiting)
        setup.placement_told.set()
        await asyncio.wait((setup.placement,))

        await setup.say(waiting)
        await setup.until_row(waiting, lambda row: row.state == "swapping" and row.tries > 0)
        await setup.say(other)
        assert (await setup.told(other)).state == "active"
        row = await setup.until_row(
            waiting,
            lambda row: row.tries == 1 and row.due_at == setup.clock.now + timedelta(seconds=1),
        )
        assert row.attempt == 1

        again = Station(setup.broker, "placement-again", settings=SETTINGS)
        parts = placement_parts((again,), setup.books, PlacementSettings(), pace=FeedPace(lead_again_s=0.02))
        async with running(*parts):
            # While it is built, no time passes: it would be too late.
            async with asyncio.timeout(PATIENCE_S):
                while [row.state for row in await setup.store.read([waiting.instance])] == ["swapping"]:
                    setup.clock.pass_s(1)
                    await asyncio.sleep(0.01)
            assert (await setup.told(waiting)).host == "h2"
            assert await setup.used() == {"h1": 0, "h2": 2}
        await again.close()


@ONE_BROKER
async def test_messages_of_a_conductor_that_dies_between_commit_and_publish_are_sent_by_another(
    bus: str, books: str
) -> None:
    async with cell_setup(bus, books, conducted=False) as setup:
        await setup.hosts(h1=BUILD)
        orders = [await setup.claim(order_for(number, "h1")) for number in range(1, 4)]
        await setup.say(*orders)
        await setup.under_test.set_alarm(on=True)  # committed, but the broker takes nothing
        mortal = setup.stations["conductor"]
        parts = conductor_parts(
            mortal, setup.store, CONDUCTING, "c1", mortal.ask_all, clock=setup.clock, pace=PACE
        )
        dying = [asyncio.create_task(part.run()) for part in parts]
        for order in orders:
            await setup.until_row(order, lambda row: bool(row.outbox))
        for task in dying:
            task.cancel()
        await asyncio.wait(dying)
        await mortal.consuming.close()
        await setup.under_test.set_alarm(on=False)

        heir = Station(setup.broker, "heir", settings=SETTINGS, asks=True)
        async with conducting(setup, heir, setup.store_of_heir):
            for order in orders:
                assert (await setup.told(order)).state == "active"
        await heir.close()

        assert await setup.used() == {"h1": 3}
        assert {(each.instance, each.attempt) for each in setup.computes.spawns} == {
            (order.instance, 1) for order in orders
        }


@ONE_BROKER
async def test_rows_whose_conductor_died_are_taken_over_by_another_when_their_time_is_up(
    bus: str, books: str
) -> None:
    """One waited for placement's answer to a swap, one for a host: both times were in the memory of the dead one."""
    async with cell_setup(bus, books, conducted=False) as setup:
        await setup.hosts(h1=FAIL, h2=BUILD, h3=SILENT)
        swapping = await setup.claim(order_for(1, "h1", "h2", ends_in_s=100_000))
        silent = await setup.claim(order_for(2, "h3", "h2", ends_in_s=100_000))
        asked = asyncio.Event()

        async def never(_: Sequence[Message]) -> Sequence[Message]:
            asked.set()
            await asyncio.Event().wait()
            return ()

        mortal = setup.stations["conductor"]
        parts = conductor_parts(mortal, setup.store, CONDUCTING, "c1", never, clock=setup.clock, pace=PACE)
        dying = [asyncio.create_task(part.run()) for part in parts]
        await setup.say(swapping, silent)
        await asked.wait()
        # Its order has left: another conductor need not send it again.
        await until(lambda: silent.instance in {each.instance for each in setup.computes.spawns})
        for task in dying:
            task.cancel()
        await asyncio.wait(dying)
        await mortal.consuming.close()

        heir = Station(setup.broker, "heir", settings=SETTINGS, asks=True)
        async with conducting(setup, heir, setup.store_of_heir):
            setup.clock.pass_s(61)
            for order in (swapping, silent):
                state = await setup.told(order)
                assert (state.state, state.host, state.attempt) == ("active", "h2", 2)
        await heir.close()

        built = {
            (each.instance, each.attempt) for each in setup.computes.spawns if each.host == provider("h2")
        }
        assert built == {(swapping.instance, 2), (silent.instance, 2)}
        assert [setup.ends(order) for order in (swapping, silent)] == [["active"], ["active"]]


@ONE_BROKER
async def test_two_conductors_of_one_cell_do_everything_once_between_them(bus: str, books: str) -> None:
    """They take turns at the queue: the answer about an order of one may come to the other."""
    async with cell_setup(bus, books) as setup:
        other = Station(setup.broker, "other", settings=SETTINGS, asks=True)
        async with conducting(setup, other, setup.store_of_heir):
            await setup.hosts(**{f"bad{number}": FAIL for number in range(4)}, good=BUILD)
            await setup.report("good", vcpu=16)
            orders = [
                await setup.claim(order_for(number, f"bad{number % 4}", "good")) for number in range(1, 13)
            ]
            # One by one, so that they do not share a parcel.
            for order in orders:
                await setup.say(order)
            for order in orders:
                state = await setup.told(order)
                assert (state.state, state.host, state.attempt) == ("active", "good", 2)
            for order in orders[:6]:
                await setup.say(removal(order), removal(order))
            for order in orders[:6]:
                await setup.told_deleted(order)
            await setup.until_used(bad0=0, bad1=0, bad2=0, bad3=0, good=6)
        await other.close()

        # A message that was sent again is about the same attempt.
        tried = {(each.instance, each.attempt, each.host) for each in setup.computes.spawns}
        assert len(tried) == 24
        assert [setup.ends(order) for order in orders] == [["active", "deleted"]] * 6 + [["active"]] * 6
