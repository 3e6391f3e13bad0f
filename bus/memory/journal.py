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
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import starmap
from pathlib import Path

import msgspec
from msgspec import Struct

from bus.message import Parcel

# The journal's file: a SQLite database with one row for each persistent parcel in each queue.
#
# SQLite is used instead of a log of our own. A log costs a third (measured for a parcel of fifty messages, 15 KB: 12-20
# against 40-62 us of CPU). But SQLite handles torn writes and checksums, and keeps the file small under constant
# traffic. The file grows only with what waits in it at a time, since it uses the space of acknowledged parcels again.


# "Moor": tells a journal from another program's database.
APPLICATION_ID = 0x4D6F6F72
VERSION = 1
# Checkpoint after this many pages of 4 KiB: the write-ahead log is copied into the file and begins again.
CHECKPOINT_PAGES = 1_000
# The most that a huge write may leave in the write-ahead log.
LOG_BYTES_MAX = 16 * 1024 * 1024

SCHEMA = f"""
BEGIN;
CREATE TABLE standing (id INTEGER PRIMARY KEY CHECK (id = 1), objects BLOB NOT NULL);
CREATE TABLE parcel (
    id INTEGER PRIMARY KEY, queue TEXT NOT NULL, returns INTEGER NOT NULL, about BLOB NOT NULL, body BLOB NOT NULL
);
CREATE TABLE reading (queue TEXT PRIMARY KEY, up_to INTEGER NOT NULL) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
COMMIT;
"""


class JournalTakenError(OSError):
    """Another process uses this journal file."""


class JournalUnreadableError(OSError):
    """The file is not a journal, or a journal of another version."""


class JournalWriteError(OSError):
    """The file cannot be written: the disk is full or broken. The write can be tried again later."""


class JournalHeader(Struct, frozen=True, array_like=True):
    """The sender and all fields of a parcel except its body, as the journal stores them."""

    exchange: str
    routing_key: str
    content_type: str
    reply_to: str
    headers: dict[str, str | int]
    sender: str


class Arrived(Struct, frozen=True, gc=False):
    """A parcel that was stored in a queue."""

    queue: str
    parcel: Parcel
    sender: str


class JournaledParcel(Arrived, frozen=True, gc=False):
    """A parcel as read from the journal after a restart, and how often it was returned to its queue.

    If a consumer held the parcel when the process died, that delivery counts as returned too.
    """

    row: int
    returns: int


class Notes(Struct):
    """The events to write to the journal: what happened since the last write."""

    # Returns the durable objects, if they have changed.
    objects: Callable[[], bytes] | None = None
    # Queues that were deleted, with their parcels.
    emptied: list[str] = []
    # By row number: the parcels that were stored, and how often others have returned.
    arrived: dict[int, Arrived] = {}
    returns: dict[int, int] = {}
    # How far each queue was read.
    read: dict[str, int] = {}
    # Rows of parcels that are finished.
    done: list[int] = []


_encode_about = msgspec.msgpack.Encoder().encode
_decode_about = msgspec.msgpack.Decoder(JournalHeader).decode


