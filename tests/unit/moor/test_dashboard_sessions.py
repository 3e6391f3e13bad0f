"""Sessions of the dashboard end in time, are bounded, and are found only by their secret."""

from moor.dashboard.access import (
    IDLE_S_MAX,
    SessionStore,
)
from placement_worker.api.values import Caller
from tests.waiting import Clock

ANN = Caller(user="ann", roles=frozenset(("admin",)))


def test_a_session_is_found_by_its_secret_until_its_time_is_over() -> None:
    clock = Clock(100.0)
    store = SessionStore(lasts_s=5_000, clock=clock)
    secret = store.begin(ANN)

    for _ in range(4):
        assert store.find(secret) is not None
        clock.now += 1_200
    assert store.find(secret) is not None
    clock.now += 201

    assert store.find(secret) is None
    assert store.find("") is None
    assert len(store) == 0


def test_a_session_that_is_not_used_ends_and_to_peek_is_no_use() -> None:
    clock = Clock(100.0)
    store = SessionStore(clock=clock)
    secret = store.begin(ANN)

    clock.now += IDLE_S_MAX - 1
    assert store.peek(secret) is not None
    clock.now += 2

    assert store.peek(secret) is None
    assert store.find(secret) is None
