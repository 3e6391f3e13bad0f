"""A worker as a process: what must be so before it starts, its parts, its health; from the first line to the last.

A server that is away, a wrong password or tables that cannot be made do not end it: it says what it waits for, keeps
trying, is not ready, and becomes ready when that is mended.
"""

import argparse
import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from bus.errors import Transient, Unavailable
from bus.health import About, Health, ReadyTeller
from bus.health_server import VARIABLE, BadAddressError, HealthServer
from bus.logs import FORMATS
from bus.parts import Once
from bus.places import without_password
from bus.process import Part, run_process, run_until, stopped_by_signals

log = logging.getLogger(__name__)

# The settings of a database, of which nothing is known here.
D = TypeVar("D")


def about(role: str, *, cell: str = "", brokers: Iterable[str] = (), database: str = "") -> About:
    shown = tuple(without_password(url) for url in dict.fromkeys(brokers))
    return About(role, release(), cell, shown, without_password(database))


def release() -> str:
    try:
        return version("moorage")
    except PackageNotFoundError:
        return "not installed"


async def run_worker(
    about: About,
    parts: Sequence[Part],
    drain_s_max: float,
    *,
    first: Sequence[Once] = (),
    stations: Sequence[object] = (),
    health_at: str = "",
) -> None:
    """Until the process is told to stop, or a bug ends one of the parts. `first` must succeed before the parts run;
    `stations` are those that count beside the parts.
    """
    health = Health(about, (*first, *parts, *stations))
    watchers: list[Part] = [ReadyTeller(health)]
    url = "nowhere (--health-listen)"
    if health_at:
        server = HealthServer(health_at, health)
        watchers.append(server)
        url = server.url
    _introduce(about, url)
    with stopped_by_signals() as told:
        watching = [asyncio.create_task(_watch(each, told)) for each in watchers]
        stopping = asyncio.create_task(_stop_then(told, health, first))
        try:
            for once in first:
                await once.run()
            if not told.is_set():
                # What was made to start with lives as long as the process.
                gc.freeze()
                await run_until(told, parts, drain_s_max)
        finally:
            health.is_stopping = True
            for each in watchers:
                await each.stop()
            stopping.cancel()
            await asyncio.gather(stopping, *watching, return_exceptions=True)
    for task in watching:
        task.result()


async def _watch(part: Part, told: asyncio.Event) -> None:
    """A watcher that fails, which is a bug, ends the process, too."""
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
    """The tables, brought up to date before anything else; as often as that takes."""

    async def bring_up() -> None:
        try:
            await upgrade(url, package, settings)
        except Transient as problem:
            raise Unavailable(f"{without_password(url)}: {problem}") from problem

    return (Once("bring tables up to date", bring_up),)


def with_flags(environment: Mapping[str, str], arguments: Sequence[str], room: str) -> Mapping[str, str]:
    """The environment of `python -m <room>`, with what its flags say instead; ends the process if one is wrong."""
    parser = argparse.ArgumentParser(prog=f"python -m {room}", description="Settings are MOOR_* variables.")
    parser.add_argument(
        "--health-listen", metavar="ADDRESS:PORT", help=f"/healthz, /readyz, /metrics [{VARIABLE}]"
    )
    parser.add_argument("--log-format", choices=FORMATS, help="[MOOR_LOG_FORMAT]")
    flags = parser.parse_args(arguments)
    stated = {VARIABLE: flags.health_listen, "MOOR_LOG_FORMAT": flags.log_format}
    return {**environment, **{name: value for name, value in stated.items() if value is not None}}


def run_main(work: Coroutine[Any, Any, None]) -> int:
    """The exit code of a worker's main."""
    try:
        run_process(work)
    except BadAddressError as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 2
    return 0