class JournalFile:
    """The open file. A file lock makes this process its only user; the lock ends with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with ExitStack() as opened:
            opened.callback(os.close, _lock(path))
            with _readable(path):
                self._connection = opened.enter_context(closing(_opened(path)))
                _prepare(self._connection, path)
            self._log = os.open(f"{path}-wal", os.O_RDWR)
            opened.callback(os.close, self._log)
            self._opened = opened.pop_all()

    # Reading

    def objects(self) -> bytes:
        """The durable objects as last written; empty if there were never any."""
        with _readable(self.path):
            row = self._connection.execute("SELECT objects FROM standing").fetchone()
        return row[0] if row else b""

    def parcels(self) -> Iterator[JournaledParcel]:
        """All parcels, in the order of arrival."""
        with _readable(self.path):
            yield from starmap(
                _journaled_parcel,
                self._connection.execute(
                    "SELECT id, parcel.queue, returns + (id <= coalesce(up_to, 0)), about, body "
                    "FROM parcel LEFT JOIN reading ON reading.queue = parcel.queue ORDER BY id"
                ),
            )

    def last_row(self) -> int:
        """The highest row number that the file knows, so that new parcels get higher ones.

        It is the number of a stored parcel, or the one up to which the parcels of a queue were delivered once: the
        parcels themselves may be deleted since.
        """
        with _readable(self.path):
            (last,) = self._connection.execute(
                "SELECT max(coalesce((SELECT max(id) FROM parcel), 0), coalesce((SELECT max(up_to) FROM reading), 0))"
            ).fetchone()
        assert isinstance(last, int)
        return last

    # Writing

    def write(self, notes: Notes) -> None:
        """Write all of these events in one transaction, or none of them.

        They survive a kill of this process, and after `sync` also a power failure.
        """
        execute, executemany = self._connection.execute, self._connection.executemany
        arrived, returns = notes.arrived, notes.returns
        try:
            execute("BEGIN IMMEDIATE")
            if notes.objects is not None:
                execute("INSERT OR REPLACE INTO standing VALUES (1, ?)", (notes.objects(),))
            for queue in notes.emptied:
                execute("DELETE FROM parcel WHERE queue = ?", (queue,))
            executemany(
                "INSERT INTO parcel VALUES (?, ?, ?, ?, ?)",
                (
                    (row, each.queue, returns.get(row, 0), _about(each), each.parcel.body)
                    for row, each in arrived.items()
                ),
            )
            executemany(
                "UPDATE parcel SET returns = ? WHERE id = ?",
                ((count, row) for row, count in returns.items() if row not in arrived),
            )
            executemany("INSERT OR REPLACE INTO reading VALUES (?, ?)", notes.read.items())
            executemany("DELETE FROM parcel WHERE id = ?", ((row,) for row in notes.done))
            execute("COMMIT")
        except sqlite3.Error as problem:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise JournalWriteError(f"{self.path} cannot be written: {problem}") from problem

    def sync(self) -> None:
        """Sync the file to the disk. This may run in another thread, but not while the file is written."""
        try:
            os.fsync(self._log)
        except OSError as problem:
            raise JournalWriteError(f"{self.path} cannot be written: {problem}") from problem

    def close(self) -> None:
        self._opened.close()


def _lock(path: Path) -> int:
    """Lock a separate file beside the journal, so that only one process uses the journal.

    SQLite's own locks on the journal are not enough: they end when this process opens and closes the journal a second
    time.
    """
    place = path.with_name(f"{path.name}.lock")
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 20).decode(errors="replace") or "unknown"
        os.close(descriptor)
        raise JournalTakenError(
            f"{path} is the journal of the running process {owner}: stop that first, or choose another path"
        ) from None
    os.truncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as problem:
        raise JournalUnreadableError(f"{path} cannot be read as a journal: {problem}") from problem


def _opened(path: Path) -> sqlite3.Connection:
    # Private: parcels may contain secrets of their receivers.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    return sqlite3.connect(path, isolation_level=None)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    for pragma in (
        # No other process reads it, so the index of the write-ahead log need not be in shared memory.
        "locking_mode = EXCLUSIVE",
        "journal_mode = WAL",
        # The journal syncs by itself, outside of the event loop; SQLite itself syncs only around checkpoints.
        "synchronous = NORMAL",
        f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
        f"journal_size_limit = {LOG_BYTES_MAX}",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not tables:
        connection.executescript(SCHEMA)
        return
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise JournalUnreadableError(
            f"{path} is the database of another program, not a journal: choose another path"
        )
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise JournalUnreadableError(
            f"{path} is a journal of version {version}, this program reads version {VERSION}: choose another path"
        )
    # The write-ahead log exists from the first write on. This write changes nothing.
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _about(arrived: Arrived) -> bytes:
    parcel = arrived.parcel
    return _encode_about(
        JournalHeader(
            parcel.exchange,
            parcel.routing_key,
            parcel.content_type,
            parcel.reply_to,
            dict(parcel.headers),
            arrived.sender,
        )
    )


def _journaled_parcel(row: int, queue: str, returns: int, about: bytes, body: bytes) -> JournaledParcel:
    of_it = _decode_about(about)
    parcel = Parcel(
        of_it.exchange,
        of_it.routing_key,
        body,
        content_type=of_it.content_type,
        reply_to=of_it.reply_to,
        headers=of_it.headers,
    )
    return JournaledParcel(queue, parcel, of_it.sender, row, returns)


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
