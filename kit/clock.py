"""The wall clock of every worker, and times as whole microseconds since 1970, as rows have them.

Functions that make decisions do not read the clock: they get the time as an argument.
"""

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND_US = 1_000_000
_MICROSECOND = timedelta(microseconds=1)


def now() -> datetime:
    return datetime.now(UTC)


def microseconds(at: datetime) -> int:
    return (at - EPOCH) // _MICROSECOND


def moment(at_us: int) -> datetime:
    return EPOCH + at_us * _MICROSECOND
