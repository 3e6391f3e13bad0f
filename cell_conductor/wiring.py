"""Creates the parts of a cell's conductor. __main__.py runs them alone, `moor` beside other workers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from uuid import uuid5

from bus.message import ConsumerId
from bus.messages.build import InstanceId
from bus.process import Part
from bus.workers.station import Station
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
    """All parts of a conductor: the worker for orders and answers, and the timers. `ask` sends questions to placement,
    by a station that runs with these parts.
    """
    if settings.ask_lease_s * 1000 <= station.settings.answer_timeout_ms:
        raise ValueError(
            f"ask_lease_s is {settings.ask_lease_s}, must be more than the answer timeout of "
            f"{station.settings.answer_timeout_ms} ms: otherwise another process asks again too early"
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
        _NotifyingTransactions(store, timers.saved),
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
    """The consumer that holds the share which a silent host may still have. Always the same id for the same attempt."""
    return ConsumerId(uuid5(instance, str(attempt)))


class _NotifyingTransactions:
    """A store's transactions, which notify the timers after each commit."""

    def __init__(self, store: ConductorStore, saved: Callable[[], None]) -> None:
        self._store = store
        self._saved = saved

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ConductorTransaction]:
        async with self._store.transaction() as tx:
            yield tx
        self._saved()
