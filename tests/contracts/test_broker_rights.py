"""No up-calls: what a cell's user may say and hear is decided by the broker, and it is no more than a cell needs."""

import pytest

from bus.broker import AccessRefused, Parcel, Receipt
from bus.topology import (
    API,
    DEAD,
    DEAD_QUEUE,
    EVENTS,
    PLACEMENT,
    REPLY,
    RETRY,
    Binding,
    Exchange,
    Objects,
    Queue,
    QueueKind,
    answers_queue,
    objects_of,
    user_of,
)
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.small_world import connected, drain, publish, receive, within_patience

pytestmark = pytest.mark.asyncio

CELLS = ("c1", "c2")
CELL_USER = user_of("cell", "c1")
PLACEMENT_USER = user_of("placement")
OWN_WORK = "conductor.c1.work"
OWN_ANSWERS = answers_queue(CELL_USER, "p1")


async def prepare(under_test: BrokerUnderTest, *users: str) -> None:
    async with connected(under_test.broker(), objects_of(CELLS)):
        for user in users:
            await under_test.add_user(user, CELLS)


@pytest.mark.parametrize(
    ("exchange", "routing_key"),
    [
        (API, "build.request"),
        ("", "scheduler.requests"),
        ("", OWN_WORK),
        (PLACEMENT, "reshape"),
        (PLACEMENT, "provider.create"),
        (PLACEMENT, "allocations.set"),
        (PLACEMENT, "holders.query"),
        (PLACEMENT, "claim.c1"),
        (PLACEMENT, "swap.c2"),
        (PLACEMENT, "release.c2"),
        (PLACEMENT, "inventory.report.c2"),
        (PLACEMENT, "swap.c1.c2"),
        ("moor.cell.c2", "spawned.c2"),
        ("moor.cell.c1", "spawned.c2"),
        (EVENTS, "instance.active.c2"),
        (EVENTS, "providers.changed"),
        (REPLY, OWN_ANSWERS.name),
        (RETRY, "scheduler.requests"),
        ("moor.retry.c2", "conductor.c2.work"),
        (RETRY, OWN_WORK),
        (DEAD, "placement.work"),
    ],
)
async def test_a_cell_may_not_say(under_test: BrokerUnderTest, exchange: str, routing_key: str) -> None:
    await prepare(under_test, CELL_USER)
    async with connected(under_test.broker(CELL_USER)) as connection:
        publishing = await connection.open_publishing()
        with pytest.raises(AccessRefused):
            await within_patience(publishing.publish(Parcel(exchange, routing_key, b"{}")))

        # Its connection goes on.
        assert await publish(connection, Parcel(PLACEMENT, "swap.c1", b"{}")) == [Receipt.CONFIRMED]


async def test_a_cell_may_say_what_it_needs_to(under_test: BrokerUnderTest) -> None:
    await prepare(under_test, CELL_USER)
    needed = [
        (PLACEMENT, "swap.c1"),
        (PLACEMENT, "release.c1"),
        (PLACEMENT, "inventory.report.c1"),
        ("moor.cell.c1", "spawned.c1"),
        ("moor.cell.c1", "spawned.c1"),
        ("moor.cell.c1", "spawned.c1"),
        ("moor.cell.c1", "spawn.failed.c1"),
        ("moor.retry.c1", OWN_WORK),
        ("moor.retry.c1", "compute.c1.work"),
        (DEAD, OWN_WORK),
        (DEAD, "compute.c1.work"),
    ]
    async with connected(under_test.broker(CELL_USER)) as connection:
        receipts = await publish(
            connection, *(Parcel(exchange, key, b"{}", mandatory=True) for exchange, key in needed)
        )
        events = [Parcel(EVENTS, key, b"{}") for key in ("instance.active.c1", "host.state.c1")]
        receipts += await publish(connection, *events)

    assert receipts == [Receipt.CONFIRMED] * (len(needed) + len(events))


