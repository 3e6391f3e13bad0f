"""A clock that follows no jump ahead."""

from ironic_sync.applying import SteadyClock

HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000


class Time:
    def __init__(self) -> None:
        self.wall_us = 10 * DAY_US
        self.at_s = 500.0
        self.steady_us = SteadyClock(lambda: self.wall_us, lambda: self.at_s, forgets_s=3600.0)

    def passes(self, seconds: float, *, jump_us: int = 0) -> int:
        self.at_s += seconds
        self.wall_us += round(seconds * 1e6) + jump_us
        return self.steady_us()


def test_the_wall_clock_is_believed_again_when_it_has_not_jumped_for_long() -> None:
    time = Time()
    time.passes(60.0, jump_us=6 * HOUR_US)

    for _ in range(59):
        assert time.passes(60.0) == time.wall_us - 6 * HOUR_US
    assert time.passes(60.0) == time.wall_us
