"""The deadlines of requests: an accepted request that is not placed in time ends in error, and a move that waits for room fails."""

import random
from collections.abc import Callable
from datetime import datetime

from msgspec import structs

from bus.parts import Periodic
from bus.workers.publisher import Publisher
from scheduler_worker.core.instances.history import changes_between
from scheduler_worker.core.instances.lifecycle import overdue
from scheduler_worker.outbox.outbox import Outbox
from scheduler_worker.store import SchedulerStore

OVERDUE_AT_ONCE = 200


class Deadlines(Periodic):
    """Ends requests that are past their deadline. Their rows stay overdue until they are written, so after a crash the
    step is repeated; and a request ends also if its message is a dead letter.
    """

    def __init__(
        self,
        store: SchedulerStore,
        outbox: Outbox,
        publisher: Publisher,
        *,
        poll_s: float,
        clock: Callable[[], datetime],
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("end what is overdue", self._look, poll_s, chance=chance)
        self._store = store
        self._outbox = outbox
        self._publisher = publisher
        self._clock = clock

    async def _look(self) -> None:
        while await self._end_some() == OVERDUE_AT_ONCE:
            pass

    async def _end_some(self) -> int:
        due = await self._store.overdue(self._clock(), OVERDUE_AT_ONCE)
        if not due:
            return 0
        async with self._outbox.transaction() as transaction:
            store = await transaction.begun()
            rows = await store.lock(sorted(due))
            ended = [
                structs.replace(row, history=changes_between(each, row, ""))
                for each in rows.values()
                if (row := overdue(each, self._clock())) is not None
            ]
            await store.save(ended)
            told = await transaction.say(ended)
        await self._outbox.publish(told, self._publisher)
        return len(due)
