"""`moor status`: what is wrong with a cloud, what its operator should know, and how the screen looks."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from bus.messages.cloud import (
    CellFill,
    CellState,
    ClassUse,
    HostCount,
    InstanceCount,
    Overview,
    WorkerAlive,
    WorkerHeard,
)
from bus.topology import DEAD_QUEUE
from moor.overview.gathering import BrokerSeen, CloudView, troubles_of

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
