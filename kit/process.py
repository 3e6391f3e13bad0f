"""Runs the parts of a worker process until it is told to stop, and then stops them in order.

The first SIGTERM or SIGINT drains: the worker takes no new work, finishes what it has, publishes and acknowledges it. A
second signal ends the process at once.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Protocol, TypeVar

from kit.logs import SHARE_VARIABLE, URL_VARIABLE, begin_to_log, want_traces

T = TypeVar("T")

log = logging.getLogger(__name__)

GARBAGE_MIN = 100_000
# Variables that workers need, and what each is for.
MEANINGS = {
    "MOOR_BUS_URL": "where the broker is",
    "MOOR_DB_URL": "where the database is",
    "MOOR_CELL": "which cell this is",
    "MOOR_IRONIC_NAME": "how this daemon is called in the ring",
    "MOOR_IRONIC_BUS_URL": "where the broker is that Ironic publishes to",
}


class Part(Protocol):
    """A part of a process. It runs until it is stopped."""

    async def run(self) -> None: ...

    async def stop(self) -> None: ...


def run_process(work: Coroutine[Any, Any, T]) -> T:
    """Run a whole process. It uses uvloop, on which a database round trip costs a third of the standard loop's time.
    The garbage collector runs seldom: messages form no cycles, so it finds little.
    """
    gc.set_threshold(GARBAGE_MIN, 50, 100)
    # Only workers use it, and a command also imports this module.
    import uvloop  # noqa: PLC0415

    return uvloop.run(work)


@contextmanager
def exiting_if_wrong(prefix: str = "", *, setting: type[ValueError] = ValueError) -> Iterator[None]:
    """A context in which the error for a wrong setting ends the process: with the reason on stderr and exit code 2."""
    try:
        yield
    except setting as wrong:
        sys.stderr.write(f"{prefix}{wrong}\n")
        raise SystemExit(2) from None


def make_ready(environment: Mapping[str, str], *needed: str) -> None:
    """Start logging, and check that the environment has the needed variables. Raises ValueError if one is missing."""
    begin_to_log(environment)
    want_traces(environment.get(URL_VARIABLE, ""), environment.get(SHARE_VARIABLE) or 1.0)
    if missing := [name for name in needed if not environment.get(name)]:
        what = ", and ".join(MEANINGS[name] for name in missing)
        raise ValueError(f"{' and '.join(missing)} must be set: {what}")


@contextmanager
def stopped_by_signals() -> Iterator[asyncio.Event]:
    """A context with an event that the first SIGTERM or SIGINT sets. The second signal ends the process at once."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _heard, told, number)
    try:
        yield told
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def reload_by(work: Callable[[], None]) -> None:
    """Have this process read its settings again by `work` on a SIGHUP, while it is inside `hangups_heard`."""
    _reads_settings[:] = [work]


_reads_settings: list[Callable[[], None]] = []
_on_hangup: list[Callable[[], None]] = []


@contextmanager
def told_of_hangups(work: Callable[[], None]) -> Iterator[None]:
    """A context in which this process also does `work` on a SIGHUP."""
    _on_hangup.append(work)
    try:
        yield
    finally:
        _on_hangup.remove(work)


@contextmanager
def hangups_heard() -> Iterator[None]:
    """A context in which a SIGHUP ends nothing: the process reads its settings again, or says that it cannot."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, _reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _reload() -> None:
    if not _reads_settings:
        log.warning("no settings were read again: this process has no settings file, only variables")
    for work in (*_reads_settings, *_on_hangup):
        work()


async def run_until(told: asyncio.Event, parts: Sequence[Part], drain_s_max: float) -> None:
    """Run these parts until the event is set, and then stop them in order. For parts that share a process with others."""
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
        log.warning("not drained within %.0f s: unfinished messages will be delivered again", drain_s_max)
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


# Tells systemd how a worker is: units of `Type=notify` wait until it is ready, and a stuck one is restarted.
#
# The protocol is one datagram (sd_notify(3)), so no library is needed. Without NOTIFY_SOCKET nothing is sent.


class Systemd:
    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        # Half of the time after which systemd takes the process for stuck; 0: it never does.
        microseconds = environment.get("WATCHDOG_USEC", "")
        self._alive_every_s = int(microseconds) / 2_000_000 if microseconds.isdecimal() else 0.0
        self._alive_at_s = 0.0

    def ready(self) -> None:
        self._send("READY=1\nSTATUS=ready")

    def awaits(self, what: str) -> None:
        self._send(f"STATUS=waits for {what}"[:1000].replace("\r", " "))

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=drains")

    def alive(self, now_s: float) -> None:
        """To be called often; sends as seldom as systemd allows."""
        if self._alive_every_s and now_s - self._alive_at_s >= self._alive_every_s:
            self._alive_at_s = now_s
            self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        # An address that begins with @ is in the abstract namespace.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        # A worker must not fail, nor wait, because nobody listens.
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        ):
            sender.sendto(state.encode(), address)


# Work beside the parts of a process.

DRAIN_S_MAX = 5.0


async def during(work: Coroutine[Any, Any, T], *watches: Coroutine[Any, Any, object]) -> T:
    """Return the result of the coroutine `work`, while the coroutines `watches` run beside it.

    If one of `watches` fails first, cancel `work` and raise that failure.
    """
    working = asyncio.create_task(work)
    watching = [asyncio.create_task(each) for each in watches]
    try:
        await asyncio.wait((working, *watching), return_when=asyncio.FIRST_COMPLETED)
        for task in watching:
            if task.done():
                task.result()
        return await working
    finally:
        for task in (working, *watching):
            task.cancel()
        await asyncio.gather(working, *watching, return_exceptions=True)


@asynccontextmanager
async def running(
    parts: Sequence[Part], drain_s_max: float = DRAIN_S_MAX
) -> AsyncIterator[asyncio.Task[None]]:
    """Run the parts of a process while this context is open, then drain them.

    Yields the task that runs the parts. If a part fails, this task ends before the context does.
    """
    stop = asyncio.Event()
    task = asyncio.create_task(run_until(stop, parts, drain_s_max))
    try:
        yield task
    finally:
        stop.set()
        await task
