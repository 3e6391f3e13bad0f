"""How many of those that wait are tried at once."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_worker.waiting import first_that_fit


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
