"""The journal's file: a SQLite database with one row for each persistent parcel in each queue.

SQLite is used instead of a log of our own. A log costs a third (measured for a parcel of fifty messages, 15 KB: 12-20
against 40-62 us of CPU). But SQLite handles torn writes and checksums, and keeps the file small under constant
traffic. The file grows only with what waits in it at a time, since it uses the space of acknowledged parcels again.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import starmap
from pathlib import Path

import msgspec
from msgspec import Struct

from bus.broker import Parcel

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
