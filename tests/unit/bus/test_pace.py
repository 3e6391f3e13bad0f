"""When a worker begins a batch."""

import pytest

from bus.broker import Pace

GATHER_S = 0.06


def batches(
    arrivals: list[float], *, messages: int = 1, handled_s: float = 0.0, pace: Pace | None = None
) -> list[tuple[float, int, float]]:
    """When each batch begins, how many parcels it has, and how long the first of them waited. Each parcel has so many messages."""
    pace = pace or Pace()
    begun: list[tuple[float, int, float]] = []
    taken, noted, now_s = 0, 0, 0.0

    def arrived(until_s: float) -> None:
        nonlocal noted
        while noted < len(arrivals) and arrivals[noted] <= until_s:
            pace.arrived(arrivals[noted])
            noted += 1

    while taken < len(arrivals):
        now_s = max(now_s, arrivals[taken])
        arrived(now_s)
        while wait_s := pace.wait_s(now_s, (noted - taken) * messages, GATHER_S):
            now_s += wait_s
            arrived(now_s)
        pace.begun(now_s)
        begun.append((now_s, noted - taken, now_s - arrivals[taken]))
        taken = noted
        now_s += handled_s
    return begun


def evenly(rate: float, seconds: float, begin_s: float = 0.0) -> list[float]:
    return [begin_s + number / rate for number in range(int(rate * seconds))]


@pytest.mark.parametrize("rate", [100, 200, 500, 1000])
def test_while_parcels_keep_coming_batches_begin_at_equal_distances(rate: int) -> None:
    later = [each for each in batches(evenly(rate, 12)) if each[0] >= 2]
    assert len(later) == pytest.approx(10 / GATHER_S, rel=0.05)
    assert sum(count for _, count, _ in later) / len(later) == pytest.approx(rate * GATHER_S, rel=0.05)
    assert max(waited for *_, waited in later) <= GATHER_S + 1e-9


def asked(askers: int, seconds: float, *, handled_s: float = 0.001, pace: Pace) -> int:
    """How many questions are answered to so many askers. Each asks again when it has its answer."""
    now_s, answered = 0.0, 0
    while now_s < seconds:
        for _ in range(askers):
            pace.arrived(now_s)
        while wait_s := pace.wait_s(now_s, askers, GATHER_S):
            now_s += wait_s
        pace.begun(now_s)
        answered += askers
        now_s += handled_s
    return answered


@pytest.mark.parametrize("askers", [1, 3, 8])
def test_questions_that_wait_for_each_other_hardly_wait_for_the_worker(askers: int) -> None:
    at_once = askers * 10 / 0.001
    assert asked(askers, 10, pace=Pace()) > 0.9 * at_once
