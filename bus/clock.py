"""The wall clock of every worker. What decides takes the time as an argument instead."""

from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)
