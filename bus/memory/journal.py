"""The journal of a memory broker. It keeps durable exchanges and queues, and every persistent parcel in them, beyond
`kill -9`.

Events are noted, and the notes of one turn of the event loop are written together. A publisher gets its confirm when
its parcel is synced to the disk, so that it survives a power failure too. While a sync runs, in a thread, notes gather
for the next write: a slow disk makes writes larger, not more frequent.

An acknowledgement has no confirm. It is written no later than any confirm that is given after it. Messages that were
acknowledged just before a kill may be delivered again.

Deliveries cost almost nothing. A queue delivers in order, so one number per queue (how far it was read) says which
parcels were delivered once. Only repeated deliveries are noted one by one.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bus.broker import Parcel
from bus.memory.journal_file import Arrived, JournalFile, JournalWriteError, Notes

log = logging.getLogger(__name__)

# Nothing waits for acknowledgements to be written, so they wait this long for other notes.
LINGER_S = 0.005
RETRY_S = 0.5


class Journal:
    """One journal file for one memory broker, opened by one process at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = JournalFile(Path(path))
        self._syncing = ThreadPoolExecutor(1, "journal")
        self._row = self.file.last_row()
        # Not written yet.
        self._notes = Notes()
        # When they will be written, and the callers that wait for it.
        self._timer: asyncio.Handle | None = None
        self._hurried = False
        self._waiting: list[asyncio.Future[None]] = []
        self._sync: asyncio.Future[None] | None = None
        self._synced_for: list[asyncio.Future[None]] = []
        self._closed = False
        self._failing = ""
        self.on_trouble: Callable[[str], None] = lambda _: None

    # Events

    def declared(self, objects: Callable[[], bytes]) -> None:
        """Note that durable exchanges or queues have changed. `objects` returns all of them, encoded, for the file.

        It is called when the notes are written, once for many changes.
        """
        self._notes.objects = objects
        self._write_later()

    def deleted(self, queue: str) -> None:
        notes = self._notes
        notes.emptied.append(queue)
        notes.arrived = {row: each for row, each in notes.arrived.items() if each.queue != queue}
        self._write_later()

    def arrived(self, queue: str, parcel: Parcel, sender: str) -> int:
        """Note that this parcel was stored in this queue. Returns the row number that the parcel gets in the journal."""
        self._row += 1
        self._notes.arrived[self._row] = Arrived(queue, parcel, sender)
        self._write_later()
        return self._row

    def delivered(self, queue: str, row: int, returns: int) -> None:
        if returns:
            # The journal knows of the first delivery by how far the queue was read; so the stored count is one less
            # than the deliveries.
            self._notes.returns[row] = returns
        else:
            self._notes.read[queue] = row
        self._write_later()

    def done(self, row: int) -> None:
        self._notes.returns.pop(row, None)
        if self._notes.arrived.pop(row, None) is None:
            self._notes.done.append(row)
        self._write_later()

    # Writing

    async def written(self) -> None:
        """Wait until everything that was noted before this call is on the disk."""
        loop = asyncio.get_running_loop()
        if self._sync is None:
            if self._timer is None:
                return
            if not (self._hurried or self._failing):
                self._hurried = True
                self._timer.cancel()
                self._timer = loop.call_soon(self._write)
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def close(self) -> None:
        """Write all events that were noted but not yet written, and release the file. Afterwards the broker must not
        change.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        self._syncing.shutdown()
        try:
            self._write_notes()
            self.file.sync()
        finally:
            self.file.close()
            # Their connections are cut: the callers find that out when they continue.
            _tell(self._synced_for)
            _tell(self._waiting)

    def _write_later(self) -> None:
        if self._timer is None and self._sync is None:
            self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._write)

    def _write(self) -> None:
        self._timer, self._hurried = None, False
        loop = asyncio.get_running_loop()
        try:
            self._write_notes()
        except JournalWriteError as problem:
            self._trouble(str(problem))
            self._timer = loop.call_later(RETRY_S, self._write)
            return
        self._trouble("")
        if self._waiting:
            self._sync = loop.run_in_executor(self._syncing, self.file.sync)
            self._sync.add_done_callback(self._synced)
            self._synced_for, self._waiting = self._waiting, []

    def _write_notes(self) -> None:
        """Write the noted events to the file, and empty the notes only when that has succeeded."""
        self.file.write(self._notes)
        self._notes = Notes()

    def _synced(self, sync: asyncio.Future[None]) -> None:
        problem = sync.exception()
        if problem is not None:
            # After a failed sync the content of the disk is unknown, and a second sync would not show it. So from now
            # on nothing is written or confirmed; only a restart can tell what is there.
            self._trouble(f"{problem}: restart the process")
            return
        self._sync = None
        _tell(self._synced_for)
        if (self._waiting or self._notes != Notes()) and not self._closed:
            self._timer = asyncio.get_running_loop().call_soon(self._write)
            self._hurried = True

    def _trouble(self, why: str) -> None:
        if why != self._failing:
            self._failing = why
            if why:
                log.error("publishers are blocked: %s", why)
            self.on_trouble(why)


def _tell(waiting: list[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)
    waiting.clear()
