"""Loads of hosts: written beside rows that are not read for them, and only if the report says nothing else."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.hosts import HostsReported
from bus.workers.handling import Received
from engine.hosts import HostFacts, HostSetting, HostState, Supported
from engine.inventories import ProviderId
from engine.picture.picture import Picture
from scheduler_worker.handlers import host_report_handlers
from scheduler_worker.hosts import LOADS_READ_AFTER, HostRegistry, HostWatch
from scheduler_worker.outbox import Outbox, OutboxNotes
from scheduler_worker.store import HostQuery
from tests.simulation.loop import run_simulated
from tests.stores_in_memory import MemorySchedulerStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FAILED_MAX = 3
HOST, OTHER = (ProviderId(UUID(int=n)) for n in (7, 8))


class Scheduler:
    """A scheduler's handler of reports, with a registry of its own."""

    def __init__(self, store: MemorySchedulerStore) -> None:
        self.store = store
        self.registry = HostRegistry(
            Picture(), timedelta(seconds=60), lambda: NOON, failed_builds_max=FAILED_MAX
        )
        self._outbox = Outbox(store, OutboxNotes(store, timedelta(seconds=5), lambda: NOON))
        self._handle = host_report_handlers(self.registry, lambda: NOON)[HostsReported]

    async def handle(self, *reports: HostsReported) -> None:
        asks = [Received(each, "id", "", "", "", 0, cell="c1") for each in reports]
        assert callable(self._handle), "it gets a transaction"
        async with self._outbox.transaction() as transaction:
            await self._handle(asks, transaction)

    def knows(self, host: ProviderId = HOST) -> HostState:
        known = self.registry.get(host)
        assert known is not None
        return known


def a_report(sequence: int, *hosts: ProviderId, cell: str = "c1", **told: Any) -> HostsReported:
    facts = tuple(HostFacts(id=each, name=f"h{each.int}", **told) for each in hosts or (HOST,))
    return HostsReported(cell=cell, hosts=facts, sequence=sequence)


async def rows_of(store: MemorySchedulerStore) -> Sequence[HostState]:
    return await store.hosts(HostQuery())


async def a_scheduler_that_knows(*hosts: ProviderId) -> Scheduler:
    scheduler = Scheduler(MemorySchedulerStore())
    await scheduler.handle(a_report(1, *hosts))
    return scheduler


def test_a_load_is_written_and_known_without_another_version_of_the_row() -> None:
    async def story() -> None:
        scheduler = await a_scheduler_that_knows(HOST, OTHER)
        before = await rows_of(scheduler.store)

        await scheduler.handle(a_report(2, HOST, OTHER, instances=3), a_report(3, io_ops=2, instances=4))

        host, other = await rows_of(scheduler.store)
        assert [(each.instances, each.io_ops, each.report_sequence) for each in (host, other)] == [
            (4, 2, 3),
            (3, 0, 2),
        ]
        assert [each.sequence for each in (host, other)] == [each.sequence for each in before]
        assert (scheduler.knows().io_ops, scheduler.knows(OTHER).instances) == (2, 3)
        assert len(await scheduler.store.host_loads()) == 2

    asyncio.run(story())


def test_a_late_report_changes_no_load() -> None:
    async def story() -> None:
        scheduler = await a_scheduler_that_knows(HOST)
        await scheduler.handle(a_report(5, io_ops=5))

        await scheduler.handle(a_report(4, io_ops=4))

        (host,) = await rows_of(scheduler.store)
        assert (host.io_ops, host.report_sequence) == (5, 5)
        assert scheduler.knows().io_ops == 5

    asyncio.run(story())


@pytest.mark.parametrize(
    "news",
    [
        {"availability_zone": "az2"},
        {"hypervisor_version": 9},
        {"supports": (Supported(architecture="x86_64"),)},
        {"capabilities": {"cpu": "fast"}},
        {"report_refused": "too many"},
    ],
    ids=str,
)
def test_a_report_that_says_more_than_a_load_writes_the_row_with_all_of_it(news: dict[str, Any]) -> None:
    async def story() -> None:
        scheduler = await a_scheduler_that_knows(HOST, OTHER)
        await scheduler.handle(a_report(2, io_ops=1))

        await scheduler.handle(a_report(3, OTHER, io_ops=2), a_report(4, io_ops=3, **news))

        host, other = await rows_of(scheduler.store)
        assert (host.io_ops, other.io_ops) == (3, 2)
        for name, value in news.items():
            assert getattr(host, name) == value
            assert getattr(scheduler.knows(), name) == value
        assert host.sequence == 2

    asyncio.run(story())


