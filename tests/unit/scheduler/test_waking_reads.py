"""Which rows of other workers a worker reads that tries waiting instances, when the database fails meanwhile."""

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from bus.memory import MemoryBroker
from bus.messages.build import BuildInstance
from bus.workers.station import Station
from engine.flavors import InstanceId
from kit.errors import Transient
from scheduler_worker.core.instances.history import encoded
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.outbox import Outbox, OutboxNotes
from scheduler_worker.requests.waking import Waker
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import InstanceQuery, WaitingInstance
from scheduler_worker.waiting import WaitingSpecs
from tests.contracts.placement_orders import consumer
from tests.contracts.stage import until
from tests.contracts.test_scheduler_store_waiting import begin
from tests.plugins import standard_plugins
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.choosing.scheduler_worlds import a_picture, a_spec

pytestmark = pytest.mark.asyncio

NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)


def a_waker(store: MemorySchedulerStore, specs: WaitingSpecs) -> tuple[Waker, Station]:
    outbox = Outbox(store, OutboxNotes(store, timedelta(seconds=5), lambda: NOON))
    station = Station(MemoryBroker().as_user(), "s")
    waker = Waker(
        store,
        outbox,
        station.publisher,
        None,  # type: ignore[arg-type] # nothing waits in the store, so no host is searched
        specs,
        moves=None,  # type: ignore[arg-type] # nor is a move tried
        settings=SchedulerSettings(),
        clock=lambda: NOON,
        chance=random.Random(1),
    )
    return waker, station


class FailingStore(MemorySchedulerStore):
    """Notes which rows' specs are read. The second reading fails, and `meanwhile` happens during it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Collection[InstanceId] | None] = []
        self.meanwhile: Callable[[], None] = lambda: None

    async def waiting_digests(self, instances: Collection[InstanceId] | None) -> list[bytes]:
        self.asked.append(instances)
        if len(self.asked) == 2:
            self.meanwhile()
            raise Transient("the database is away")
        return await super().waiting_digests(instances)


class CountingStore(MemorySchedulerStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def instances(self, query: InstanceQuery) -> list[InstanceRow]:
        self.asked += 1
        return await super().instances(query)

    async def one_waiting_of_each(self, digests: Sequence[bytes]) -> list[WaitingInstance]:
        self.asked += 1
        return await super().one_waiting_of_each(digests)

    async def some_are_woken(self) -> bool:
        # All have been read.
        self.asked += 1_000
        return False


async def readings(meanwhile: str) -> list[Collection[InstanceId] | None]:
    """`meanwhile` is what is heard while one row is read: of another row, or that some may be missing."""
    store, specs = FailingStore(), WaitingSpecs(a_picture(), standard_plugins())
    store.meanwhile = specs.doubt if meanwhile == "a gap" else lambda: specs.heard(consumer(meanwhile))
    waker, station = a_waker(store, specs)
    running = asyncio.create_task(waker.run())
    await until(lambda: len(store.asked) == 1)
    specs.heard(consumer("first"))
    await until(lambda: len(store.asked) == 3)
    await waker.stop()
    await running
    await station.close()
    return store.asked


async def test_what_is_heard_while_a_reading_fails_is_read_with_the_next_one() -> None:
    assert await readings("other") == [None, {consumer("first")}, {consumer("first"), consumer("other")}]


async def test_a_gap_in_the_feed_while_a_reading_fails_has_all_rows_read() -> None:
    assert await readings("a gap") == [None, {consumer("first")}, None]


async def test_what_waits_is_read_at_the_start_by_a_few_questions() -> None:
    store, specs = CountingStore(), WaitingSpecs(a_picture(), standard_plugins())
    build = BuildInstance()
    spec, kept = encoded(a_spec(1), build), msgspec.msgpack.encode(build)
    for number in range(1, 151):
        await begin(store, number, digest=b"%d" % number, spec=spec, kept=kept)
    store.asked = 0
    waker, station = a_waker(store, specs)

    running = asyncio.create_task(waker.run())
    await until(lambda: store.asked >= 1_000)
    await waker.stop()
    await running
    await station.close()

    assert len(specs.learned()) == 150
    assert store.asked == 1_004
