"""However a session of the dashboard is used and left open, it ends at its time, and when nobody has used it for long."""

from hypothesis import given
from hypothesis import strategies as st

from moor.dashboard.access import IDLE_S_MAX, SessionStore
from placement_worker.api.values import Caller
from tests.waiting import Clock

LASTS_S = 5_000
# An open page looks without using it.
USE, LOOK = "find", "peek"
PAUSES_S = (1, 900, 2_400, IDLE_S_MAX - 1, IDLE_S_MAX)
STEPS = st.lists(st.tuples(st.sampled_from((USE, LOOK)), st.sampled_from(PAUSES_S)), min_size=5, max_size=20)


@given(STEPS)
def test_a_session_ends_at_its_time_and_when_it_was_not_used_for_long(steps: list[tuple[str, float]]) -> None:
    clock = Clock(0.0)
    store = SessionStore(LASTS_S, clock)
    secret = store.begin(Caller(user="ann", roles=frozenset()))
    ends_s = IDLE_S_MAX
    for way, pause_s in steps:
        clock.pass_s(pause_s)
        found = getattr(store, way)(secret)
        assert (found is not None) == (clock.now < ends_s)
        if found and way == USE:
            ends_s = min(LASTS_S, clock.now + IDLE_S_MAX)
