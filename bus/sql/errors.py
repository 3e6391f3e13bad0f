"""What the databases' errors mean: may the same be tried again, is the server away, was a name taken?

Speaks to no database; knows how asyncpg, sqlite3 and SQLAlchemy, which wraps what the two raise, put it.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError

from bus.errors import Locked, TookTooLong, Transient, Unavailable

# Classes of SQLSTATE: a deadlock or serialisation failure, out of resources, or trouble with the server's files; a
# connection broke, the server stops, it has no session left for us, or it ended a transaction in which we asked nothing.
_TRANSIENT_CLASSES = ("40", "53", "58")
_AWAY_CLASSES = ("08", "57", "53300", "25P03")
_LOCK_NOT_AVAILABLE = "55P03"
# A statement beyond its limit; also one that an operator cancelled.
_CANCELED = "57014"
# And: a right is missing, and may be granted; a standby may become a primary.
_TRANSIENT_STATES = (_LOCK_NOT_AVAILABLE, _CANCELED, "42501", "25006")
# Class 28 is a wrong password or no such role; then, no such database, and no right to connect.
_TURNED_AWAY = ("28", "3D000", "42501")
# A statement of ours makes no sense.
_OURS = "42"
_SQLITE_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SQLITE_TRANSIENT = (*_SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_UNIQUE_VIOLATION = "23505"


@contextmanager
def transients() -> Iterator[None]:
    """Inside, what trying again may mend is raised as `Transient`."""
    try:
        yield
    except Exception as error:
        if is_transient(error):
            raise _kind_of(error)(f"database: {error}") from error
        raise


def _kind_of(error: BaseException) -> type[Transient]:
    if is_away(error):
        return Unavailable
    original = _original(error)
    if isinstance(original, sqlite3.Error):
        return Locked if _sqlite_code(original) & 0xFF in _SQLITE_LOCKED else Transient
    if _sqlstate(original) == _LOCK_NOT_AVAILABLE:
        return Locked
    return TookTooLong if _sqlstate(original) == _CANCELED else Transient


@contextmanager
def connecting() -> Iterator[None]:
    """Inside, there is nothing but the way to the server: whatever the operating system says is about that (no route,
    no such name, no answer in time, no socket at this path), and so is what the server says: it does not let us in.
    """
    try:
        yield
    except OSError as error:
        raise Unavailable(f"database: cannot connect: {error!r}") from error
    except Exception as error:
        state = _sqlstate(_original(error)) or _OURS
        if state.startswith(_OURS) and state not in _TURNED_AWAY:
            raise
        why = f"database: it lets us not in: {_original(error)}"
        if state.startswith(_TURNED_AWAY):
            why += "; correct the role, its password, its rights or the database's name (MOOR_DB_URL)"
        raise Unavailable(why) from error


@contextmanager
def opening(file: str) -> Iterator[None]:
    """Inside, there is nothing but the file of SQLite: whatever is said is about that."""
    try:
        yield
    except DBAPIError as error:
        raise Unavailable(f"database: {file} cannot be used: {_original(error)}") from error


def is_transient(error: BaseException) -> bool:
    """Was this nobody's fault, so that the same may work when it is tried again?"""
    error = _original(error)
    if (state := _sqlstate(error)) is not None:
        return is_away(error) or state.startswith(_TRANSIENT_CLASSES) or state in _TRANSIENT_STATES
    if isinstance(error, sqlite3.OperationalError):
        return _sqlite_code(error) & 0xFF in _SQLITE_TRANSIENT
    return is_away(error)


def is_away(error: BaseException) -> bool:
    """Is there no server to be reached, or is it leaving?

    Of what the operating system says, only a broken connection counts. A time-out or a missing file may be anybody's
    who worked inside the transaction, and would be waited out for ever as if a server had to come back.
    """
    error = _original(error)
    state = _sqlstate(error)
    if state is None:
        return isinstance(error, ConnectionError)
    return state.startswith(_AWAY_CLASSES) and state != _CANCELED


def is_duplicate(error: IntegrityError) -> bool:
    """Was a unique name or id taken already?"""
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error.orig) in {
            sqlite3.SQLITE_CONSTRAINT_UNIQUE,
            sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
        }
    return error.orig is not None and _sqlstate(error.orig) == _UNIQUE_VIOLATION


def _original(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _sqlstate(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else None


def _sqlite_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0)
