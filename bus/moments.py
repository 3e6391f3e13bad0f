"""Converts times between datetimes and whole microseconds since 1970, as rows have them."""

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND_US = 1_000_000
_MICROSECOND = timedelta(microseconds=1)


def microseconds(at: datetime) -> int:
    return (at - EPOCH) // _MICROSECOND


def moment(at_us: int) -> datetime:
    return EPOCH + at_us * _MICROSECOND
