"""Times as datetimes, and as whole microseconds since 1970: so clocks, rows and notifications have them."""

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(at: datetime) -> int:
    return (at - EPOCH) // _MICROSECOND


def moment(at_us: int) -> datetime:
    return EPOCH + at_us * _MICROSECOND
