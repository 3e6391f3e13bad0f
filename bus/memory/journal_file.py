"""The journal's file: a SQLite database, one row for each kept parcel in each queue.

SQLite rather than a log of our own. A log costs a third of it (measured, for a parcel of fifty messages, 15 KB: 12-20
against 40-62 us of CPU), but a torn tail, checksums, and a file that stays small under constant traffic are SQLite's
business here: the most that ever waited bounds the file, and the space of what was acknowledged is used again.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import starmap
from pathlib import Path

import msgspec
from msgspec import Struct

from bus.broker import Parcel

# "Moor", so that no other program's database is taken for a journal.
APPLICATION_ID = 0x4D6F6F72
VERSION = 1
# A checkpoint at so many pages of 4 KiB: the write-ahead log is copied into the file and begun anew.
CHECKPOINT_PAGES = 1_000
# What one huge write may leave of the write-ahead log.
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
    """Another process keeps its journal in this file."""


class JournalUnreadableError(OSError):
    """The file is something else than a journal, or the journal of another version."""


class JournalWriteError(OSError):
    """The file takes nothing more: the disk is full, or broken. What was to be written can be written later."""


class About(Struct, frozen=True, array_like=True):
    """A parcel without its body, and who sent it."""

    exchange: str
    routing_key: str
    content_type: str
    reply_to: str
    headers: dict[str, str | int]
    sender: str


class Arrived(Struct, frozen=True, gc=False):
    """A parcel that was put into a queue."""

    queue: str
    parcel: Parcel
    sender: str


class Kept(Struct, frozen=True):
    """A parcel as it is found after a restart. Who held it when the process died has not acknowledged it: that is a
    return.
    """

    row: int
    queue: str
    parcel: Parcel
    sender: str
    returns: int


_encode_about = msgspec.msgpack.Encoder().encode
_decode_about = msgspec.msgpack.Decoder(About).decode


class JournalFile:
    """One process's alone, which it may be as long as it lives: the lock ends with it, however it ends."""

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

    # What is there

    def objects(self) -> bytes:
        """The objects that stood, as they were written; empty if none ever did."""
        with _readable(self.path):
            row = self._connection.execute("SELECT objects FROM standing").fetchone()
        return row[0] if row else b""

    def parcels(self) -> Iterator[Kept]:
        """In the order in which they came."""
        with _readable(self.path):
            yield from starmap(
                _kept,
                self._connection.execute(
                    "SELECT id, parcel.queue, returns + (id <= coalesce(up_to, 0)), about, body "
                    "FROM parcel LEFT JOIN reading ON reading.queue = parcel.queue ORDER BY id"
                ),
            )

    def last_row(self) -> int:
        """The highest number that was ever given to a row and may still be known."""
        with _readable(self.path):
            (last,) = self._connection.execute(
                "SELECT max(coalesce((SELECT max(id) FROM parcel), 0), coalesce((SELECT max(up_to) FROM reading), 0))"
            ).fetchone()
        assert isinstance(last, int)
        return last

    # What is written

    def write(
        self,
        *,
        objects: bytes,
        emptied: Sequence[str],
        arrived: Mapping[int, Arrived],
        returns: Mapping[int, int],
        read: Mapping[str, int],
        done: Sequence[int],
    ) -> None:
        """All of it or nothing. It is safe from a kill of this process then, and from a power failure after `sync`."""
        execute, executemany = self._connection.execute, self._connection.executemany
        try:
            execute("BEGIN IMMEDIATE")
            if objects:
                execute("INSERT OR REPLACE INTO standing VALUES (1, ?)", (objects,))
            for queue in emptied:
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
            executemany("INSERT OR REPLACE INTO reading VALUES (?, ?)", read.items())
            executemany("DELETE FROM parcel WHERE id = ?", ((row,) for row in done))
            execute("COMMIT")
        except sqlite3.Error as problem:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise JournalWriteError(f"{self.path} cannot be written: {problem}") from problem

    def sync(self) -> None:
        """To the disk itself. May be called by another thread, as long as nothing is written meanwhile."""
        try:
            os.fsync(self._log)
        except OSError as problem:
            raise JournalWriteError(f"{self.path} cannot be written: {problem}") from problem

    def close(self) -> None:
        self._opened.close()


def _lock(path: Path) -> int:
    """A file beside the journal: SQLite has its own locks on the journal itself, which a second look at it would end."""
    place = path.with_name(f"{path.name}.lock")
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 20).decode(errors="replace") or "unknown"
        os.close(descriptor)
        raise JournalTakenError(
            f"{path} is the journal of process {owner}, which runs: stop it first, or choose another path"
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
    # Parcels may hold what only their receivers may see.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    return sqlite3.connect(path, isolation_level=None)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    for pragma in (
        # Nobody else looks into it, so the index of the write-ahead log need not be shared.
        "locking_mode = EXCLUSIVE",
        "journal_mode = WAL",
        # Syncing is ours, apart from the loop; SQLite itself syncs only around checkpoints.
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
            f"{path} is a database of something else, not a journal: choose another path"
        )
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise JournalUnreadableError(
            f"{path} is a journal of version {version}, this program reads {VERSION}"
        )
    # The write-ahead log is there from the first write on; this one changes nothing.
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _about(arrived: Arrived) -> bytes:
    parcel = arrived.parcel
    return _encode_about(
        About(
            parcel.exchange,
            parcel.routing_key,
            parcel.content_type,
            parcel.reply_to,
            dict(parcel.headers),
            arrived.sender,
        )
    )


def _kept(row: int, queue: str, returns: int, about: bytes, body: bytes) -> Kept:
    of_it = _decode_about(about)
    parcel = Parcel(
        of_it.exchange,
        of_it.routing_key,
        body,
        content_type=of_it.content_type,
        reply_to=of_it.reply_to,
        headers=of_it.headers,
    )
    return Kept(row, queue, parcel, of_it.sender, returns)
