"""Creates the parts of a placement worker. __main__.py runs them alone, `moor` beside other workers."""

import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta

from bus.message import Message
from bus.workers.connections import Station, by_station
from bus.workers.consuming import Subscription
from bus.workers.worker import Worker
from engine.inventories import standard_vocabulary
from kit.clock import now
from kit.parts import Periodic, set_beside
from kit.process import Part
from placement_worker.handlers import ChangePublisher, answer_buried, handlers
from placement_worker.settings import FEED_PACE, FeedPace, PlacementSettings
from placement_worker.store_sql import PlacementStore
from placement_worker.view import ProviderView

log = logging.getLogger(__name__)

STANDARD = standard_vocabulary()

# More often would make many small deletes.
PRUNE_EVERY_S = 300.0

# Queues for what cells report, claim and release; and in QUEUES also what only the API level asks.
CELLS_QUEUES = ("placement.work", "placement.claims")
QUEUES = (*CELLS_QUEUES, "placement.searches", "placement.questions")


def placement_parts(
    stations: Sequence[Station],
    store: PlacementStore,
    settings: PlacementSettings,
    clock: Callable[[], datetime] = now,
    *,
    cells: Mapping[str, Station] | None = None,
    pace: FeedPace = FEED_PACE,
    prune_every_s: float = PRUNE_EVERY_S,
) -> tuple[Part, ...]:
    """Everything that a placement worker runs: the workers on each broker it has a station on, the feed, and the pruner.

    `stations` are on brokers of the API level, where the feed has its listeners. `cells` has the stations on brokers of
    cells. Each worker takes and answers messages of one broker; a broker that is away does not stop the others.
    """
    chance = stations[0].chance
    changes = ChangePublisher(store, tuple(station.publisher for station in stations), chance, pace=pace)
    answers = handlers(store, ProviderView(store), settings, vocabulary=STANDARD, clock=clock)
    workers = [
        Worker(
            station,
            Subscription(
                queue, answers, store, committed=changes.written, before_burial={Message: (answer_buried,)}
            ),
        )
        for station in stations
        for queue in QUEUES
    ]
    for station, names in by_station(cells or {}).items():
        of_cell = [
            Worker(
                station,
                Subscription(
                    queue,
                    answers,
                    store,
                    committed=changes.written,
                    before_burial={Message: (answer_buried,)},
                ),
            )
            for queue in CELLS_QUEUES
        ]
        # Without a cell's broker a worker serves all others.
        set_beside((station, *of_cell), f"cell {', '.join(names)}")
        workers += of_cell
    return (*workers, changes, pruner(store.prune, settings, clock, chance, prune_every_s))


def pruner(
    prune_before: Callable[[datetime, datetime], Awaitable[int]],
    settings: PlacementSettings,
    clock: Callable[[], datetime] = now,
    chance: random.Random | None = None,
    every_s: float = PRUNE_EVERY_S,
) -> Periodic:
    """Deletes consumers that ended long ago, and log entries that were published long ago."""

    async def prune() -> None:
        at = clock()
        # Twice the horizon, so that clocks may differ by as much as one horizon.
        gone = await prune_before(at - 2 * settings.horizon, at - timedelta(seconds=settings.log_kept_s))
        log.debug("forgot %d rows", gone)

    return Periodic("forget what ended long ago", prune, every_s, chance=chance)
