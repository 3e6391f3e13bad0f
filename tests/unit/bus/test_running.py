"""A worker as a process, without servers: its first line, the work before its parts run, its health, and its end."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Iterator

import httpx
import pytest

from bus.workers.running import about, run_worker
from kit.errors import Unavailable
from kit.parts import Once, Status, Supervised
from tests.contracts.stage import until

ANY_PORT = "127.0.0.1:0"


@pytest.fixture(autouse=True)
def _garbage() -> Iterator[None]:
    """A worker freezes the objects of its start, which here are the objects of the whole test process."""
    yield
    gc.unfreeze()


def first_line(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    return next(record for record in caplog.records if record.name == "bus.workers.running")


async def stopped(running: asyncio.Task[None]) -> None:
    """Stop by a signal, which a worker handles only while it runs."""
    assert not running.done()
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(30):
        await running


class Tables:
    """Work that must succeed before the parts run."""

    def __init__(self) -> None:
        self.tries = 0
        self.are_there = False

    async def bring_up(self) -> None:
        self.tries += 1
        if not self.are_there:
            raise Unavailable("no server")


@pytest.mark.asyncio
async def test_a_worker_is_watched_from_its_start_and_ready_when_all_that_it_needs_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tables, station = Tables(), Status("a station", is_needed=True)
    begun = asyncio.Event()

    async def work() -> None:
        assert tables.are_there
        begun.set()
        await asyncio.Event().wait()

    part, once = Supervised("a part", work), Once("tables", tables.bring_up)
    with caplog.at_level(logging.INFO):
        running = asyncio.create_task(
            run_worker(about("placement"), (part,), 5, first=(once,), stations=(station,), health_at=ANY_PORT)
        )
        await until(lambda: tables.tries > 0)
        async with httpx.AsyncClient(base_url=vars(first_line(caplog))["health"]) as client:
            awaits = (await client.get("/readyz")).json()["awaits"]
            assert awaits == {"tables": "Unavailable: no server", "a station": "not yet"}
            assert not begun.is_set()
            tables.are_there = True
            await begun.wait()
            station.well()
            assert (await client.get("/readyz")).status_code == httpx.codes.OK
        await until(lambda: "placement is ready" in caplog.text)
        await stopped(running)
