"""The parts of a placement worker, put together; __main__.py runs them alone, `moor` beside others."""

import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import os_resource_classes
import os_traits

from bus.parts import Periodic
from bus.process import Part
from bus.station import Station, by_station
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.handlers import handlers
from placement_worker.publishing import ChangePublisher
from placement_worker.settings import PlacementSettings
from placement_worker.store import PlacementStore, PlacementTransaction
from placement_worker.view import View

log = logging.getLogger(__name__)

STANDARD = Vocabulary(
    classes=frozenset(os_resource_classes.STANDARDS), traits=frozenset(os_traits.get_traits())
)

# What cells report, claim and release; and what only the API level asks besides.
CELLS_QUEUES = ("placement.work", "placement.claims")
QUEUES = (*CELLS_QUEUES, "placement.searches", "placement.questions")


def now() -> datetime:
    return datetime.now(UTC)


def placement_parts(
    stations: Sequence[Station],
    store: PlacementStore,
    settings: PlacementSettings,
    clock: Callable[[], datetime] = now,
    *,
    cells: Mapping[str, Station] | None = None,
) -> tuple[Part, ...]:
    """All that a placement worker runs: orders and questions from every broker it has a station on, the feed, and the
    forgetting of what is long over.

    `stations` are on brokers of the API level, which is where the feed is listened to; `cells` says on which others
    there are cells, each with the station there. Each is asked and answers by itself: one that is away keeps nobody.
    """
    chance = stations[0].chance
    changes = ChangePublisher(store, tuple(station.publisher for station in stations), settings, chance)
    told = _Told(store, changes.written)
    view = View(store)
    answers = handlers(store, view, settings, vocabulary=STANDARD, clock=clock)
    workers = [station.worker(queue, answers, told) for station in stations for queue in QUEUES]
    workers += [
        station.worker(queue, answers, told) for station in by_station(cells or {}) for queue in CELLS_QUEUES
    ]
    return (*workers, changes, Pruner(store, settings, clock, chance))


class _Told:
    """A store's transactions, with a word to the feed after each commit."""

    def __init__(self, store: PlacementStore, written: Callable[[], None]) -> None:
        self._store = store
        self._written = written

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PlacementTransaction]:
        async with self._store.transaction() as tx:
            yield tx
        self._written()


class Pruner(Periodic):
    """Forgets consumers that ended long ago, and changes that were published long ago."""

    def __init__(
        self,
        store: PlacementStore,
        settings: PlacementSettings,
        clock: Callable[[], datetime],
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("forget what ended long ago", self._prune, settings.prune_every_s, chance=chance)
        self._store = store
        self._settings = settings
        self._clock = clock

    async def _prune(self) -> None:
        at = self._clock()
        # Twice the horizon, so that clocks may differ by as much as one.
        gone = await self._store.prune(
            at - 2 * self._settings.horizon, at - timedelta(seconds=self._settings.log_kept_s)
        )
        log.debug("forgot %d rows", gone)
