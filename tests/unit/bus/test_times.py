"""Times as numbers."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from kit.clock import microseconds, moment


@given(st.datetimes(datetime(1970, 1, 1), datetime(8999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001
def test_a_time_is_the_same_after_it_was_a_number(at: datetime) -> None:
    assert moment(microseconds(at)) == at
