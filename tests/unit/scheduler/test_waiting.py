"""Which hosts may have room for what waits, and how many are tried: no change is lost, and none is searched twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.choosing.choosing import first_that_fit
from scheduler_worker import waiting


@pytest.fixture(autouse=True)
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time; a test may change it."""
    time = [100.0]
    monkeypatch.setattr(waiting, "_now_s", lambda: time[0])
    return time


@given(
    rows=st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=12),
    room=st.fixed_dictionaries({digest: st.integers(1, 6) for digest in (b"a", b"b", b"c")}),
)
def test_as_many_are_tried_as_fit_together_for_sure_by_the_least_of_their_rooms(
    rows: list[bytes], room: dict[bytes, int]
) -> None:
    taken = first_that_fit(rows, room)

    def fit(count: int) -> bool:
        return all(room[digest] >= count for digest in rows[:count])

    assert fit(taken)
    assert taken == len(rows) or not fit(taken + 1)
    assert taken or not rows
