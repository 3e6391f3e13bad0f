"""How long clients wait that ask again only after each answer: by a clock that stands still while anybody works."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from bus.memory import MemoryBroker
from bus.settings import BusSettings
from bus.topology import objects_of
from bus.workers.handling import VAIN_WAITS
from bus.workers.station import Station
from tests.contracts.stage import CELLS, station
from tests.contracts.test_asking import Answering, answering, ask
from tests.simulation.loop import run_simulated

QUESTIONS = 200


async def seconds_of(askers: int) -> float:
    """How long so many clients take for their questions."""
    broker = MemoryBroker().as_user()
    await (await broker.connect()).declare(objects_of(CELLS))
    loop = asyncio.get_running_loop()

    async def asks(client: Station) -> None:
        for number in range(QUESTIONS):
            assert await ask(client, number) == [number]

    async with answering(broker, Answering()), AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                station(broker, f"asker-{number}", settings=BusSettings(), asks=True)
            )
            for number in range(askers)
        ]
        for client in clients:
            await ask(client, 0)
        began_s = loop.time()
        await asyncio.gather(*map(asks, clients))
        return loop.time() - began_s


@pytest.mark.parametrize("askers", [1, 2, 4, 16])
def test_askers_in_turn_wait_for_others_a_few_times_and_then_no_more(askers: int) -> None:
    at_most_s = (VAIN_WAITS + 1) * BusSettings().GATHER_MS / 1000
    assert run_simulated(seconds_of(askers)) < at_most_s
