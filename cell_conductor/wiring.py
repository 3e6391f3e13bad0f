"""The parts of a cell's conductor, put together; __main__.py runs them alone, `moor` beside others."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from uuid import uuid5

from bus.message import ConsumerId
from bus.messages.build import InstanceId
from bus.process import Part
from bus.station import Station
from cell_conductor.core.instance import Rules
from cell_conductor.handlers import handlers
from cell_conductor.settings import ConductorSettings
from cell_conductor.store import ConductorStore, ConductorTransaction, now
from cell_conductor.timers import Ask, Timers


def conductor_parts(
    station: Station,
    store: ConductorStore,
    settings: ConductorSettings,
    cell: str,
    ask: Ask,
    *,
    clock: Callable[[], datetime] = now,
) -> tuple[Part, ...]:
    """All that a conductor runs: orders and answers from its cell's broker, and what time drives. `ask` puts questions
    to placement, by a station that is run with these parts.
    """
    if settings.ask_lease_s * 1000 <= station.settings.answer_timeout_ms:
        raise ValueError(
            f"ask_lease_s is {settings.ask_lease_s}, must be more than the {station.settings.answer_timeout_ms} ms that "
            "a question may go unanswered: else others ask it meanwhile"
        )
    rules = rules_of(settings, cell)
    timers = Timers(
        store,
        station.publisher,
        ask,
        rules=rules,
        settings=settings,
        clock=clock,
        chance=station.chance,
    )
    worker = station.worker(
        f"conductor.{cell}.work",
        handlers(rules, clock, timers.expect),
        _Told(store, timers.saved),
        outbox=store,
    )
    return (worker, timers)


def rules_of(settings: ConductorSettings, cell: str) -> Rules:
    return Rules(
        cell=cell,
        attempt_timeout=timedelta(seconds=settings.attempt_timeout_s),
        destroy_timeout=timedelta(seconds=settings.destroy_timeout_s),
        deploy_timeout=timedelta(seconds=settings.deploy_timeout_s),
        undeploy_timeout=timedelta(seconds=settings.undeploy_timeout_s),
        remind_every=timedelta(seconds=settings.remind_every_s),
        ask_lease=timedelta(seconds=settings.ask_lease_s),
        retry_delay_first=timedelta(seconds=settings.retry_delay_s_first),
        retry_delay_max=timedelta(seconds=settings.retry_delay_s_max),
        kept_after_end=timedelta(seconds=settings.kept_after_end_s),
        cleanup_consumer=cleanup_consumer,
    )


def cleanup_consumer(instance: InstanceId, attempt: int) -> ConsumerId:
    """Who holds what a silent host may still have of this attempt; always the same, however often it is asked."""
    return ConsumerId(uuid5(instance, str(attempt)))


class _Told:
    """A store's transactions, with a word to the timers after each commit."""

    def __init__(self, store: ConductorStore, saved: Callable[[], None]) -> None:
        self._store = store
        self._saved = saved

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ConductorTransaction]:
        async with self._store.transaction() as tx:
            yield tx
        self._saved()
