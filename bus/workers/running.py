"""Runs a worker as a process: the steps before it starts, its parts, its health, its end.

A server that is down, a wrong password or a failed migration does not end the process. It logs what it waits for, keeps
trying, reports that it is not ready, and becomes ready when the fault is repaired.
"""

import argparse
import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from bus.workers.connections import Station
from bus.workers.heartbeats import WorkerBeats
from kit.errors import Transient, Unavailable
from kit.health import HEALTH_VARIABLE, About, BadAddressError, Health, ReadyTeller
from kit.logs import FORMATS, wanted
from kit.parts import Once
from kit.process import Part, exiting_if_wrong, hangups_heard, run_process, run_until, stopped_by_signals
from kit.settings import BadSetting, without_password

log = logging.getLogger(__name__)

# The type of a database's settings, which is not known here.
D = TypeVar("D")


def about(role: str, *, cell: str = "", brokers: Iterable[str] = (), database: str = "") -> About:
    shown = tuple(without_password(url) for url in dict.fromkeys(brokers))
    return About(role, release(), cell, shown, without_password(database))


def release() -> str:
    try:
        return version("moorage")
    except PackageNotFoundError:
        return "not installed"


@contextmanager
def traced(about: About) -> Iterator[None]:
    """A context in which this process sends traces, if its settings say so."""
    url, share = wanted()
    if not url:
        yield
        return
    from bus.otel import traces_sent  # noqa: PLC0415 - it loads OpenTelemetry

    with traces_sent(about, url, share):
        yield


async def run_worker(
    about: About,
    parts: Sequence[Part],
    drain_s_max: float,
    *,
    first: Sequence[Once] = (),
    stations: Sequence[object] = (),
    tells_by: Station | None = None,
    health_at: str = "",
) -> None:
    """Run the parts of a worker until the process is told to stop, or a bug ends a part.

    Everything in `first` must succeed before the parts run, and may add to `parts`. Health and metrics show `stations` beside the parts. The station
    `tells_by` sends the heartbeats of this process.
    """
    health = Health(about, (*first, *parts, *stations))
    beats = WorkerBeats(health, tells_by) if tells_by else None
    watchers: list[Part] = [ReadyTeller(health), *([beats] if beats else [])]
    url = "nowhere (--health-listen)"
    if health_at:
        from kit.health_server import HealthServer  # noqa: PLC0415 - only where an address is given

        server = HealthServer(health_at, health)
        watchers.append(server)
        url = server.url
    with traced(about), hangups_heard(), stopped_by_signals() as told:
        _introduce(about, url)
        watching = [asyncio.create_task(_watch(each, told)) for each in watchers]
        stopping = asyncio.create_task(_stop_then(told, health, first))
        try:
            for once in first:
                await once.run()
            health.parts = (*first, *parts, *stations)
            if not told.is_set():
                # Objects made at start live as long as the process: the garbage collector can skip them.
                gc.freeze()
                await run_until(told, parts, drain_s_max)
        finally:
            health.is_stopping = True
            if beats is not None:
                await beats.say_farewell()
            for each in watchers:
                await each.stop()
            stopping.cancel()
            await asyncio.gather(stopping, *watching, return_exceptions=True)
    for task in watching:
        task.result()


async def _watch(part: Part, told: asyncio.Event) -> None:
    """Run a part that watches the worker. If it fails, that is a bug, and ends the process too."""
    try:
        await part.run()
    finally:
        told.set()


async def _stop_then(told: asyncio.Event, health: Health, first: Sequence[Once]) -> None:
    await told.wait()
    health.is_stopping = True
    for each in first:
        await each.stop()


def _introduce(about: About, health_url: str) -> None:
    log.info(
        "moorage %s, %s%s starts: brokers %s; database %s; health at %s",
        about.version,
        about.role,
        f" of cell {about.cell}" if about.cell else "",
        ", ".join(about.brokers) or "none",
        about.database or "none",
        health_url,
        extra={"role": about.role, "version": about.version, "cell": about.cell, "health": health_url},
    )


def tables_first(
    upgrade: Callable[[str, str, D], Coroutine[Any, Any, object]], url: str, package: str, settings: D
) -> tuple[Once, ...]:
    """A part that migrates the tables before the worker does anything else. It retries as long as needed."""

    async def bring_up() -> None:
        try:
            await upgrade(url, package, settings)
        except Transient as problem:
            raise Unavailable(f"{without_password(url)}: {problem}") from problem

    return (Once("bring tables up to date", bring_up),)


def with_flags(environment: Mapping[str, str], arguments: Sequence[str], room: str) -> Mapping[str, str]:
    """The environment of `python -m <room>` with its flags applied. Ends the process if a flag is invalid."""
    parser = argparse.ArgumentParser(prog=f"python -m {room}", description="Settings are MOOR_* variables.")
    parser.add_argument(
        "--health-listen", metavar="ADDRESS:PORT", help=f"/healthz, /readyz, /metrics [{HEALTH_VARIABLE}]"
    )
    parser.add_argument("--log-format", choices=FORMATS, help="[MOOR_LOG_FORMAT]")
    flags = parser.parse_args(arguments)
    stated = {HEALTH_VARIABLE: flags.health_listen, "MOOR_LOG_FORMAT": flags.log_format}
    return {**environment, **{name: value for name, value in stated.items() if value is not None}}


def run_main(work: Coroutine[Any, Any, None]) -> None:
    """Run a worker process. If it cannot listen on the address for its health, or its settings contradict those of the bus,
    it ends with exit code 2.
    """
    with exiting_if_wrong(setting=BadAddressError), exiting_if_wrong(setting=BadSetting):
        run_process(work)
