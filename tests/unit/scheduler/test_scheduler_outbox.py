"""The scheduler's outbox: which messages are sent again, and which notes are deleted."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.messages.build import BuildInstance
from bus.settings import BusSettings
from bus.workers.handling import OutboxKey, Tell
from bus.workers.station import Station
from engine.flavors import InstanceId, RequestId
from kit.errors import NotFound
from scheduler_worker.core.instances.lifecycle import deleted
from scheduler_worker.core.instances.rows import PLACED, accepted, messages_of
from scheduler_worker.outbox import Outbox, OutboxNotes
from scheduler_worker.store import NewRequest
from tests.stores_in_memory import MemorySchedulerStore

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
UNSAID_AFTER = timedelta(seconds=4)


class Rows:
    """A store with a clock of its own, and one instance that has its end to say."""

    def __init__(self) -> None:
        self.store = MemorySchedulerStore()
        self.now = NOON
        self.outbox = Outbox(self.store, OutboxNotes(self.store, UNSAID_AFTER, lambda: self.now))

    async def say(self, number: int) -> OutboxKey:
        build = BuildInstance(request_id=RequestId(UUID(int=100 + number)))
        (row,) = accepted(build, [InstanceId(UUID(int=number))], self.now, self.now)
        over = deleted(row, self.now)
        assert over is not None
        async with self.store.transaction() as transaction:
            await transaction.accept([NewRequest(row.told.request_id, b"", (over,))])
            (kept,) = await transaction.note([[over]])
        return kept

    async def clear(self, *said: OutboxKey) -> None:
        async with self.outbox.transaction() as transaction:
            await self.outbox.clear(transaction, said)

    async def unsaid(self) -> list[int]:
        notes = await self.store.unconfirmed(self.now + timedelta(days=1), None, 10)
        return [row.id.int for note in notes for row in note.rows]

    async def pending(self) -> set[OutboxKey]:
        return {kept for kept, _ in await self.outbox.pending()}


async def test_what_is_confirmed_is_cleared_with_the_transaction_and_the_rest_stays() -> None:
    rows = Rows()
    first = await rows.say(1)
    await rows.say(2)
    assert await rows.unsaid() == [1, 2]

    await rows.clear(first)

    assert await rows.unsaid() == [2]


async def test_what_was_said_just_now_is_not_said_again_yet() -> None:
    rows = Rows()
    first = await rows.say(1)
    assert await rows.pending() == set()
    rows.now += 2 * UNSAID_AFTER
    second = await rows.say(2)
    assert await rows.pending() == {first}

    rows.now += 2 * UNSAID_AFTER

    assert await rows.pending() == {first, second}
    assert {kept for kept, _ in await rows.outbox.pending(first)} == {second}


async def test_a_note_of_which_nothing_is_left_to_say_goes_with_the_sweep() -> None:
    rows = Rows()
    await rows.say(1)
    async with rows.store.transaction() as transaction:
        (row,) = (await transaction.lock([InstanceId(UUID(int=1))])).values()
        await transaction.save([structs.replace(row, unsaid=False)])
    rows.now += 2 * UNSAID_AFTER

    assert await rows.pending() == set()

    assert await rows.store.unconfirmed(rows.now, None, 10) == []


async def test_an_order_that_was_not_read_with_its_row_is_not_noted_again() -> None:
    """Otherwise a client without a right to an instance could have its order sent again by asking for its delete."""
    rows = Rows()
    build = BuildInstance(request_id=RequestId(UUID(int=100)))
    (row,) = accepted(build, [InstanceId(UUID(int=1))], rows.now, rows.now)
    told = structs.replace(row.told, state=PLACED, cell="c1")
    async with rows.outbox.transaction() as transaction:
        await transaction.note([structs.replace(row, told=told, unsaid=True)])

    assert await rows.store.unconfirmed(rows.now + timedelta(days=1), None, 10) == []


async def test_a_message_that_cannot_be_sent_keeps_its_note() -> None:
    rows = Rows()
    kept = await rows.say(1)
    broker = MemoryBroker()
    station = Station(broker.as_user(), "scheduler", settings=BusSettings())
    (row,) = [
        row
        for note in await rows.store.unconfirmed(rows.now + timedelta(days=1), None, 1)
        for row in note.rows
    ]
    told = [Tell(message, None, kept) for message in messages_of(row)]

    # Nothing is declared there.
    with pytest.raises(NotFound):
        await rows.outbox.publish(told, station.publisher)

    assert await rows.unsaid() == [1]
    await station.close()
