"""Column types for the tables of all workers."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, DateTime, Dialect, Integer, String, Uuid
from sqlalchemy.types import TypeDecorator, TypeEngine

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