@pytest.mark.parametrize(
    "queue",
    ["scheduler.requests", "placement.work", "placement.questions", "conductor.c2.work", DEAD_QUEUE],
)
async def test_a_cell_may_not_read_what_is_not_its_own(under_test: BrokerUnderTest, queue: str) -> None:
    await prepare(under_test, CELL_USER)
    async with connected(under_test.broker(CELL_USER)) as connection:
        with pytest.raises(AccessRefused):
            await within_patience(connection.open_consuming(queue, prefetch=1))


@pytest.mark.parametrize(
    "objects",
    [
        Objects(queues=(Queue("scheduler.requests", QueueKind.WORK),)),
        Objects(queues=(Queue("a.queue.of.its.own", QueueKind.FEED),)),
        Objects(queues=(answers_queue(user_of("cell", "c2"), "p1"),)),
        Objects(queues=(Queue(OWN_ANSWERS.name, QueueKind.ANSWERS, (Binding(EVENTS, "#"),)),)),
        Objects(queues=(Queue(OWN_ANSWERS.name, QueueKind.ANSWERS, (Binding(API, "build.request"),)),)),
        Objects(queues=(Queue(OWN_ANSWERS.name, QueueKind.ANSWERS, (Binding(REPLY, "#"),)),)),
        Objects(
            queues=(
                Queue(OWN_ANSWERS.name, QueueKind.ANSWERS, (Binding(REPLY, "answers.moor-scheduler.1"),)),
            )
        ),
        Objects(exchanges=(Exchange("moor.mine"),)),
        Objects(exchanges=(Exchange(API),)),
    ],
    ids=[
        "the scheduler's queue",
        "a queue by another name",
        "another cell's answers",
        "its answers bound to events",
        "its answers bound to requests",
        "its answers bound to all answers",
        "its answers bound to another's",
        "an exchange",
        "an exchange that stands",
    ],
)
async def test_a_cell_may_not_declare(under_test: BrokerUnderTest, objects: Objects) -> None:
    await prepare(under_test, CELL_USER)
    async with connected(under_test.broker(CELL_USER)) as connection:
        with pytest.raises(AccessRefused):
            await within_patience(connection.declare(objects))


async def test_a_cell_reads_its_own_work(under_test: BrokerUnderTest) -> None:
    await prepare(under_test, CELL_USER)
    async with connected(under_test.broker(CELL_USER)) as connection:
        await publish(connection, Parcel("moor.cell.c1", "spawned.c1", b"{}", mandatory=True))

        (delivery,) = await drain(connection, OWN_WORK, 1)

    assert delivery.sender == CELL_USER


async def test_a_cell_asks_and_is_answered_by_whom_it_asked(under_test: BrokerUnderTest) -> None:
    await prepare(under_test, CELL_USER, PLACEMENT_USER)
    async with (
        connected(under_test.broker(CELL_USER), Objects(queues=(OWN_ANSWERS,))) as cell,
        connected(under_test.broker(PLACEMENT_USER)) as placement,
    ):
        answers = await cell.open_consuming(OWN_ANSWERS.name, prefetch=1)
        questions = await placement.open_consuming("placement.questions", prefetch=1)
        asked = Parcel(PLACEMENT, "swap.c1", b"?", mandatory=True, reply_to=OWN_ANSWERS.name)
        assert await publish(cell, asked) == [Receipt.CONFIRMED]

        (question,) = await receive(questions, 1)
        answered = Parcel(REPLY, question.parcel.reply_to, b"!", mandatory=True)
        assert await publish(placement, answered) == [Receipt.CONFIRMED]
        (answer,) = await receive(answers, 1)

    assert (question.parcel.body, question.sender) == (b"?", CELL_USER)
    assert (answer.parcel.body, answer.sender) == (b"!", PLACEMENT_USER)


async def test_a_stranger_does_not_get_in(under_test: BrokerUnderTest) -> None:
    await prepare(under_test, CELL_USER)

    with pytest.raises(AccessRefused):
        await within_patience(under_test.broker("moor-cell-c9").connect())
