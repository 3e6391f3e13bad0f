"""The deadlines of requests: an accepted request that is not placed in time ends in error."""

import random
from collections.abc import Callable
from datetime import datetime

from bus.parts import Periodic
from bus.workers.publisher import Outgoing, Publisher
from scheduler_worker.core.instances.lifecycle import overdue
from scheduler_worker.core.instances.messages import messages_of
from scheduler_worker.store import SchedulerStore

OVERDUE_AT_ONCE = 200


class Deadlines(Periodic):
    """Rows stay due until they are written, so a crash repeats the step. A request among the dead letters ends, too."""

    def __init__(
        self,
        store: SchedulerStore,
        publisher: Publisher,
        poll_s: float,
        clock: Callable[[], datetime],
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("end what is overdue", self._look, poll_s, chance=chance)
        self._store = store
        self._publisher = publisher
        self._clock = clock

    async def _look(self) -> None:
        while await self._end_some() == OVERDUE_AT_ONCE:
            pass

    async def _end_some(self) -> int:
        due = await self._store.overdue(self._clock(), OVERDUE_AT_ONCE)
        if not due:
            return 0
        async with self._store.transaction() as transaction:
            rows = await transaction.lock(sorted(due, key=lambda id_: id_.int))
            ended = [row for each in rows.values() if (row := overdue(each, self._clock())) is not None]
            await transaction.save(ended)
            notes = await transaction.note([ended] if ended else [])
        said = [Outgoing(message) for row in ended for message in messages_of(row)]
        await self._publisher.send_all(said, notes)
        async with self._store.transaction() as transaction:
            await transaction.confirm(notes)
        return len(due)
