"""Heartbeats, the one way of all rooms to send them: those of hosts, with reports when a host's facts change, and those of workers, with
what each has done.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Generic, TypeVar

from msgspec import Struct

from bus.message import Message
from bus.messages.cloud import COUNTED_MAX, WorkerAlive
from bus.messages.hosts import HostsAlive
from bus.queues import CELL0
from bus.workers.connections import Station
from bus.workers.publisher import Outgoing, Publisher
from bus.workers.worker import Worker
from engine.inventories import CellName, ProviderId
from kit.clock import now
from kit.errors import Operational
from kit.health import Health
from kit.metrics import Histogram, Numbers
from kit.parts import PartGroup, Periodic, every_part
from kit.process import Part

BEATS_PER_MESSAGE = 5000

# What an announcer notes of a host whose facts have changed, such as its row.
Touched = TypeVar("Touched")


def is_silent(unheard_for: timedelta, down_after: timedelta) -> bool:
    """Whether a host counts as down because no heartbeat of it came for this time.

    Schedulers and conductors all use this rule, with the same setting (`BusSettings.host_down_s`).
    """
    return unheard_for >= down_after


class Heartbeats(Periodic):
    """A part that sends the heartbeats that `beats` returns, at an interval.

    A heartbeat that has not left when the next is due is withdrawn: it would report an old state as the current one.
    """

    def __init__(
        self,
        name: str,
        publisher: Publisher,
        beats: Callable[[], Awaitable[Sequence[Message]]],
        every_s: float,
        *,
        rests_first: bool = False,
        sent: Callable[[Sequence[Message]], None] = lambda _: None,
        chance: random.Random | None = None,
    ) -> None:
        """`sent` is told the heartbeats that have left."""

        async def beat() -> None:
            left = await beats()
            await publisher.send_within(every_s, left)
            sent(left)

        super().__init__(name, beat, every_s, rests_first=rests_first, is_cut_short=True, chance=chance)


class HostAnnouncer(PartGroup, Generic[Touched]):
    """Reports hosts when their facts change, and sends heartbeats of those that are alive.

    A subclass says in `reports` how changed hosts are reported, and in `alive` which hosts of each cell are alive now.
    """

    def __init__(
        self,
        reporting: str,
        beating: str,
        publisher: Publisher,
        *,
        every_s: float,
        beat_s: float,
        beside: Sequence[Part] = (),
        chance: random.Random | None = None,
    ) -> None:
        """`reporting` and `beating` are the names of the two parts, `every_s` and `beat_s` their intervals. The parts
        `beside` run with them.
        """
        self.reporting = Periodic(reporting, self.report, every_s, is_cut_short=True, chance=chance)
        heartbeats = Heartbeats(
            beating, publisher, self._beats, beat_s, rests_first=True, sent=self.heard, chance=chance
        )
        super().__init__(self.reporting, *beside, heartbeats)
        self.publisher = publisher
        # The hosts to report next, and those whose reports are being sent.
        self.touched: dict[ProviderId, Touched] = {}
        self.sending: dict[ProviderId, Touched] = {}

    async def reports(self, touched: Mapping[ProviderId, Touched]) -> Iterable[Message]:
        """The messages that report these hosts."""
        raise NotImplementedError

    def alive(self) -> Mapping[CellName, Iterable[ProviderId]]:
        raise NotImplementedError

    async def report(self) -> None:
        """Report the hosts that were touched. If that fails, they stay touched."""
        self.sending, self.touched = self.touched, {}
        try:
            await self.send(await self.reports(self.sending))
        except Exception:
            self.touched = self.sending | self.touched
            raise

    async def send(self, messages: Iterable[Message]) -> None:
        await self.publisher.send_all([Outgoing(each) for each in messages])

    def heard(self, beats: Sequence[Message]) -> None:
        """These heartbeats have left."""

    async def _beats(self) -> Sequence[Message]:
        beats = []
        for cell, hosts in self.alive().items():
            left = iter(hosts)
            while some := tuple(islice(left, BEATS_PER_MESSAGE)):
                beats.append(HostsAlive(cell=cell, hosts=some))
        return beats


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
