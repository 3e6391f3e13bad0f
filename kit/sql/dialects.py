"""Classifies database errors: whether the work may be retried, the server is down, or a unique name was taken.

Connects to no database. It knows the errors of asyncpg and sqlite3, also as wrapped by SQLAlchemy.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from asyncpg.exceptions import TargetServerAttributeNotMatched
from sqlalchemy.exc import DBAPIError, IntegrityError

from kit.errors import Locked, TookTooLong, Transient, Unavailable
from kit.tls import TlsClient

# SQLSTATEs and classes of them, the first that fits counts. Locked: another session holds a lock. Too long: a statement over
# its time limit, or cancelled by an operator. Unavailable: a broken connection, a stopping server, no free session, or a
# transaction ended for being idle. Transient: a deadlock or serialisation failure, out of resources, trouble with the server's
# files; a missing right, which may be granted; a standby, which may become a primary.
_TRANSIENT_STATES: tuple[tuple[tuple[str, ...], type[Transient]], ...] = (
    (("55P03",), Locked),
    (("57014",), TookTooLong),
    (("08", "57", "53300", "25P03"), Unavailable),
    (("40", "53", "58", "42501", "25006"), Transient),
)
# Login refused: a wrong password or unknown role (class 28), no such database, no right to connect.
_TURNED_AWAY = ("28", "3D000", "42501")
_CONNECTION_ENDED = "08"
# The class of errors in our own statements.
_OURS = "42"
_SQLITE_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SQLITE_TRANSIENT = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_UNIQUE_VIOLATION = "23505"
_READ_ONLY = "25006"


@contextmanager
def transients() -> Iterator[None]:
    """A context in which database errors that a retry may cure are raised as `Transient`."""
    try:
        yield
    except Exception as error:
        if (kind := transient_kind(error)) is None:
            raise
        raise kind(f"database: {error}") from error


@contextmanager
def connecting(tls: TlsClient) -> Iterator[None]:
    """A context for code that only connects to PostgreSQL: failures are raised as `Unavailable`.

    In such code, every error of the operating system is about the way to the server: no route, no such name, a timeout,
    no socket at this path. An error that the server itself sends counts as a refused login. Only an error in our own
    statements is raised unchanged.
    """
    try:
        yield
    except OSError as error:
        hung_up = isinstance(error, ConnectionResetError)
        why = tls.explained(error, hung_up=hung_up) or f"cannot connect: {error!r}"
        raise Unavailable(f"database: {why}") from error
    except Exception as error:
        original = _original(error)
        # SQLAlchemy wraps the driver's error twice.
        if isinstance(original.__cause__ or error, TargetServerAttributeNotMatched):
            raise Unavailable("database: it is a standby, and the primary is needed") from error
        state = _sqlstate(original) or _OURS
        if state.startswith(_OURS) and state not in _TURNED_AWAY:
            raise
        hung_up = state.startswith(_CONNECTION_ENDED)
        why = (
            tls.explained(original, hung_up=hung_up)
            or f"login refused: {original}{_advice(state, tls.certificate)}"
        )
        raise Unavailable(f"database: {why}") from error


def _advice(state: str, certificate: str) -> str:
    if not state.startswith(_TURNED_AWAY):
        return ""
    named = f"; the server may also want the role's name in the certificate {certificate}" * bool(certificate)
    return f"; correct the role, its password, its rights or the database's name (MOOR_DB_URL){named}"


@contextmanager
def opening(file: str) -> Iterator[None]:
    """A context for code that only opens the SQLite file: every database error is raised as one about this file."""
    try:
        yield
    except DBAPIError as error:
        raise Unavailable(f"database: {file} cannot be used: {_original(error)}") from error


def transient_kind(error: BaseException) -> type[Transient] | None:
    """The error to raise in place of a database error, if the same work may succeed later. None if a retry does not help.

    Of the operating system's errors only a broken connection counts. A timeout or a missing file may come from any
    code in the transaction. It would be retried for ever, as if a server had to come back.
    """
    error = _original(error)
    if isinstance(error, sqlite3.OperationalError):
        code = _sqlite_code(error) & 0xFF
        return Locked if code in _SQLITE_LOCKED else Transient if code in _SQLITE_TRANSIENT else None
    if (state := _sqlstate(error)) is None:
        return Unavailable if isinstance(error, ConnectionError) else None
    return next((kind for states, kind in _TRANSIENT_STATES if state.startswith(states)), None)


def is_of_a_standby(error: BaseException) -> bool:
    """Did a statement fail because the server, or its transaction, only reads?"""
    return _sqlstate(_original(error)) == _READ_ONLY


def is_duplicate(error: IntegrityError) -> bool:
    """Did a statement fail because a unique name or id is already in the table?"""
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
