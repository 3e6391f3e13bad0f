"""Differences between PostgreSQL and SQLite, for statements that are otherwise written once. Connects to neither."""

import ssl
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlalchemy import BigInteger, Connection, DateTime, Dialect, Integer, String, Table, Uuid
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.types import TypeDecorator, TypeEngine

from kit.settings import BadSetting
from kit.tls import BadCertificate, TlsClient, client_tls
from kit.urls import PASSWORD_FILE, read_secret

# TLS to PostgreSQL, as the URL's query says it by libpq's names: sslmode, sslrootcert, sslcert, sslkey. And the file of the
# password (`passwordfile`), which is read at each login.
#
# Without `sslmode`, a URL that names an authority (`sslrootcert`) means `verify-full`: the server must show a certificate of that
# authority for the host's name. A URL that says nothing is left to asyncpg, which then takes TLS if the server offers it.


MODES = ("disable", "require", "verify-ca", "verify-full")
_FILES = {"ca_file": "sslrootcert", "cert_file": "sslcert", "key_file": "sslkey"}


def with_tls(url: URL) -> tuple[URL, dict[str, Any]]:
    """The URL without these parts of its query, and the arguments for asyncpg that say the same."""
    said = {name: value for name in ("sslmode", *_FILES.values()) if (value := _one(url, name))}
    if not said:
        return url, {}
    files = {argument: said.get(name, "") for argument, name in _FILES.items()}
    mode = said.get("sslmode", "verify-full" if files["ca_file"] else "")
    if mode not in MODES:
        raise _bad(url, f"sslmode is {mode!r}, must be {', '.join(MODES[:-1])} or {MODES[-1]}")
    rest = url.difference_update_query((*_FILES.values(), "sslmode"))
    return rest, {"ssl": _context(url, mode, files) if mode != "disable" else False}


def tls_client(url: URL) -> TlsClient:
    """How the errors of connections by this URL are explained."""
    speaks_tls = bool(with_tls(url)[1].get("ssl"))
    return TlsClient(_one(url, "sslcert"), "sslcert in the URL", "sslrootcert in the URL", speaks_tls)


def with_password_file(url: URL) -> tuple[URL, dict[str, Any]]:
    """The URL without `passwordfile`, and the argument for asyncpg that says the same."""
    file = _one(url, PASSWORD_FILE)
    if not file:
        return url, {}
    return url.difference_update_query((PASSWORD_FILE,)), {"password": partial(read_secret, file)}


def _context(url: URL, mode: str, files: dict[str, str]) -> ssl.SSLContext:
    try:
        return client_tls(
            **files,
            checks_name=mode == "verify-full",
            verifies=mode != "require" or bool(files["ca_file"]),
        )
    except BadCertificate as wrong:
        raise _bad(url, f"{_FILES[wrong.argument]} is {wrong.file}: {wrong.why}") from None


def _one(url: URL, name: str) -> str:
    value = url.query.get(name, "")
    return value if isinstance(value, str) else value[-1]


def _bad(url: URL, why: str) -> BadSetting:
    return BadSetting("db_url", url.render_as_string(hide_password=True), "the database's URL", why)


def among(
    connection: Connection, column: sa.ColumnElement[Any], values: Collection[Any]
) -> sa.ColumnElement[bool]:
    """An SQL condition: the column has one of these values.

    All values are one parameter of the statement, so the text of the statement is the same for any number of values.
    """
    if connection.dialect.name == "postgresql":
        return column == sa.any_(sa.literal(list(values), postgresql.ARRAY(column.type)))
    texts = [value.hex if isinstance(value, UUID) else value for value in values]
    each = sa.func.json_each(msgspec.json.encode(texts).decode()).table_valued("value")
    return column.in_(sa.select(sa.type_coerce(each.c.value, column.type)))


def begins_with(column: sa.ColumnElement[UUID], prefix: str) -> sa.ColumnElement[bool]:
    """An SQL condition: the id begins with these hexadecimal digits. It is a range, so an index finds it."""
    return column.between(UUID(prefix.ljust(32, "0")), UUID(prefix.ljust(32, "f")))


def insert(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT into this table in the database's dialect, which supports ON CONFLICT."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def columns_of(rows: Sequence[Sequence[Any]], plain: int) -> tuple[Any, ...]:
    """Turn rows into columns for PostgreSQL's `unnest`: one parameter of the statement for each column.

    The first `plain` columns become text (`array_of`), all further columns lists.
    """
    columns = list(zip(*rows, strict=True))
    return (*map(array_of, columns[:plain]), *map(list, columns[plain:]))


def array_of(column: Sequence[Any]) -> str:
    """Encode numbers, times or plain words as the text of a PostgreSQL array, for a parameter `$1::text::bigint[]`.

    asyncpg would encode each element of a list in Python, which takes several times as long as msgspec. Ids are better
    sent as lists, for a parameter `$1::uuid[]`: PostgreSQL needs 1.5 µs to parse an id from text, four times as long as
    everything else it does with the id.
    """
    return "{" + msgspec.json.encode(column)[1:-1].decode() + "}"


# Column types for the tables of all workers.


Id = Uuid(as_uuid=True)
# SQLite numbers rows only for the type INTEGER, which has 64 bits there too.
InternalId = BigInteger().with_variant(Integer(), "sqlite")


class Moment(TypeDecorator[datetime]):
    """A timestamp. SQLite has no such type: there it is a text in UTC of fixed length, so that it sorts."""

    impl = String
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(DateTime(timezone=True))
        return dialect.type_descriptor(String(32))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        return value if value is None or dialect.name == "postgresql" else moment_text(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        return value if value is None or dialect.name == "postgresql" else datetime.fromisoformat(value)


# Most rows of a batch have the same timestamp.
@lru_cache(maxsize=64)
def moment_text(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="microseconds")
