"""When the orders of `moor load --rate` are due, what their latencies count from, and how percentiles are made."""

from itertools import pairwise
from uuid import UUID

import pytest

from bus.messages.build import InstanceActive, InstanceState
from engine.flavors import InstanceId, RequestId
from laboratory.load.firing import due_by, due_times_s
from laboratory.load.orders import FLAVOR, OrderRun
from laboratory.load.results import LATE_MS_MAX, Latency, is_late, latency_of


class HandClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def boots_at(rate: float, count: int, clock: HandClock) -> OrderRun:
    due_s = due_times_s("even", rate, count)
    return OrderRun(["boot"] * count, FLAVOR, due_s=due_s, clock=clock)


def end_all(run: OrderRun, orders: list[InstanceId]) -> None:
    for id_ in orders:
        state = InstanceState(
            id=id_, request_id=RequestId(UUID(int=1)), sequence=1, state="active", cell="c1"
        )
        run.hear(InstanceActive(cell="c1", instance=state))


def send_due(run: OrderRun) -> list[InstanceId]:
    """Begin what is due. Returns the instances."""
    known = {*run.instances}
    run.next_orders(run.room(10))
    return [id_ for id_ in run.instances if id_ not in known]


def test_even_orders_are_due_at_equal_distances() -> None:
    assert [*due_times_s("even", 4, 5)] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_orders_have_the_rate_and_the_spread_of_independent_clients_and_are_repeatable() -> None:
    due_s = due_times_s("poisson", 200, 20_000)
    gaps = [after - before for before, after in pairwise(due_s)]
    mean_s = sum(gaps) / len(gaps)
    spread_s = (sum((gap - mean_s) ** 2 for gap in gaps) / len(gaps)) ** 0.5

    assert mean_s == pytest.approx(1 / 200, rel=0.03)
    assert spread_s == pytest.approx(mean_s, rel=0.03), "as exponential distances have it"
    assert due_s == due_times_s("poisson", 200, 20_000)


def test_an_order_is_due_at_its_time_and_not_before() -> None:
    due_s = due_times_s("even", 10, 100)

    assert [due_by(due_s, at_s) for at_s in (-1.0, 0.0, 0.05, 0.1, 100.0)] == [0, 1, 1, 2, 100]


def test_percentiles_are_those_of_the_sorted_latencies() -> None:
    assert latency_of([number / 1000 for number in range(1000, 0, -1)]) == Latency(
        p50=501.0, p90=901.0, p99=991.0, p999=1000.0, max=1000.0
    )
    assert latency_of([]) == Latency(p50=0, p90=0, p99=0, p999=0, max=0)


def test_a_stalled_cloud_shows_in_the_percentiles_although_nothing_could_be_sent_meanwhile() -> None:
    """Coordinated omission: the generator is held up with the cloud. From the real sending on, every answer came at once."""
    clock = HandClock()
    run = boots_at(rate=128, count=256, clock=clock)

    for tick in range(128):
        clock.now_s = 100.0 + tick / 128
        end_all(run, send_due(run))
    assert latency_of(run.latencies_s).max == 0.0, "each was answered at once"
    # For a second nothing goes on, here neither. From then on everything is answered at once again.
    clock.now_s = 102.0
    end_all(run, send_due(run))

    assert run.ended == 256
    told = latency_of(run.latencies_s)
    assert (told.p50, told.p90, told.p99, told.max) == (7.8125, 804.6875, 984.375, 1000.0)


def test_at_a_rate_nothing_waits_for_what_is_under_way() -> None:
    clock = HandClock()
    run = boots_at(rate=100, count=50, clock=clock)

    clock.now_s += 1.0

    assert run.room(in_flight=1) == 50


def test_without_a_rate_so_many_are_begun_as_may_be_under_way() -> None:
    run = OrderRun(["boot"] * 5, FLAVOR)

    assert run.room(in_flight=2) == 2
    run.next_orders(2)
    assert (run.room(in_flight=2), run.next_in_s()) == (0, None)


def test_the_next_order_is_waited_for_and_one_that_is_late_is_not() -> None:
    clock = HandClock()
    run = boots_at(rate=10, count=3, clock=clock)

    clock.now_s += 0.15

    assert run.next_in_s() == pytest.approx(0.05), "two are due and were not begun; the third is next"
    clock.now_s += 10
    assert run.next_in_s() is None


def test_a_generator_that_is_late_says_how_late_and_marks_the_run() -> None:
    clock = HandClock()
    run = boots_at(rate=10, count=100, clock=clock)

    clock.now_s += 9.9
    run.next_orders(run.room(0))

    late_ms = latency_of(run.late_s)
    assert is_late(late_ms)
    assert late_ms.max == pytest.approx(9900.0)
    assert not is_late(latency_of([LATE_MS_MAX / 2000] * 100))
