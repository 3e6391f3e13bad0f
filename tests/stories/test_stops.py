"""A worker that is stopped on purpose reports no failure, at whatever moment the stop comes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from bus.memory import MemoryBroker
from bus.messages.placement import ReportInventory
from bus.settings import BusSettings
from bus.topology import objects_of
from bus.workers.handling import Received, Said
from bus.workers.station import Station
from kit.parts import statuses
from kit.process import run_until
from tests.simulation.loop import run_simulated
from tests.stories.cloud import a_host
from tests.varied import varied

BUS = varied(BusSettings(), ask_again_ms=500, answer_timeout_ms=2_000, SWEEP_S=2.0, CONNECT_DELAY_MS_MAX=500)
# Tenths of milliseconds between the start of the work and the stop.
TURNS = range(80)


class _Nothing:
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield


async def _ignore(_: Sequence[Received[ReportInventory]], __: None) -> list[Said]:
    return []


async def _stopped_after(turns: int) -> list[str]:
    """The failures that a worker's parts count when it is stopped while messages arrive in each turn."""
    memory = MemoryBroker()
    connection = await memory.as_user().connect()
    await connection.declare(objects_of(("c1",)))
    await connection.close()
    sending = Station(memory.as_user(), "sender", settings=BUS)
    reading = Station(memory.as_user(), "placement", settings=BUS)
    worker = reading.worker("placement.work", {ReportInventory: _ignore}, _Nothing())
    told, sent = asyncio.Event(), asyncio.Event()

    async def send() -> None:
        while not sent.is_set():
            sending.publisher.send(a_host("h1"))
            await asyncio.sleep(0.0003)

    beside = asyncio.create_task(run_until(sent, [sending], 5))
    running = asyncio.create_task(run_until(told, [worker], 5))
    await asyncio.sleep(1)
    work = asyncio.create_task(send())
    await asyncio.sleep(turns / 10_000)
    told.set()
    await running
    sent.set()
    await asyncio.gather(work, beside)
    await sending.close()
    await reading.close()
    return [f"{turns} turns: {each.name}: {each.last_error}" for each in statuses([worker]) if each.failures]


def test_a_stop_at_any_moment_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        failed = [failure for turns in TURNS for failure in run_simulated(_stopped_after(turns))]

    assert failed == []
    assert [record.getMessage() for record in caplog.records if record.name != "asyncio"] == []