def test_a_host_is_set_draining_by_failures_whose_first_ones_were_written_as_loads() -> None:
    async def story() -> None:
        scheduler = await a_scheduler_that_knows(HOST)
        for sequence, failed in enumerate((1, 2, 0, 1, 2), start=2):
            await scheduler.handle(a_report(sequence, failed_builds=failed))
        (row,) = await rows_of(scheduler.store)
        assert (row.sequence, row.failed_builds, row.setting.mode) == (1, 2, "up")

        await scheduler.handle(a_report(7, failed_builds=FAILED_MAX))

        (row,) = await rows_of(scheduler.store)
        assert (row.setting.mode, scheduler.knows().setting.mode) == ("draining", "draining")
        assert row.setting.reason == "3 builds in a row failed (failed_builds_max is 3)"

    asyncio.run(story())


def test_what_this_worker_has_only_heard_is_not_taken_for_what_the_row_says() -> None:
    """It hears the report of new facts on the feed before it gets the report to write. The row must get the facts."""

    async def story() -> None:
        scheduler = await a_scheduler_that_knows(HOST)
        report = a_report(2, availability_zone="az2")
        scheduler.registry.hear_facts(report, "c1")

        await scheduler.handle(report)

        (host,) = await rows_of(scheduler.store)
        assert host.availability_zone == "az2"

    asyncio.run(story())


def test_a_row_that_another_worker_has_written_meanwhile_is_read_first() -> None:
    async def story() -> None:
        scheduler = await a_scheduler_that_knows(HOST)
        (row,) = await rows_of(scheduler.store)
        draining = structs.replace(row, setting=HostSetting(mode="draining", number=9), sequence=2)
        async with scheduler.store.transaction() as transaction:
            await transaction.save_hosts([draining], NOON)

        await scheduler.handle(a_report(2, io_ops=4))

        (row,) = await rows_of(scheduler.store)
        assert (row.setting.mode, row.io_ops) == ("draining", 4)
        assert scheduler.knows().setting.mode == "draining"

    asyncio.run(story())


def test_a_cell_cannot_write_the_load_of_another_cells_host() -> None:
    async def story() -> None:
        scheduler = await a_scheduler_that_knows(HOST)

        await scheduler.handle(a_report(2, cell="c2", io_ops=7))

        (row,) = await rows_of(scheduler.store)
        assert (row.cell, row.io_ops) == ("c1", 0)

    asyncio.run(story())


class CountedReads(MemorySchedulerStore):
    """Counts the rows of hosts that are read whole."""

    def __init__(self) -> None:
        super().__init__()
        self.rows_read = 0

    async def hosts(self, query: HostQuery) -> list[HostState]:
        found = await super().hosts(query)
        self.rows_read += len(found)
        return found


def test_a_row_is_read_once_for_each_time_that_it_is_written() -> None:
    async def story() -> None:
        store = CountedReads()
        scheduler = Scheduler(store)
        await scheduler.handle(a_report(1, HOST, OTHER))
        watch = HostWatch(store, scheduler.registry, 5.0, lambda: NOON)
        await watch.refresh()
        await watch.refresh()
        assert store.rows_read == 4, "the second look does not know when they were written"

        await watch.refresh()
        await scheduler.handle(a_report(2, HOST, io_ops=1))
        await watch.refresh()
        assert store.rows_read == 4

        (row, _) = await rows_of(store)
        store.rows_read = 0
        draining = structs.replace(row, setting=HostSetting(mode="draining", number=9), sequence=2)
        async with store.transaction() as transaction:
            # At the same moment as the row before it.
            await transaction.save_hosts([draining], NOON)
        await watch.refresh()
        await watch.refresh()
        assert store.rows_read == 1
        assert scheduler.knows().setting.mode == "draining"

    asyncio.run(story())


def test_a_scheduler_that_starts_or_has_missed_a_report_gets_the_load_from_the_database() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        first = await a_scheduler_that_knows(HOST)
        second = Scheduler(first.store)
        watch = HostWatch(
            first.store, second.registry, 5.0, lambda: NOON + timedelta(seconds=loop.time() - began_s)
        )
        await first.handle(a_report(2, io_ops=6))
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(1)
        assert second.knows().io_ops == 6

        await first.handle(a_report(3, io_ops=0))
        await asyncio.sleep(LOADS_READ_AFTER.total_seconds() + 10)

        assert (second.knows().io_ops, second.knows().report_sequence) == (0, 3)
        running.cancel()

    run_simulated(story())
