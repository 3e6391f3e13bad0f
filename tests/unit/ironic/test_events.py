"""When a daemon lets notifications gather."""

from ironic_sync.events import REST_S_MAX, RESTS_PER_BATCH, rest_s


def test_after_a_notification_that_came_alone_the_next_does_not_wait() -> None:
    assert rest_s(1, 0.004) == 0
    assert rest_s(0, 0.004) == 0


def test_those_that_come_faster_than_they_are_applied_gather_for_a_short_time() -> None:
    assert rest_s(2, 0.004) == 0.004 * RESTS_PER_BATCH
    assert rest_s(200, 5.0) == REST_S_MAX
