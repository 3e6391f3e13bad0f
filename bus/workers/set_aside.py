"""Rows at which a worker has met a bug. The rule is that of messages (bus/workers/handlers.py), since a row becomes one.

A part that meets a bug at a row goes on with its other rows (`RowByRow`), and puts `RowFailed` into a queue of its own role. Whichever
process takes it tries the row alone. If that is another process, and it meets a bug, too, the row is given up: it is ended,
if it can be, and `RowFailed` is a dead letter with the traceback. There an operator sees it, has it tried again, or deletes it.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from bus.broker import Origin
from bus.codec import encode
from bus.message import Envelope
from bus.messages.cloud import RowFailed
from bus.topology import destination_of
from bus.workers.connections import Station
from bus.workers.dead_letters import Parked, retry_parcel
from bus.workers.handlers import Handlers, ReadOnly, Received, Said
from bus.workers.metrics import ROWS_FAILED
from kit.errors import Operational, Poison
from kit.metrics import Labels, Readings
from kit.parts import RowByRow

log = logging.getLogger(__name__)

# What the owner of the row is told.
SET_ASIDE = (
    "workers met a bug at it, and gave it up; the operators of this cloud find it among the dead letters"
)


class RowWork(Struct, frozen=True):
    """What a part can do with one row: try it `again`, alone; and `end` it in a transaction, for the reason that is given."""

    again: Callable[[str], Awaitable[object]]
    end: Callable[[str, str, Any], Awaitable[Sequence[Said]]] | None = None


class FailedRows:
    """The rows of all parts of a process that read the queue `queue` together with other processes of their role."""

    def __init__(self, station: Station, queue: str) -> None:
        self._station = station
        self._queue = queue
        self._works: dict[str, RowWork] = {}
        self._failed = Counter[Labels]()

    def of(self, part: str, work: RowWork) -> RowByRow:
        """Keeps the part of this name going."""
        self._works[part] = work
        self._failed[part,] = 0
        return RowByRow(partial(self._met_bug, part))

    @property
    def readings(self) -> Readings:
        return (ROWS_FAILED.numbers(self._failed),)

    @property
    def handlers(self) -> Handlers:
        return {RowFailed: ReadOnly(self._try_again)}

    async def end(self, given_up: Sequence[Received[RowFailed]], transaction: Any) -> Sequence[Said]:
        """End what becomes a dead letter."""
        said: list[Said] = []
        for each in given_up:
            work = self._works.get(each.message.part)
            if work is not None and work.end is not None:
                log.debug("a row is given up: workers have met bugs at it")
                said += await work.end(each.message.row, SET_ASIDE, transaction)
        return said

    async def _try_again(self, failed: Sequence[Received[RowFailed]]) -> Sequence[Said]:
        for each in failed:
            work = self._works.get(each.message.part)
            if work is None:
                raise Poison(f"no part {each.message.part!r} here works on rows")
            log.debug("a row at which a process has met a bug is tried alone")
            await work.again(each.message.row)
        return ()

    async def _met_bug(self, part: str, row: object, bug: Exception) -> None:
        self._failed[part,] += 1
        log.critical(
            "part %r has met a bug at row %s, and goes on with the others",
            part,
            row,
            exc_info=bug,
            extra={"part": part},
        )
        message = RowFailed(part=part, row=str(row))
        there, station = destination_of(message), self._station
        origin = Origin(station.consuming.broker.user, exchange=there.exchange, key=there.routing_key)
        line = encode(Envelope(message=message, id=f"{station.name}-{row}", sent_at=station.clock()))
        try:
            await station.publisher.offer(
                retry_parcel(line, self._queue, origin, Parked(failed_in=station.name))
            )
        except Operational as problem:
            # The row rests here, and is told of when it has met the bug again.
            log.warning("no other process tries row %s of part %r: %s", row, part, problem)
