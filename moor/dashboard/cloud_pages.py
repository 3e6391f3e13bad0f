"""The overview, live, and what it leads to: workers, brokers, and the hosts behind its tiles.

One watcher asks the schedulers for the overview and the tiles, for all browsers that look, and remembers an hour of rates.
"""

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from kit.errors import ConnectionLost, Failure, Refusal
from kit.metrics import BUCKETS_S
from kit.parts import Periodic
from moor.broker.deployments import BrokerDeployment
from moor.client import Client, ClientError, Durations, Overview, StageTimes
from moor.dashboard.rendering import (
    HEIGHT,
    WIDTH,
    PageRefused,
    PageRenderer,
    Reader,
    is_number,
    line_of,
    stream_of,
    streamed,
)
from moor.overview.gathering import CloudView, CloudViewer, Rates, brokers_of, notes_of, troubles_of
from moor.overview.status_command import (
    instance_counts,
    main_uses,
    per_second,
    queue_rows,
    seconds_in_words,
    worker_groups,
)
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


class Watcher(Periodic):
    """A part that looks at the cloud again and again. `seen` is what it saw last; `hour` is the last hour of rates."""

    def __init__(self, moor: Client, settings: Settings, every_s: float = EVERY_S) -> None:
        super().__init__("look at the cloud", self._look, self._pause_s, is_cut_short=True)
        self.watched_every_s = every_s
        self.seen: CloudView | None = None
        # Of each cell.
        self.tiles: Mapping[str, str] = {}
        self.trouble = ""
        self.hour: deque[Sample] = deque(maxlen=HOUR)
        self._moor = moor
        self._settings = settings
        self._viewer = CloudViewer(moor, settings, brokers_kept_s=BROKERS_KEPT_S)
        self._rates = Rates()
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
        return brokers_of(self._settings, self.seen.overview if self.seen else None)

    def _is_watched(self) -> bool:
        return asyncio.get_running_loop().time() - self._read_s < LOOKED_AT_S

    def _pause_s(self) -> float:
        # Until it has seen something, there is nothing to show.
        return self.watched_every_s if self.seen is None or self._is_watched() else UNWATCHED_S

    async def _look(self) -> None:
        try:
            view = await self._viewer.look()
            tiles = await self._tiles(view.overview) if view.overview else {}
        except (Failure, ConnectionLost, Refusal, ClientError) as problem:
            self.trouble = str(problem)
        else:
            self.trouble = ""
            self.seen, self.tiles = view, tiles
            if view.overview is not None:
                self._sample(view.overview)

    async def _tiles(self, overview: Overview) -> dict[str, str]:
        found = {}
        for cell in overview.cells:
            tiles = ""
            while True:
                page = await self._moor.tiles(cell.cell, skipped=len(tiles))
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


class CloudPages(PageRenderer):
    def __init__(self, moor: Client, watcher: Watcher) -> None:
        self._moor = moor
        self._watcher = watcher
        # The last part of the overview that was rendered, and of what.
        self._rendered: tuple[object, str, str] = (None, "", "")

    async def overview(self, request: Request, reader: Reader) -> Response:
        self._watcher.is_looked_at()
        return self._page(request, reader, "overview.html", live=self._live())

    async def live(self, _request: Request, _reader: Reader) -> Response:
        """The overview as server-sent events: the changing part of the page, each time that something new was seen."""
        return streamed(stream_of("overview", self._news, self._watcher.watched_every_s / 2))

    async def workers(self, request: Request, reader: Reader) -> Response:
        """Each worker and each broker, as the watcher saw them last."""
        self._watcher.is_looked_at()
        seen = self._watcher.seen
        return self._page(
            request,
            reader,
            "workers.html",
            overview=seen.overview if seen else None,
            brokers=seen.brokers if seen else (),
            trouble=self._watcher.trouble or (seen.silent if seen else ""),
        )

    async def tile(self, request: Request, reader: Reader) -> Response:
        """The host behind a tile: that with this number, in the order of names."""
        cell, text = request.path_params["cell"], request.path_params["number"]
        if not is_number(text):
            raise PageRefused(f"{text!r} is no number of a host.")
        number = int(text)
        page = await self._moor.tiles(cell, skipped=number, named=True)
        if not page.names:
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"cell {cell} has no host {number}.")
        return RedirectResponse(f"/hosts/{quote(cell)}/{quote(page.names[0])}", HTTPStatus.SEE_OTHER)

    async def _news(self) -> str:
        self._watcher.is_looked_at()
        return self._live()

    def _live(self) -> str:
        """The changing part of the overview: rendered once for all who look."""
        seen = self._watcher.seen
        known, trouble, page = self._rendered
        if known is not seen or trouble != self._watcher.trouble or not page:
            page = self._render("live.html", **self._seen())
            self._rendered = (seen, self._watcher.trouble, page)
        return page

    def _seen(self) -> Mapping[str, Any]:
        seen, hour = self._watcher.seen, [*self._watcher.hour]
        if seen is None or seen.overview is None:
            silent = seen.silent if seen else ""
            return {"overview": None, "trouble": self._watcher.trouble or silent}
        overview = seen.overview
        return {
            "overview": overview,
            "trouble": self._watcher.trouble,
            "troubles": troubles_of(seen),
            "notes": notes_of(seen),
            "tiles": self._watcher.tiles,
            "counts": instance_counts(overview),
            "uses": main_uses(overview.uses),
            "workers": worker_groups(overview.workers),
            "queues": queue_rows(seen),
            "brokers": seen.brokers,
            "rates": [
                (
                    stage,
                    hour[-1].per_s[stage] if hour else 0.0,
                    line_of([(each.at.timestamp(), each.per_s[stage]) for each in hour]),
                )
                for stage in STAGES
            ],
            "conflicts": (
                hour[-1].conflicts_per_s if hour else 0.0,
                line_of([(each.at.timestamp(), each.conflicts_per_s) for each in hour]),
            ),
            "stages": [_stage(each, hour) for each in overview.stages],
            "since": hour[0].at if hour else None,
            "picture": (WIDTH, HEIGHT),
        }


def _stage(stage: StageTimes, hour: Sequence[Sample]) -> Mapping[str, Any]:
    """A stage of boots: how many went through it a second in the last minute, how long that took then and in the last hour, and the
    hour as two lines.
    """
    p50 = [(each.at.timestamp(), min(each.p50_s.get(stage.stage, 0.0), BUCKETS_S[-1])) for each in hour]
    p99 = [(each.at.timestamp(), min(each.p99_s.get(stage.stage, 0.0), BUCKETS_S[-1])) for each in hour]
    most = max((seconds for _, seconds in p99), default=0.0)
    return {
        "name": stage.stage,
        "per_s": per_second(stage.minute),
        "minute": _in_words(stage.minute),
        "hour": _in_words(stage.hour),
        "count": stage.hour.count,
        "p50_line": line_of(p50, most),
        "p99_line": line_of(p99, most),
    }


def _in_words(durations: Durations) -> tuple[str, str] | None:
    """Half of them, and 99 of 100, took at most so long; None if there were none."""
    if not durations.count:
        return None
    return seconds_in_words(durations.p50_s), seconds_in_words(durations.p99_s)
