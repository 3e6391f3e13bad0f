"""Ends a build request that becomes a dead letter, because an earlier delivery of it may have claimed hosts."""

from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import structs

from bus.messages.build import BuildInstance, BuildRejected
from bus.workers.handling import Received, Said
from scheduler_worker.core.instances.placing import failed
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.answering import SENT_AT
from scheduler_worker.requests.building import new_rows, rows_or_rejection
from scheduler_worker.requests.releasing import released_unless_held
from scheduler_worker.requests.request_reader import RequestReader, ValidRequest
from scheduler_worker.requests.stored_names import read_requests
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import NewRequest, SchedulerStore

BURIED = "its request went to the dead letters before it was written down: ask again, by another id"


class Burial:
    def __init__(
        self,
        reader: RequestReader,
        store: SchedulerStore,
        clock: Callable[[], datetime],
        settings: SchedulerSettings,
    ) -> None:
        self._reader = reader
        self._store = store
        self._clock = clock
        self._settings = settings

    async def end_in_error(
        self, asks: Sequence[Received[BuildInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        """Write the instances of these requests as failed, if no rows of theirs are there. The rows have no name, since
        the client's text may be what the database refused. A worker that still works on a copy of the request finds the
        rows and releases its claims.
        """
        said: list[Said] = []
        now = self._clock()
        for ask, read in zip(asks, await read_requests(self._reader, self._store, asks, now), strict=True):
            if not isinstance(read, ValidRequest):
                # Rejected when it came; but an earlier try may have claimed for a request that is too old now.
                if read.field == SENT_AT:
                    said += await released_unless_held(ask, transaction, now)
                continue
            ended = tuple(_ended(row, now) for row in new_rows(ask.message, now, self._settings))
            store = await transaction.begun()
            (acceptance,) = await store.accept([NewRequest(read.id, read.digest, ended)])
            rows = rows_or_rejection(read, acceptance)
            if isinstance(rows, BuildRejected):
                said += await released_unless_held(ask, transaction, now)
                continue
            said += await transaction.say(rows, ask)
        return said

    async def release(
        self, asks: Sequence[Received[BuildInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        """Release the claims of these requests, for which no row can be written.

        This is safe: without rows nobody can place their instances, not even a worker that still works on an earlier
        delivery of the same request.
        """
        return [each for ask in asks for each in await released_unless_held(ask, transaction, self._clock())]


def _ended(row: InstanceRow, now: datetime) -> InstanceRow:
    nameless = structs.replace(row, told=structs.replace(row.told, name=""))
    ended = failed(nameless, now, reason=BURIED)
    assert ended is not None, "a new row is open"
    return ended
