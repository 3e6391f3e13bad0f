"""How long stages of boots took in the last minute and hour, from the heartbeats of all workers."""

from datetime import timedelta

import pytest
from msgspec import structs

from bus.messages.cloud import StageTimes, WorkerAlive
from kit.metrics import BUCKETS_S
from scheduler_worker.cells import GROWTH_MAX, HOUR, SLOT_S, WorkerRegistry
from tests.unit.scheduler.test_overview import DOWN_AFTER, NOON, Clock, a_beat


def a_conductor(*boots: int, worker: str = "conductor-1") -> WorkerAlive:
    beat = a_beat(worker, "conductor", "c1")
    return structs.replace(beat, told_at=NOON + timedelta(hours=1), stages={"boot": boots} if boots else {})


class Heard:
    def __init__(self) -> None:
        self.clock = Clock()
        self.workers = WorkerRegistry(DOWN_AFTER, self.clock)

    def after(self, seconds: float, *beats: WorkerAlive) -> None:
        self.clock.now += timedelta(seconds=seconds)
        for beat in beats:
            self.workers.hear(beat, "")

    def times(self) -> list[StageTimes]:
        return [*self.workers.stages.times()]

    def counts(self) -> list[tuple[str, int, int]]:
        return [(each.stage, each.minute.count, each.hour.count) for each in self.times()]


def test_what_a_heartbeat_has_more_than_the_last_one_happened_in_between() -> None:
    heard = Heard()
    heard.after(0, a_conductor(5, 1000))
    assert heard.counts() == []

    heard.after(5, a_conductor(5, 1010))
    assert heard.counts() == [("boot", 10, 10)]
    (boot,) = heard.times()
    assert (boot.minute.seconds, boot.minute.p50_s) == (5.0, 0.0075)


def test_workers_are_added_up_and_each_hears_of_stages_in_their_order() -> None:
    heard = Heard()
    scheduler = a_beat()
    heard.after(0, a_conductor(), a_conductor(worker="conductor-2"), scheduler)
    heard.after(
        5,
        a_conductor(97),
        a_conductor(0, 0, 0, 0, 0, 0, 3, worker="conductor-2"),
        structs.replace(scheduler, stages={"claim": (4,), "choose": (4,)}),
    )

    assert heard.counts() == [("choose", 4, 4), ("claim", 4, 4), ("boot", 100, 100)]
    boot = heard.times()[-1]
    assert boot.minute.p50_s < 0.005
    assert 0.25 < boot.hour.p99_s <= 0.5


def test_after_a_minute_and_an_hour_boots_are_no_longer_counted() -> None:
    heard = Heard()
    heard.after(0, a_conductor())
    heard.after(5, a_conductor(1))
    heard.after(60, a_conductor(3))
    assert heard.counts() == [("boot", 3, 3)]
    heard.after(SLOT_S)
    assert heard.counts() == [("boot", 2, 3)]
    assert heard.times()[0].minute.seconds == 65.0

    heard.after(3600 - 7 * SLOT_S)
    assert heard.counts() == [("boot", 0, 3)]
    heard.after(2 * SLOT_S)
    assert heard.counts() == [("boot", 0, 2)]
    heard.after(10 * HOUR * SLOT_S)
    assert heard.counts() == []


def test_a_worker_that_starts_anew_begins_at_zero() -> None:
    heard = Heard()
    heard.after(0, a_conductor())
    heard.after(5, a_conductor(10))
    again = structs.replace(a_conductor(4), started_at=heard.clock.now)
    heard.after(5, again)

    assert heard.counts() == [("boot", 14, 14)]


def test_a_worker_that_was_heard_too_late_counts_from_its_start_if_that_was_just_now() -> None:
    heard = Heard()
    new = structs.replace(a_conductor(10), told_at=NOON + timedelta(seconds=7))
    heard.after(5, new, a_conductor(10, worker="conductor-2"))

    assert heard.counts() == [("boot", 10, 10)]


def test_the_last_heartbeat_of_a_worker_that_ends_counts() -> None:
    heard = Heard()
    heard.after(0, a_conductor())
    heard.after(5, structs.replace(a_conductor(7), has_ended=True))

    assert heard.counts() == [("boot", 7, 7)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"boot": (1,)},
        {"boot": (2, 2**63 - 1)},
        {"boot": (2, GROWTH_MAX + 1)},
        {"boot": (2, *[1] * (len(BUCKETS_S) + 1))},
        {"choose": (1,)},
        {"launch": (1,)},
    ],
)
def test_odd_counts_of_a_worker_are_left_out(wrong: dict[str, tuple[int, ...]]) -> None:
    heard = Heard()
    heard.after(0, a_conductor(2))
    heard.after(5, structs.replace(a_conductor(), stages=wrong))

    assert heard.counts() == []


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    heard = Heard()
    heard.after(0, a_conductor())
    heard.after(100, a_conductor(1))
    heard.after(-3600, a_conductor(2))

    assert heard.counts() == [("boot", 2, 2)]
    assert heard.times()[0].minute.seconds == 0.0


def test_an_overview_has_no_stages_worker_by_worker() -> None:
    heard = Heard()
    heard.after(0, a_conductor(5))

    assert [each.beat.stages for each in heard.workers.everyone()] == [{}]
