"""A worker process: its parts run together until the process is told to stop, and stop in order.

The first SIGTERM or SIGINT drains: no new work is taken, what is in hand is finished, said and acknowledged. A second
one does not wait.
"""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import uvloop

from bus.logs import BadLogSettingError, begin_to_log

T = TypeVar("T")

log = logging.getLogger(__name__)

GARBAGE_MIN = 100_000
# What every worker takes from its environment.
MEANINGS = {
    "MOOR_BUS_URL": "where the broker is",
    "MOOR_DB_URL": "where the database is",
    "MOOR_CELL": "which cell this is",
    "MOOR_IRONIC_NAME": "how this daemon is called in the ring",
    "MOOR_IRONIC_BUS_URL": "where the broker is that Ironic publishes to",
}


class Part(Protocol):
    """Something that runs until it is told to stop."""

    async def run(self) -> None: ...

    async def stop(self) -> None: ...


def run_process(work: Coroutine[Any, Any, T]) -> T:
    """The whole of a process. On uvloop, where a word to a database and back costs a third of what it costs on the
    standard loop, and of a collector that seldom looks: what messages are made of leads to no cycles, so it has little to
    find, and need not look after every few hundred of them.
    """
    gc.set_threshold(GARBAGE_MIN, 50, 100)
    return uvloop.run(work)


def is_ready(environment: Mapping[str, str], *needed: str) -> bool:
    """Begin to log; and if the environment lacks something, say on stderr what it is."""
    try:
        begin_to_log(environment)
    except BadLogSettingError as wrong:
        sys.stderr.write(f"{wrong}\n")
        return False
    missing = [name for name in needed if not environment.get(name)]
    if missing:
        what = ", and ".join(MEANINGS[name] for name in missing)
        sys.stderr.write(f"{' and '.join(missing)} must be set: {what}\n")
    return not missing


@contextmanager
def stopped_by_signals() -> Iterator[asyncio.Event]:
    """What the first SIGTERM or SIGINT sets; the second ends the process."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _heard, told, number)
    try:
        yield told
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def run_until_told(parts: Sequence[Part], drain_s_max: float) -> None:
    """Run all parts; a part that fails brings the others down, and its exception out."""
    # What was made to start with lives as long as the process.
    gc.freeze()
    with stopped_by_signals() as told:
        await run_until(told, parts, drain_s_max)


async def run_until(told: asyncio.Event, parts: Sequence[Part], drain_s_max: float) -> None:
    """The same, told by an event: for parts that share a process with others."""
    running = [asyncio.create_task(part.run()) for part in parts]
    waiting = asyncio.create_task(told.wait())
    try:
        await asyncio.wait((*running, waiting), return_when=asyncio.FIRST_COMPLETED)
        log.info("draining")
        async with asyncio.timeout(drain_s_max):
            for part in parts:
                await part.stop()
            await asyncio.wait(running)
    except TimeoutError:
        log.warning("not drained within %.0f s: what is left will be delivered again", drain_s_max)
    finally:
        for task in (*running, waiting):
            task.cancel()
        await asyncio.wait((*running, waiting))
    for task in running:
        with suppress(asyncio.CancelledError):
            task.result()


def _heard(told: asyncio.Event, number: int) -> None:
    if told.is_set():
        raise SystemExit(128 + number)
    told.set()
