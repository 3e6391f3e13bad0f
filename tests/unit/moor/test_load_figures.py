"""What a load run says of the steps of boots, its memory and its course over time."""

import os
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bus.messages.build import InstanceDetails, InstanceState
from engine.flavors import InstanceId, RequestId
from laboratory.load.firing import EndedOrder
from laboratory.load.kernel import process_peak_mb, process_tree_mb
from laboratory.load.measuring import INTERVALS_MAX, LoadSample, intervals_of, steps_of
from laboratory.load.orders import Booted
from laboratory.load.results import Latency, latency_of

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def sample(at_s: float, **cpu_s: float) -> LoadSample:
    return LoadSample(at_s, cpu_s)


def test_steps_of_a_boot_lie_between_the_moments_of_its_row_and_its_events() -> None:
    def booted(number: int, state: str = "active") -> Booted:
        ended = InstanceState(
            id=InstanceId(UUID(int=number)),
            request_id=RequestId(UUID(int=1)),
            sequence=1,
            state=state,
            changed_at=NOON + timedelta(milliseconds=400),
        )
        return Booted(ended, due_s=10.0, heard_s=10.5)

    rows = {
        InstanceId(UUID(int=number)): InstanceDetails(
            id=InstanceId(UUID(int=number)),
            accepted_at=NOON + timedelta(milliseconds=100),
            placed_at=NOON + timedelta(milliseconds=250),
        )
        for number in (1, 2)
    }

    steps = steps_of([booted(1), booted(2, "error"), booted(3)], rows, NOON.timestamp() - 10.0)

    assert {name: round(each.p50) for name, each in steps.items()} == {
        "accepted": 100,
        "placed": 150,
        "active": 150,
        "heard": 100,
    }


def test_an_interval_has_the_orders_that_became_due_and_that_ended_in_it_and_their_cost() -> None:
    samples = [
        sample(10.0, database=1.0, scheduler=2.0),
        sample(11.0, database=1.5, scheduler=3.0),
        sample(12.0, database=1.5, scheduler=3.0),
    ]
    orders = [
        EndedOrder(10.0, 10.5, is_done=True),
        EndedOrder(10.2, 10.9, is_done=False),
        EndedOrder(10.8, 12.5, is_done=True),
    ]

    first, second = intervals_of(samples, orders, began_s=10.0)

    assert (first.due_per_s, first.ended_per_s, first.under_way) == (3.0, 2.0, 1)
    assert first.latency_ms.max == 500.0, "that of the one which succeeded"
    assert first.cpu_us_each == {"total": 750_000.0, "database": 250_000.0, "scheduler": 500_000.0}
    assert (second.ended_per_s, second.under_way, second.cpu_us_each) == (0.0, 1, {})
    assert (first.at_s, second.at_s) == (1.0, 2.0)


def test_a_long_run_has_longer_intervals_and_loses_none_of_it() -> None:
    samples = [sample(float(number), all=float(number)) for number in range(1001)]
    orders = [EndedOrder(number + 0.1, number + 0.2, is_done=True) for number in range(1000)]

    intervals = intervals_of(samples, orders, began_s=0.0)

    assert len(intervals) <= INTERVALS_MAX
    assert sum(each.seconds for each in intervals) == 1000
    assert sum(each.ended_per_s * each.seconds for each in intervals) == pytest.approx(1000)


def test_a_short_rest_at_the_end_is_part_of_the_interval_before() -> None:
    samples = [sample(at_s, all=at_s) for at_s in (0.0, 1.0, 2.0, 2.1)]

    intervals = intervals_of(samples, [EndedOrder(0.5, 2.05, is_done=True)], began_s=0.0)

    assert [each.at_s for each in intervals] == [1.0, 2.1]
    assert intervals[-1].ended_per_s * intervals[-1].seconds == pytest.approx(1)


def test_memory_is_that_of_this_process_and_pages_shared_in_a_tree_count_once() -> None:
    assert process_peak_mb(os.getpid()) > 10
    assert process_tree_mb(os.getpid()) > 10
    assert process_peak_mb(2**22 + 1) == process_tree_mb(2**22 + 1) == 0.0, "such a process has ended"


def test_latencies_of_nothing_are_zero() -> None:
    assert latency_of([]) == Latency(p50=0, p90=0, p99=0, p999=0, max=0)
