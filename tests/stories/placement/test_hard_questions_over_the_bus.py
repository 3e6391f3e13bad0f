"""During a costly search over the bus placement grants claims, and no iteration of the worker's event loop takes long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from bus.messages.administration import AskCandidates, Candidates, CandidatesFound
from bus.messages.placement import ClaimAnswered
from bus.settings import BusSettings
from bus.workers.station import Station
from engine.refusals import Claimed, TooCostly
from kit.process import run_until
from kit.times import now
from placement_worker.settings import PlacementSettings
from placement_worker.store import PlacementStore
from placement_worker.wiring import placement_parts
from tests.api.loop_turns import check_turns
from tests.contracts.memory_under_test import MemoryUnderTest
from tests.contracts.placement_orders import a_claim, a_share, amounts, consumer, provider
from tests.contracts.stage import declared
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import open_store
from tests.hostile_requests import hard_messages, hard_worlds, many_hosts
from tests.varied import varied

pytestmark = pytest.mark.asyncio

HOSTS = 1_000
TURN_S_MAX = 0.2
# The answer to many groups is longer than a message.
ENDS = {"a tight packing": TooCostly, "64 groups": TooCostly}
# No question is repeated: this test is not about the time of an answer.
BUS = varied(BusSettings(), ask_again_ms=60_000, answer_timeout_ms=60_000)
STORES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))


@asynccontextmanager
async def asking(store: PlacementStore) -> AsyncIterator[Station]:
    broker = await declared(MemoryUnderTest())
    setup, client = (
        Station(broker, "placement", settings=BUS),
        Station(broker, "client", settings=BUS, asks=True),
    )
    settings = PlacementSettings(search_steps_max=8_000_000)
    told = asyncio.Event()
    running = asyncio.create_task(
        run_until(told, (*placement_parts((setup,), store, settings), client), drain_s_max=10)
    )
    try:
        yield client
    finally:
        told.set()
        await running
        await client.close()
        await setup.close()


@pytest.mark.parametrize("kind", STORES)
async def test_during_any_search_claims_are_granted_and_no_loop_iteration_takes_long(kind: str) -> None:
    async with open_store(kind) as store:
        told = (*hard_worlds(), *many_hosts(HOSTS))
        for start in range(0, len(told), 200):
            await StoreClient(store).report(*told[start : start + 200])
        async with asking(store) as client:
            host = provider("many-1")
            claims = 0

            async def ask_beside(what: str, question: AskCandidates) -> None:
                nonlocal claims
                hard = asyncio.ensure_future(client.ask(question))
                while not hard.done():
                    claims += 1
                    share = a_share(host, asked=amounts(host, VCPU=1))
                    answer = await client.ask(a_claim(share, who=consumer(f"c-{claims}"), issued_at=now()))
                    assert isinstance(answer, ClaimAnswered)
                    assert isinstance(answer.verdict, Claimed), answer

                found = await hard
                assert isinstance(found, CandidatesFound)
                assert isinstance(found.verdict, ENDS.get(what, Candidates)), (what, found)

            for what, question in hard_messages().items():
                await check_turns(what, TURN_S_MAX, partial(ask_beside, what, question))
            # More than one for each question: they were granted meanwhile, however slow the machine is.
            assert claims > len(hard_messages())
