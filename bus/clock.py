"""The wall clock of every worker. Functions that make decisions do not read it: they get the time as an argument."""

from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)
