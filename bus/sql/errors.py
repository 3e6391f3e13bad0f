"""What the databases' errors mean: may the same be tried again, is the server away, was a name taken?

Speaks to no database; knows how asyncpg, sqlite3 and SQLAlchemy, which wraps what the two raise, put it.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError

from bus.errors import Locked, TookTooLong, Transient, Unavailable

# Classes of SQLSTATE: a deadlock or serialisation failure, or out of resources; a connection broke, the server stops, it
# has no session left for us, or it ended a transaction in which we asked nothing.
_TRANSIENT_CLASSES = ("40", "53")
_AWAY_CLASSES = ("08", "57", "53300", "25P03")
_LOCK_NOT_AVAILABLE = "55P03"
# A statement beyond its limit; also one that an operator cancelled.
_CANCELED = "57014"
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
    if isinstance(original, sqlite3.Error) or _sqlstate(original) == _LOCK_NOT_AVAILABLE:
        return Locked
    return TookTooLong if _sqlstate(original) == _CANCELED else Transient


@contextmanager
def connecting() -> Iterator[None]:
    """Inside, there is nothing but the way to the server: whatever the operating system says is about that.

    No route, no such name, no answer in time, no socket at this path.
    """
    try:
        yield
    except OSError as error:
        raise Unavailable(f"database: cannot connect: {error!r}") from error


def is_transient(error: BaseException) -> bool:
    """Was this nobody's fault, so that the same may work when it is tried again?"""
    error = _original(error)
    if (state := _sqlstate(error)) is not None:
        return (
            is_away(error)
            or state.startswith(_TRANSIENT_CLASSES)
            or state in {_LOCK_NOT_AVAILABLE, _CANCELED}
        )
    if isinstance(error, sqlite3.OperationalError):
        return _sqlite_code(error) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
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
