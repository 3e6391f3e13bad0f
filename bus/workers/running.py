"""Runs a worker as a process: the steps before it starts, its parts, its health, its end.

A server that is down, a wrong password or a failed migration does not end the process. It logs what it waits for, keeps
trying, reports that it is not ready, and becomes ready when the fault is repaired.
"""

import argparse
import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from msgspec import Struct

from bus.messages.cloud import COUNTED_MAX, WorkerAlive
from bus.queues import CELL0
from bus.workers.station import Heartbeats, Station
from bus.workers.worker import Worker
from kit.clock import now
from kit.errors import Operational, Transient, Unavailable
from kit.health import HEALTH_VARIABLE, About, BadAddressError, Health, ReadyTeller
from kit.logs import FORMATS, wanted
from kit.metrics import Histogram, Numbers
from kit.parts import Once, every_part
from kit.process import Part, exiting_if_wrong, hangups_heard, run_process, run_until, stopped_by_signals
from kit.settings import BadSetting, without_password

# The stages of a boot, in their order, and by which histogram of which worker each is measured.
#
# Workers tell in their heartbeats how long these took, and schedulers show them in overviews. The metrics themselves are in the
# `metrics.py` of the rooms.


class Stage(Struct, frozen=True):
    """`label` is the beginning of the first label of what counts, such as the type of a question."""

    name: str
    role: str
    metric: str
    label: str = ""


# A stage "boot" is the whole way: from the acceptance of a request to its instance being active.
STAGES = (
    Stage("accept", "scheduler", "moor_accept_seconds"),
    Stage("choose", "scheduler", "moor_choice_seconds"),
    Stage("claim", "scheduler", "moor_question_seconds", "claim"),
    Stage("place", "conductor", "moor_place_seconds"),
    Stage("spawn", "conductor", "moor_host_build_seconds"),
    Stage("boot", "conductor", "moor_boot_seconds"),
)


def stage_counts(role: str, histograms: Iterable[Histogram]) -> dict[str, tuple[int, ...]]:
    """For each stage that a worker of this role measures: how many durations fell into each bucket since its start, without
    the empty buckets at the end.
    """
    known = [*histograms]
    found = {}
    for stage in STAGES:
        if stage.role != role:
            continue
        observed = [
            each.counts
            for histogram in known
            if histogram.metric.name == stage.metric
            for labels, each in histogram.by_labels.items()
            if not stage.label or labels[0].startswith(stage.label)
        ]
        counts = [sum(bucket) for bucket in zip(*observed, strict=True)]
        while counts and not counts[-1]:
            counts.pop()
        if counts:
            found[stage.name] = tuple(counts)
    return found


# A worker's process tells schedulers that it lives, of which release it is, and what it has done: for overviews.
#
# Everything is read from its parts when the heartbeat is due, so the hot path does no extra work.


WORKER_BEAT_S = 5.0
TEXT_LENGTH_MAX = 1000
FAREWELL_S_MAX = 1.0


class WorkerBeats(Heartbeats):
    """The heartbeats of a worker whose parts `health` knows, sent by this station."""

    def __init__(self, health: Health, station: Station) -> None:
        self._health = health
        self._station = station
        self._started_at = now()

        async def beats() -> Sequence[WorkerAlive]:
            return (self.beat(),)

        super().__init__("tell that this worker lives", station.publisher, beats, WORKER_BEAT_S)

    async def say_farewell(self) -> None:
        """Tell that this worker ends as it should. If the broker is away, it is found missing instead."""
        with suppress(Operational):
            await self._station.publisher.send_within(FAREWELL_S_MAX, (self.beat(has_ended=True),))

    def beat(self, *, has_ended: bool = False) -> WorkerAlive:
        about, parts = self._health.about, [*every_part(self._health.parts)]
        loops = [part for part in parts if isinstance(part, Worker)]
        return WorkerAlive(
            cell=about.cell or CELL0,
            worker=self._station.name,
            role=about.role,
            release=about.version,
            started_at=self._started_at,
            told_at=now(),
            awaits=_in_words(self._health.awaits().items()),
            fails=_in_words((str(each["part"]), str(each["last_error"])) for each in self._health.failing()),
            handled=_summed((loop.intake.queue, loop.handled) for loop in loops),
            counts=_summed(_counts_of(parts)),
            stages=stage_counts(about.role, _histograms_of(parts)),
            buried=sum(loop.intake.buried for loop in loops),
            has_ended=has_ended,
        )


def _counts_of(parts: Iterable[object]) -> Iterable[tuple[str, int]]:
    for part in parts:
        for numbers in getattr(part, "readings", ()):
            if isinstance(numbers, Numbers) and numbers.metric.kind == "counter":
                name = numbers.metric.name.removeprefix("moor_")
                for labels, count in numbers.by_labels.items():
                    if count:
                        yield ".".join((name, *labels))[:255], int(count)


def _histograms_of(parts: Iterable[object]) -> Iterable[Histogram]:
    for part in parts:
        yield from (each for each in getattr(part, "readings", ()) if isinstance(each, Histogram))


def _summed(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, count in counts:
        if name in sums or len(sums) < COUNTED_MAX:
            sums[name] = sums.get(name, 0) + count
    return sums


def _in_words(troubles: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in troubles)[:TEXT_LENGTH_MAX]


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
