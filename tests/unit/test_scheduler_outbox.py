"""What a scheduler's rows keep of what was said, and who is told again."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bus.handling import Kept
from bus.messages.build import BuildInstance, InstanceId, RequestId
from scheduler_worker.instances import InstanceRow, accepted, deleted
from scheduler_worker.late import LateTransactions
from scheduler_worker.store import NewRequest
from scheduler_worker.store_memory import MemorySchedulerStore

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
UNSAID_AFTER = timedelta(seconds=4)


class Rows:
    """A store with a clock of its own, and one instance that has its end to say."""

    def __init__(self) -> None:
        self.store = MemorySchedulerStore()
        self.now = NOON
        self.outbox = LateTransactions(self.store, UNSAID_AFTER, lambda: self.now)

    async def say(self, number: int) -> Kept:
        build = BuildInstance(request_id=RequestId(UUID(int=100 + number)))
        (row,) = accepted(build, [InstanceId(UUID(int=number))], self.now, self.now)
        over = deleted(row, self.now)
        assert over is not None
        async with self.store.transaction() as transaction:
            await transaction.accept([NewRequest(row.told.request_id, b"", (over,))])
        return Kept(row.id.hex, over.told.sequence)

    async def clear(self, *said: Kept) -> None:
        async with self.outbox.transaction() as late:
            await self.outbox.clear(late, said)

    async def unsaid(self) -> list[InstanceRow]:
        return list(await self.store.unsaid(self.now + timedelta(days=1), None, 10))


async def test_what_is_confirmed_is_cleared_before_a_sweep_could_find_it_and_not_at_once() -> None:
    rows = Rows()
    await rows.clear(await rows.say(1))
    assert len(await rows.unsaid()) == 1

    rows.now += UNSAID_AFTER / 2
    await rows.clear(await rows.say(2))

    assert [row.id.int for row in await rows.unsaid()] == [2]


async def test_what_is_confirmed_is_not_said_again_although_its_row_keeps_it() -> None:
    rows = Rows()
    await rows.clear(await rows.say(1))
    second = await rows.say(2)

    rows.now += 2 * UNSAID_AFTER

    assert {kept for kept, _ in await rows.outbox.pending()} == {second}
