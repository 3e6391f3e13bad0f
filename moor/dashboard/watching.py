"""One watcher asks the schedulers for the overview and the tiles, for all browsers that look, and remembers an hour of rates."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import datetime

from msgspec import Struct

from bus.messages.cloud import AskTiles, Overview, Tiles
from kit.errors import ConnectionLost, Failure, Refusal
from kit.parts import Periodic
from moor.asking import Asks, answer_of
from moor.broker.deployments import BrokerDeployment
from moor.client.errors import ClientError
from moor.overview.gathering import CloudView, CloudViewer, Rates, brokers_of
from moor.settings import Settings

EVERY_S = 5.0
# While nobody has looked for a minute, it looks this often: only so that there is an hour of rates.
UNWATCHED_S = 30.0
LOOKED_AT_S = 60.0
# To count the queues costs a broker more than all else that is looked at.
BROKERS_KEPT_S = 10.0
HOUR_S = 3600.0
# So many samples has an hour at most.
HOUR = round(HOUR_S / EVERY_S)
# A browser that does not read must not fill the memory.
UNREAD_MAX = 2
# Of each queue's name, the part that says what work it is.
STAGES = {
    "requests": "scheduler.requests",
    "claims": "placement.claims",
    "cells": "conductor.",
    "hosts": "compute.",
}


class Sample(Struct, frozen=True):
    """The rate of each kind of work at one moment, in messages a second, and how long boots took in each stage in the minute
    before: half of them, and 99 of 100, at most.
    """

    at: datetime
    per_s: Mapping[str, float]
    conflicts_per_s: float
    p50_s: Mapping[str, float] = {}
    p99_s: Mapping[str, float] = {}


class CloudSeen(Struct, frozen=True):
    """The newest view, and the tiles of each cell."""

    view: CloudView
    tiles: Mapping[str, str]


class Watcher(Periodic):
    """A part that looks at the cloud again and again. `seen` is what it saw last; `hour` is the last hour of rates."""

    def __init__(self, asking: Asks, settings: Settings, every_s: float = EVERY_S) -> None:
        super().__init__("look at the cloud", self._look, self._pause_s, is_cut_short=True)
        self._watched_every_s = every_s
        self.seen: CloudSeen | None = None
        self.trouble = ""
        self.hour: deque[Sample] = deque(maxlen=HOUR)
        self._asking = asking
        self._settings = settings
        self._viewer = CloudViewer(asking, settings, brokers_kept_s=BROKERS_KEPT_S)
        self._rates = Rates()
        self._readers: set[asyncio.Queue[None]] = set()
        # By the loop's clock: when somebody read a page of it last.
        self._read_s = -math.inf

    async def close(self) -> None:
        await self._viewer.close()

    def is_looked_at(self) -> None:
        """Somebody reads a page of what it sees. If that is old, it looks again at once."""
        was_watched = self._is_watched()
        self._read_s = asyncio.get_running_loop().time()
        if not was_watched:
            self.wake()

    def brokers(self) -> tuple[BrokerDeployment, ...]:
        return brokers_of(self._settings, self.seen.view.overview if self.seen else None)

    async def news(self) -> AsyncIterator[None]:
        """Yields now, and each time that something new was seen."""
        queue = asyncio.Queue[None](UNREAD_MAX)
        queue.put_nowait(None)
        self.is_looked_at()
        self._readers.add(queue)
        try:
            while True:
                await queue.get()
                yield
        finally:
            self._readers.discard(queue)

    def _is_watched(self) -> bool:
        return bool(self._readers) or asyncio.get_running_loop().time() - self._read_s < LOOKED_AT_S

    def _pause_s(self) -> float:
        # Until it has seen something, there is nothing to show.
        return self._watched_every_s if self.seen is None or self._is_watched() else UNWATCHED_S

    async def _look(self) -> None:
        try:
            view = await self._viewer.look()
            tiles = await self._tiles(view.overview) if view.overview else {}
        except (Failure, ConnectionLost, Refusal, ClientError) as problem:
            self.trouble = str(problem)
        else:
            self.trouble = ""
            self.seen = CloudSeen(view, tiles)
            if view.overview is not None:
                self._sample(view.overview)
        for reader in self._readers:
            with suppress(asyncio.QueueFull):
                reader.put_nowait(None)

    async def _tiles(self, overview: Overview) -> dict[str, str]:
        found = {}
        for cell in overview.cells:
            tiles = ""
            while True:
                page = await answer_of(self._asking, AskTiles(in_cell=cell.cell, skipped=len(tiles)), Tiles)
                tiles += page.tiles
                if not page.tiles or len(tiles) >= page.hosts:
                    break
            found[cell.cell] = tiles
        return found

    def _sample(self, overview: Overview) -> None:
        self._rates.take(overview)
        queues = self._rates.by_queue()
        per_s = {
            stage: sum(each.per_s for each in queues if each.queue.startswith(queue))
            for stage, queue in STAGES.items()
        }
        timed = [each for each in overview.stages if each.minute.count]
        while self.hour and (overview.made_at - self.hour[0].at).total_seconds() > HOUR_S:
            self.hour.popleft()
        self.hour.append(
            Sample(
                overview.made_at,
                per_s,
                self._rates.conflicts_per_s(),
                {each.stage: each.minute.p50_s for each in timed},
                {each.stage: each.minute.p99_s for each in timed},
            )
        )
