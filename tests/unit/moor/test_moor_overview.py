"""`moor status`: what is wrong with a cloud, what its operator should know, and how the screen looks."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs
from rich.console import Console

from bus.messages.cloud import (
    CellFill,
    CellState,
    ClassUse,
    Durations,
    HostCount,
    InstanceCount,
    Overview,
    StageTimes,
    WaitsForRoom,
    WorkerAlive,
    WorkerHeard,
)
from bus.topology import DEAD_QUEUE
from moor.overview.gathering import BrokerSeen, CloudView, notes_of, troubles_of
from moor.overview.status_command import (
    histogram,
    instances_in_words,
    main_uses,
    overview_in_words,
    worker_groups,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LONG_AGO = NOON - timedelta(hours=1)


def a_worker(
    worker: str, role: str, cell: str = "cell0", *, started_at: datetime = LONG_AGO, life: str = "up"
) -> WorkerHeard:
    beat = WorkerAlive(
        cell=cell, worker=worker, role=role, release="0.1.0", started_at=started_at, told_at=NOON
    )
    return WorkerHeard(beat=beat, heard_at=NOON, life="up" if life == "up" else "down")


def changed(worker: WorkerHeard, **fields: object) -> WorkerHeard:
    return structs.replace(worker, beat=structs.replace(worker.beat, **fields))


SCHEDULER = a_worker("scheduler-1", "scheduler")
PLACEMENT = a_worker("placement-1", "placement")
CONDUCTOR = a_worker("conductor-1", "conductor", "c1")
COMPUTE = a_worker("compute-1", "compute", "c1")
HEALTHY = Overview(
    made_at=NOON,
    scheduler="scheduler-1",
    cells=(CellState(cell="c1", life="up", heard_at=NOON, hosts=3, hosts_up=3, instances=5),),
    workers=(SCHEDULER, PLACEMENT, CONDUCTOR, COMPUTE),
    instances=(InstanceCount(state="active", cell="c1", count=5),),
    hosts=(HostCount(state="up", cell="c1", count=3),),
    uses=(ClassUse(resource_class="VCPU", cell="c1", used=24, capacity=48),),
    fill=(CellFill(cell="c1", hosts=(1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0)),),
)
BROKER = BrokerSeen("amqp://localhost/", {"scheduler.requests": 0, DEAD_QUEUE: 0})


def view(overview: Overview | None = HEALTHY, broker: BrokerSeen = BROKER, silent: str = "") -> CloudView:
    return CloudView(overview, silent, (broker,))


def with_workers(*workers: WorkerHeard) -> CloudView:
    return view(structs.replace(HEALTHY, workers=workers))


def test_a_healthy_cloud_has_neither_troubles_nor_notes() -> None:
    assert (troubles_of(view()), notes_of(view())) == ((), ())


@pytest.mark.parametrize(
    ("ill", "said"),
    [
        (view(None, silent="asked for 10 s"), "no scheduler answers: asked for 10 s"),
        (view(broker=BrokerSeen("amqp://b/", trouble="it is away")), "the broker amqp://b/: it is away"),
        (view(broker=BrokerSeen("amqp://b/", {"q": None})), "lacks the queue q"),
        (view(broker=BrokerSeen("amqp://b/", {DEAD_QUEUE: 3})), "dead letters: 3"),
        (
            view(
                structs.replace(
                    HEALTHY, cells=(structs.replace(HEALTHY.cells[0], life="down", reason="it is silent"),)
                )
            ),
            "cell c1 is down: it is silent",
        ),
        (
            with_workers(
                SCHEDULER, PLACEMENT, CONDUCTOR, a_worker("compute-1", "compute", "c1", life="down")
            ),
            "compute-1 of c1 was last heard at 2026-01-01 12:00:00 UTC",
        ),
        (
            with_workers(SCHEDULER, PLACEMENT, changed(CONDUCTOR, awaits="database: away"), COMPUTE),
            "conductor-1 of c1 is not ready: database: away",
        ),
        (
            with_workers(SCHEDULER, PLACEMENT, changed(CONDUCTOR, fails="sweep: away"), COMPUTE),
            "conductor-1 of c1: sweep: away",
        ),
        (
            with_workers(SCHEDULER, PLACEMENT, CONDUCTOR, COMPUTE, a_worker("compute-2", "compute", "c1")),
            "cell c1 has two computes, compute-1 and compute-2: ",
        ),
        (with_workers(SCHEDULER, CONDUCTOR, COMPUTE), "no placement worker runs"),
        (with_workers(SCHEDULER, PLACEMENT, COMPUTE), "no conductor of cell c1 runs"),
        (with_workers(SCHEDULER, PLACEMENT, CONDUCTOR), "no compute of cell c1 runs"),
        (
            structs.replace(view(), cells=("c1", "c2")),
            "cell c2 is configured, and no worker of it was ever heard",
        ),
        (
            structs.replace(view(structs.replace(HEALTHY, hosts=())), cells=("c1",)),
            "cell c1 is configured, and has no hosts",
        ),
        (
            view(broker=BrokerSeen("amqp://b/", unread=("scheduler.requests",))),
            "reads the queue scheduler.requests",
        ),
        (
            view(broker=BrokerSeen("amqp://b/", unread=("compute.c1.work",))),
            "reads the queue compute.c1.work",
        ),
        (
            view(structs.replace(HEALTHY, hosts=(HostCount(state="silent", cell="c1", count=2),))),
            "hosts of cell c1 that nobody has heard of late: 2",
        ),
    ],
)
def test_each_trouble_is_said(ill: CloudView, said: str) -> None:
    (trouble, *others) = [each for each in troubles_of(ill) if said in each]
    assert (said in trouble, others) == (True, [])


def test_a_compute_that_follows_a_killed_one_is_not_its_double() -> None:
    killed = changed(COMPUTE, told_at=NOON - timedelta(minutes=1), started_at=NOON - timedelta(hours=1))
    later = changed(a_worker("compute-2", "compute", "c1"), started_at=NOON - timedelta(seconds=59))

    assert troubles_of(with_workers(SCHEDULER, PLACEMENT, CONDUCTOR, killed, later)) == ()


def test_silent_hosts_are_said_once_and_silent_nodes_are_a_note() -> None:
    silent = tuple(HostCount(state="silent", cell="c1", kind=kind, count=2) for kind in ("", "ironic"))
    seen = view(structs.replace(HEALTHY, hosts=(*HEALTHY.hosts, *silent)))

    assert (len(troubles_of(seen)), notes_of(seen)) == (1, ("hosts silent: 2",))


def test_a_queue_whose_workers_are_away_or_not_ready_is_no_trouble_beside_theirs() -> None:
    unread = BrokerSeen("amqp://b/", unread=("conductor.c1.work", "ironic.c1.work"))
    away = structs.replace(HEALTHY, workers=(SCHEDULER, PLACEMENT, COMPUTE))
    waits = structs.replace(away, workers=(*away.workers, changed(CONDUCTOR, awaits="database: away")))

    assert troubles_of(view(away, unread)) == ("no conductor of cell c1 runs",)
    assert troubles_of(view(waits, unread)) == ("conductor-1 of c1 is not ready: database: away",)


def test_a_cell_of_nodes_alone_needs_no_compute() -> None:
    nodes = structs.replace(
        HEALTHY,
        workers=(SCHEDULER, PLACEMENT, CONDUCTOR),
        hosts=(HostCount(state="up", cell="c1", kind="ironic", count=3),),
    )

    assert troubles_of(structs.replace(view(nodes), cells=("c1",))) == ()


def test_a_scheduler_that_has_just_started_misses_nobody_yet() -> None:
    new = changed(SCHEDULER, started_at=NOON - timedelta(seconds=3))
    just_started = view(structs.replace(HEALTHY, workers=(new,)))

    assert troubles_of(just_started) == ()
    assert notes_of(just_started) == ("scheduler-1 has just started, and may not have heard all workers yet",)


def test_notes_say_what_is_no_fault_of_the_cloud() -> None:
    overview = structs.replace(
        HEALTHY,
        hosts=(*HEALTHY.hosts, HostCount(state="draining", cell="c1", count=2)),
        waiting=WaitsForRoom(count=4, oldest=LONG_AGO),
        workers=(*HEALTHY.workers, changed(a_worker("scheduler-2", "scheduler"), release="0.2.0")),
        cells=(structs.replace(HEALTHY.cells[0], waiting=7),),
    )

    assert notes_of(view(overview)) == (
        "hosts draining: 2",
        "waiting for room: 4, the first since 2026-01-01 11:00:00 UTC",
        "cell c1 has not answered 7 orders yet",
        "workers run several releases: 0.1.0, 0.2.0",
    )


def screen_of(seen: CloudView, width: int = 80) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(overview_in_words(seen))
    return captured.get()


def test_the_screen_says_first_whether_all_is_well_and_fits_80_columns() -> None:
    large = structs.replace(
        HEALTHY,
        cells=tuple(
            CellState(
                cell=f"cell-number-{number}", life="up", hosts=10_000, hosts_up=10_000, instances=100_000
            )
            for number in (1, 2)
        ),
        uses=(ClassUse(resource_class="MEMORY_MB", cell="c1", used=5_000_000_000, capacity=6_000_000_000),),
        instances=tuple(
            InstanceCount(state=state, cell="c1", count=100_000) for state in ("active", "error", "building")
        ),
    )
    workers = [
        a_worker(f"{role}-{cell}", role, cell)
        for cell in ("cell-number-1", "cell-number-2")
        for role in ("conductor", "compute")
    ]
    large = structs.replace(large, workers=(SCHEDULER, PLACEMENT, *workers), hosts=())
    lines = screen_of(view(large)).splitlines()

    assert lines[0] == "Moorage  healthy"
    assert max(map(len, lines)) <= 80
    assert any("10,000 of 10,000" in line for line in lines)
    assert any("5,000,000,000 of 6,000,000,000" in line for line in lines)
    assert any("300,000 instances" in line for line in lines)


def test_stages_show_the_last_minute_only_if_something_happened_in_it() -> None:
    hour = Durations(seconds=3600, count=12_000_000, p50_s=0.0201, p99_s=61.04)
    busy = StageTimes(
        stage="boot", minute=Durations(seconds=60, count=600_000, p50_s=0.002, p99_s=1800), hour=hour
    )
    quiet = structs.replace(busy, minute=Durations(seconds=60))

    (heading, row) = stage_lines(busy)
    assert max(map(len, (heading, row))) <= 80
    assert heading.split("  ")[0] == "stage"
    assert cells_of(row) == [
        *("boot", "10,000.0", "< 5 ms", "> 1800 s"),
        *("12,000,000", "20 ms", "61.0 s"),
    ]
    assert cells_of(stage_lines(quiet)[1]) == [
        *("boot", "12,000,000", "20 ms", "61.0 s"),
    ]


def cells_of(line: str) -> list[str]:
    return [each.strip() for each in line.split("  ") if each.strip()]


def stage_lines(stage: StageTimes) -> list[str]:
    lines = screen_of(view(structs.replace(HEALTHY, stages=(stage,)))).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("stage"))
    return lines[at : at + 2]


def test_the_screen_lists_troubles_before_everything_else() -> None:
    lines = screen_of(with_workers(SCHEDULER, CONDUCTOR, COMPUTE)).splitlines()

    assert lines[:2] == ["Moorage  1 trouble", "✗ no placement worker runs"]


def test_without_an_answer_the_screen_still_shows_the_queues() -> None:
    seen = view(None, BrokerSeen("amqp://b/", {"scheduler.requests": 12}), silent="asked for 1 s")

    assert "scheduler.requests  12" in screen_of(seen)


@pytest.mark.parametrize(
    ("age_s", "said"), [(0.0, ""), (2.0, ""), (7.4, "   (7 s ago, at 2026-01-01 12:00:00 UTC)")]
)
def test_counts_that_are_old_say_how_old(age_s: float, said: str) -> None:
    shown = instances_in_words(structs.replace(HEALTHY, age_s=age_s))

    assert shown.plain == "5 instances   5 active" + said


def test_bars_show_few_hosts_as_something() -> None:
    fill = CellFill(cell="c1", hosts=(1000, 0, 0, 0, 0, 1, 0, 0, 0, 0, 500))

    assert histogram(fill) == "█    ▂    ▅"


def test_only_classes_that_matter_are_named() -> None:
    def use(name: str, used: int) -> ClassUse:
        return ClassUse(resource_class=name, cell="c1", used=used, capacity=100)

    named = main_uses([use("CUSTOM_FULL", 95), use("CUSTOM_FREE", 5), use("DISK_GB", 0), use("VCPU", 1)])

    assert [each.resource_class for each in named] == ["VCPU", "DISK_GB", "CUSTOM_FULL"]


def test_workers_are_shown_by_role_cell_and_release() -> None:
    groups = worker_groups(
        (SCHEDULER, changed(a_worker("scheduler-2", "scheduler"), awaits="hosts"), COMPUTE)
    )

    assert [(each.role, each.cell, len(each.workers), each.ready) for each in groups] == [
        ("compute", "c1", 1, 1),
        ("scheduler", "cell0", 2, 1),
    ]
