"""Times as numbers."""

from hypothesis import given
from hypothesis import strategies as st

from kit.times import microseconds, moment


@given(st.integers(0, 200_000_000_000_000_000))
def test_a_time_is_the_same_after_it_was_a_number(at_us: int) -> None:
    assert microseconds(moment(at_us)) == at_us
