"""Conductors of one cell when one of them dies, and when two of them compete."""

import asyncio
from collections.abc import Sequence

import pytest

from bus.message import Message
from bus.workers.station import Station
from cell_conductor.wiring import conductor_parts
from tests.contracts.stage import SETTINGS
from tests.stories.cells.cell_setup import (
    BUILD,
    CONDUCTING,
    FAIL,
    PACE,
    SILENT,
    cell_setup,
    conducting,
    order_for,
    provider,
    removal,
)
from tests.stories.layouts import ONE_BROKER
from tests.waiting import until

pytestmark = pytest.mark.asyncio


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
