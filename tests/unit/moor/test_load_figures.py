"""What a load run says of its stages, its memory and its course over time, and how it draws that."""

import os
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bus.messages.build import InstanceDetails, InstanceState
from bus.messages.cloud import WorkerAlive
from engine.flavors import InstanceId, RequestId
from laboratory.load.firing import EndedOrder
from laboratory.load.kernel import process_peak_mb, process_tree_mb
from laboratory.load.measuring import INTERVALS_MAX, LoadSample, WorkerStages, intervals_of, steps_of
from laboratory.load.orders import Booted
from laboratory.load.plot import as_svg
from laboratory.load.results import Audited, Latency, LoadResult, latency_of

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def beat(worker: str, role: str, **stages: tuple[int, ...]) -> WorkerAlive:
    return WorkerAlive(
        cell="c1", worker=worker, role=role, release="1", started_at=NOON, told_at=NOON, stages=stages
    )


def sample(at_s: float, **cpu_s: float) -> LoadSample:
    return LoadSample(at_s, cpu_s)


def test_stages_are_those_of_the_last_heartbeats_of_all_workers_together() -> None:
    told = WorkerStages()
    told.hear(beat("s-1", "scheduler", choose=(4,)))
    told.hear(beat("s-1", "scheduler", choose=(8,), claim=(0, 0, 5)))
    told.hear(beat("s-2", "scheduler", choose=(1, 1)))
    told.hear(beat("c-1", "conductor", place=(0, 10)))
    told.hear(beat("p-1", "placement", claim=(0, 0, 99)))

    stages = told.latencies()

    assert {name: each.count for name, each in stages.items()} == {"choose": 10, "claim": 5, "place": 10}
    assert stages["choose"].latency_ms.max == 10.0, "the end of the bucket from 5 to 10 ms"
    assert stages["place"].latency_ms.p50 == pytest.approx(7.5), "in the middle of it"


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


def a_result(samples: list[LoadSample], orders: list[EndedOrder]) -> LoadResult:
    latency = latency_of([each.ended_s - each.due_s for each in orders])
    return LoadResult(
        mode="real",
        cells=1,
        failing=0.0,
        workers={},
        active=1,
        in_error=0,
        by_alternate=0,
        processors=2,
        notes=(),
        audit=Audited(passed=True, problems=()),
        boots=len(orders),
        hosts=1,
        seconds=1.0,
        boots_per_s=1.0,
        latency_ms=latency,
        claims=1,
        conflicts=0,
        cpu_us_per_boot={"total": 3.0, **{f"worker-{number}": 1.0 for number in range(12)}},
        load_generator_us_per_boot=None,
        cpu_us_per_boot_by_tenth=(),
        flatness=1.0,
        share_of_machine=0.5,
        share_of_others=0.5,
        rate=100,
        arrivals="even",
        over_time=intervals_of(samples, orders, 0.0),
    )


def test_the_plot_names_its_lines_and_puts_all_of_them_on_the_page() -> None:
    spent = {f"worker-{number}": 0.0 for number in range(12)}
    samples = [LoadSample(float(at), dict.fromkeys(spent, at / 100)) for at in range(8)]
    orders = [
        EndedOrder(number / 10, number / 10 + 0.05 * (1 + number % 7), is_done=True) for number in range(60)
    ]

    drawn = as_svg(a_result(samples, orders))

    root = ET.fromstring(drawn)  # noqa: S314 - we have just written it
    texts = {"".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {
        "due",
        "ended",
        "p50",
        "p99.9",
        "worker-0",
        "others",
        "under way",
        "latency of orders, ms",
    } <= texts
    height = float(root.attrib["height"])
    width = float(root.attrib["width"])
    for kind in ("polyline", "polygon"):
        for line in root.iter(f"{{http://www.w3.org/2000/svg}}{kind}"):
            for point in line.attrib["points"].split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= width
                assert 0 <= y <= height


def test_a_run_that_is_too_short_for_an_interval_can_be_drawn() -> None:
    drawn = as_svg(a_result([LoadSample(0.0, {})], []))

    assert "latency of orders, ms" in drawn
    assert "nan" not in drawn


def test_latencies_of_nothing_are_zero() -> None:
    assert latency_of([]) == Latency(p50=0, p90=0, p99=0, p999=0, max=0)
