"""What a memory broker must still know after `kill -9`: its durable objects, and every kept parcel that waits in them.

What happens is noted, and the notes of a turn of the loop are written together. A publisher has its confirm when its
parcel is on the disk: synced, so that it survives a power failure too. While a sync runs, in a thread, notes gather for
the next write, so that a slow disk makes writes larger and not more frequent.

An acknowledgement is confirmed to nobody. It is written no later than any confirm that is given after it; what the last
moments before a kill acknowledged may be delivered again.

Deliveries cost almost nothing: a queue hands out in order, so that how far it was read tells what was delivered once;
only what is delivered again is noted by itself.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bus.broker import Parcel
from bus.memory.journal_file import Arrived, JournalFile, JournalWriteError, Kept

log = logging.getLogger(__name__)

# Acknowledgements alone, for whose writing nobody waits, wait for company.
LINGER_S = 0.005
RETRY_S = 0.5


class Journal:
    """One file, opened by one process at a time, for one memory broker."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = JournalFile(Path(path))
        self._syncing = ThreadPoolExecutor(1, "journal")
        self._row = self._file.last_row()
        # The notes.
        self._objects: Callable[[], bytes] | None = None
        self._emptied: list[str] = []
        self._arrived: dict[int, Arrived] = {}
        self._returns: dict[int, int] = {}
        self._read: dict[str, int] = {}
        self._done: list[int] = []
        # When they are written, and who waits for it.
        self._timer: asyncio.Handle | None = None
        self._hurried = False
        self._waiting: list[asyncio.Future[None]] = []
        self._sync: asyncio.Future[None] | None = None
        self._synced_for: list[asyncio.Future[None]] = []
        self._closed = False
        self._failing = ""
        self.on_trouble: Callable[[str], None] = _nothing

    def objects(self) -> bytes:
        return self._file.objects()

    def parcels(self) -> Iterator[Kept]:
        return self._file.parcels()

    # What happens

    def declared(self, objects: Callable[[], bytes]) -> None:
        """The durable objects are others now: this tells which, and is asked once for many of them."""
        self._objects = objects
        self._write_later()

    def deleted(self, queue: str) -> None:
        """And with it all that waited in it."""
        self._emptied.append(queue)
        self._arrived = {row: each for row, each in self._arrived.items() if each.queue != queue}
        self._write_later()

    def arrived(self, queue: str, parcel: Parcel, sender: str) -> int:
        """The number by which this parcel in this queue is known from now on."""
        self._row += 1
        self._arrived[self._row] = Arrived(queue, parcel, sender)
        self._write_later()
        return self._row

    def delivered(self, queue: str, row: int, returns: int) -> None:
        if returns:
            # That it was delivered once is known; so this is one more than will be read from it.
            self._returns[row] = returns
        else:
            self._read[queue] = row
        self._write_later()

    def done(self, row: int) -> None:
        self._returns.pop(row, None)
        if self._arrived.pop(row, None) is None:
            self._done.append(row)
        self._write_later()

    # To the disk

    async def written(self) -> None:
        """Wait until everything up to now is on the disk."""
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
        """Write what was noted, and let go of the file. Nothing may happen at the broker any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        self._syncing.shutdown()
        try:
            self._write_notes()
            self._file.sync()
        finally:
            self._file.close()
            # Their connections were cut, and that is what they will say.
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
            self._sync = loop.run_in_executor(self._syncing, self._file.sync)
            self._sync.add_done_callback(self._synced)
            self._synced_for, self._waiting = self._waiting, []

    def _write_notes(self) -> None:
        """Forget them only when they are written."""
        self._file.write(
            objects=self._objects() if self._objects is not None else b"",
            emptied=self._emptied,
            arrived=self._arrived,
            returns=self._returns,
            read=self._read,
            done=self._done,
        )
        self._objects = None
        for notes in (self._emptied, self._arrived, self._returns, self._read, self._done):
            notes.clear()

    def _synced(self, sync: asyncio.Future[None]) -> None:
        problem = sync.exception()
        if problem is not None:
            # What a failed sync left on the disk is not known, and another one would not tell. As long as this one stands
            # nothing is written or confirmed: only a restart can say what there is.
            self._trouble(f"{problem}: it must be started anew")
            return
        self._sync = None
        _tell(self._synced_for)
        if self._is_noted and not self._closed:
            self._timer = asyncio.get_running_loop().call_soon(self._write)
            self._hurried = True

    @property
    def _is_noted(self) -> bool:
        return bool(
            self._waiting
            or self._objects is not None
            or self._emptied
            or self._arrived
            or self._returns
            or self._read
            or self._done
        )

    def _trouble(self, why: str) -> None:
        if why != self._failing:
            self._failing = why
            if why:
                log.error("nothing is taken from publishers: %s", why)
            self.on_trouble(why)


def _tell(waiting: list[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)
    waiting.clear()


def _nothing(_: str) -> None:
    """Nobody is listening."""
