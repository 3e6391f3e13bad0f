"""Creates the parts of a cell's conductor. __main__.py runs them alone, `moor` beside other workers."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import uuid4

from bus.workers.connections import Station
from bus.workers.consuming import Subscription
from bus.workers.handlers import OutboxKey
from bus.workers.heartbeats import Heartbeats
from bus.workers.publisher import Outgoing
from bus.workers.set_aside import FailedRows
from bus.workers.worker import Worker
from cell_conductor.core.rows import ConductorRules, DrawId
from cell_conductor.handlers import Ask, Decider, Timers, before_burial, handlers, question_handlers
from cell_conductor.hosts import CellHostWatch, conductor_beats, host_handlers
from cell_conductor.settings import PACE, ConductorPace, ConductorSettings
from cell_conductor.store_sql import ConductorStore
from engine.inventories import ConsumerId
from kit.clock import now
from kit.process import Part

# How much longer a question to placement belongs to the process that asked it than it waits for an answer.
ASK_LEASES = 1.5


def drawn_id() -> ConsumerId:
    return ConsumerId(uuid4())


def conductor_parts(
    station: Station,
    store: ConductorStore,
    settings: ConductorSettings,
    cell: str,
    ask: Ask,
    *,
    clock: Callable[[], datetime] = now,
    clock_s: Callable[[], float] | None = None,
    draw: DrawId = drawn_id,
    pace: ConductorPace = PACE,
) -> tuple[Part, ...]:
    """All parts of a conductor: the worker for orders and answers, the timers, the watch over the hosts, its heartbeats, and
    the worker for questions. `ask` sends questions to placement, by a station that runs with these parts. `clock_s` measures
    how long hosts are silent; by default it is the event loop's. `draw` draws the ids of new consumers.
    """
    # Until a question has failed for want of an answer, no other process of the cell asks it.
    ask_lease = timedelta(milliseconds=ASK_LEASES * station.settings.answer_timeout_ms)
    decider = Decider(rules_of(settings, cell, ask_lease, pace), clock, draw)

    async def say(outgoing: Sequence[Outgoing], notes: Sequence[OutboxKey]) -> None:
        # The worker clears the notes of the timers' messages with those of its own.
        await worker.say(outgoing, notes)

    failed = FailedRows(station, f"conductor.{cell}.work")
    timers = Timers(
        store,
        say,
        ask,
        decider=decider,
        failed=failed,
        pace=pace,
        chance=station.chance,
    )
    watch = CellHostWatch(station, store, timers, decider, pace, clock_s=clock_s)

    worker = Worker(
        station,
        Subscription(
            f"conductor.{cell}.work",
            {
                **handlers(decider, timers.expect),
                **host_handlers(cell, watch.expect_setting, watch.lose),
                **failed.handlers,
            },
            store,
            outbox=store,
            committed=timers.saved,
            before_burial=before_burial(decider, failed),
        ),
    )
    beats = Heartbeats(
        "heartbeats",
        station.publisher,
        partial(conductor_beats, store, watch.silent, cell=cell, name=station.name, within_s=pace.beat_s),
        pace.beat_s,
        chance=station.chance,
    )
    # Questions do not wait behind orders, nor orders behind them.
    answers = Worker(
        station,
        Subscription(
            f"conductor.{cell}.questions",
            question_handlers(cell, store),
            store,
        ),
    )
    return (worker, timers, watch, beats, answers)


def rules_of(
    settings: ConductorSettings, cell: str, ask_lease: timedelta, pace: ConductorPace = PACE
) -> ConductorRules:
    return ConductorRules(
        cell=cell,
        attempt_timeout=timedelta(seconds=settings.attempt_timeout_s),
        destroy_timeout=timedelta(seconds=settings.destroy_timeout_s),
        deploy_timeout=timedelta(seconds=settings.deploy_timeout_s),
        undeploy_timeout=timedelta(seconds=settings.undeploy_timeout_s),
        remind_every=timedelta(seconds=pace.remind_every_s or settings.attempt_timeout_s),
        ask_lease=ask_lease,
        retry_delay_first=timedelta(seconds=pace.retry_delay_s_first),
        retry_delay_max=timedelta(seconds=pace.retry_delay_s_max),
        kept_after_end=timedelta(seconds=settings.kept_after_end_s),
    )
