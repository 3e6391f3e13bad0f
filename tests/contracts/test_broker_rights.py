"""Contract of rights: the broker decides what each user may publish and read. It is no more than the user needs."""

from collections.abc import Awaitable

import pytest

from bus.broker import Receipt
from bus.message import Parcel
from bus.topology import (
    API,
    DEAD,
    DEAD_QUEUE,
    EVENTS,
    FEED,
    PLACEMENT,
    REPLY,
    Binding,
    Exchange,
    Objects,
    Queue,
    QueueKind,
    answers_queue,
    application_queue,
    objects_of,
    objects_of_application,
    user_of,
)
from kit.errors import AccessRefused
from tests.contracts.broker_under_test import ADMIN, BANK, SHOP, BrokerUnderTest
from tests.contracts.small_world import connected, drain, publish, receive, within_patience

CELLS = ("c1", "c2")
CONDUCTOR, COMPUTE = user_of("conductor", "c1"), user_of("compute", "c1")
SCHEDULER, PLACEMENT_USER, IRONIC = user_of("scheduler"), user_of("placement"), user_of("ironic")
OWN_WORK = "conductor.c1.work"
OWN_ANSWERS = answers_queue(CONDUCTOR, "p1")

# What no user of a cell may publish.
OUT_OF_A_CELL = (
    (API, "build.request.-"),
    (API, "swap.c1"),
    ("", "scheduler.requests"),
    ("", OWN_WORK),
    (PLACEMENT, ""),
    (PLACEMENT, "reshape"),
    (PLACEMENT, "provider.create"),
    (PLACEMENT, "allocations.set"),
    (PLACEMENT, "holders.query"),
    (PLACEMENT, "claim.c2"),
    (PLACEMENT, "claims"),
    (PLACEMENT, "swap.c2"),
    (PLACEMENT, "release.c2"),
    (PLACEMENT, "inventory.report.c2"),
    (PLACEMENT, "swap.c1.c2"),
    ("moor.cell.c2", "spawned.c2"),
    ("moor.cell.c1", "spawned.c2"),
    ("moor.cell.c1", "place.c1"),
    (EVENTS, "instance.active.c2"),
    (EVENTS, "providers.changed"),
    (FEED, "shop"),
    (REPLY, OWN_ANSWERS.name),
    ("moor.retry.scheduler", "scheduler.requests"),
    ("moor.retry.conductor.c2", "conductor.c2.work"),
    ("moor.retry.placement", OWN_WORK),
    (DEAD, "placement.work"),
)
MAY_NOT_SAY = {
    CONDUCTOR: (
        *OUT_OF_A_CELL,
        (PLACEMENT, "inventory.report.c1"),
        ("moor.cell.c1", "spawned.c1"),
        (EVENTS, "host.state.c1"),
        ("moor.retry.compute.c1", "compute.c1.work"),
        (DEAD, "compute.c1.work"),
    ),
    COMPUTE: (
        *OUT_OF_A_CELL,
        (PLACEMENT, "swap.c1"),
        (PLACEMENT, "release.c1"),
        (PLACEMENT, "claim.c1"),
        ("moor.cell.c1", "spawn.c1"),
        (EVENTS, "instance.active.c1"),
        ("moor.retry.conductor.c1", OWN_WORK),
        (DEAD, OWN_WORK),
    ),
    IRONIC: (
        (API, "build.request.-"),
        (PLACEMENT, "claim.c1"),
        (PLACEMENT, "swap.c1"),
        (PLACEMENT, "release.c1"),
        (PLACEMENT, "reshape"),
        (EVENTS, "instance.active.c1"),
        (REPLY, OWN_ANSWERS.name),
        ("moor.retry.placement", "placement.work"),
        ("moor.retry.scheduler", "scheduler.events"),
        ("ironic", "ironic_versioned_notifications.info"),
        (DEAD, "placement.work"),
    ),
    PLACEMENT_USER: (
        (API, "build.request.-"),
        (PLACEMENT, "claim.c1"),
        (EVENTS, "instance.active.c1"),
        ("moor.cell.c1", "place.c1"),
        ("moor.retry.scheduler", "scheduler.requests"),
    ),
    SCHEDULER: (
        (API, "build.request.-"),
        (PLACEMENT, "swap.c1"),
        (PLACEMENT, "inventory.report.c1"),
        (PLACEMENT, "reshape"),
        (EVENTS, "providers.changed"),
        ("moor.cell.c1", "spawned.c1"),
        ("moor.retry.placement", "placement.claims"),
    ),
    SHOP.user: (
        (API, "build.request.-"),
        (API, "build.request.bank"),
        (API, "instance.delete.bank"),
        (API, "instance.rebuild.bank"),
        (API, "instance.query.bank"),
        (API, "instance.query.-"),
        (API, "move.request.bank"),
        (API, "group.create.bank"),
        (API, "build.request.shop.bank"),
        (API, "host.set"),
        (API, "host.query"),
        (API, "aggregate.set"),
        (API, "application.set"),
        (PLACEMENT, "usages.query.bank"),
        (PLACEMENT, "snapshot"),
        (PLACEMENT, "holders.query"),
        (PLACEMENT, "consumer.query"),
        (PLACEMENT, "candidates"),
        (PLACEMENT, "release.c1"),
        (PLACEMENT, "claim.c1"),
        (EVENTS, "instance.active.c1"),
        (FEED, "shop"),
        (REPLY, "answers.moor-scheduler.p1"),
        (REPLY, f"answers.{SHOP.user}.p1"),
        ("moor.retry.scheduler", "scheduler.requests"),
        (DEAD, "scheduler.requests"),
        ("", "scheduler.requests"),
    ),
    ADMIN.user: (
        (API, "host.set"),
        (API, "application.set"),
        (PLACEMENT, "snapshot"),
        (PLACEMENT, "reshape"),
        (PLACEMENT, "release.c1"),
        (EVENTS, "instance.active.c1"),
        (REPLY, f"answers.{ADMIN.user}.p1"),
    ),
}
MAY_SAY = {
    CONDUCTOR: (
        (PLACEMENT, "swap.c1"),
        (PLACEMENT, "claim.c1"),
        (PLACEMENT, "release.c1"),
        ("moor.cell.c1", "spawn.c1"),
        ("moor.cell.c1", "destroy.c1"),
        ("moor.cell.c1", "deploy.c1"),
        ("moor.cell.c1", "undeploy.c1"),
        ("moor.cell.c1", "redeploy.c1"),
        (EVENTS, "instance.active.c1"),
        ("moor.retry.conductor.c1", OWN_WORK),
        (DEAD, OWN_WORK),
    ),
    COMPUTE: (
        (PLACEMENT, "inventory.report.c1"),
        ("moor.cell.c1", "spawned.c1"),
        ("moor.cell.c1", "spawn.failed.c1"),
        ("moor.cell.c1", "destroyed.c1"),
        (EVENTS, "host.state.c1"),
        ("moor.retry.compute.c1", "compute.c1.work"),
        (DEAD, "compute.c1.work"),
    ),
    IRONIC: (
        (PLACEMENT, "inventory.report.c1"),
        ("moor.cell.c1", "spawned.c1"),
        ("moor.cell.c1", "spawn.failed.c1"),
        ("moor.cell.c1", "destroyed.c1"),
        ("moor.cell.c1", "deploy.progress.c1"),
        ("moor.cell.c1", "redeployed.c1"),
        (EVENTS, "host.state.c1"),
        (EVENTS, "host.beat.c1"),
        (DEAD, "ironic.events"),
        ("moor.retry.ironic.c1", "ironic.c1.work"),
        (DEAD, "ironic.c1.work"),
    ),
    PLACEMENT_USER: (
        (EVENTS, "providers.changed"),
        (EVENTS, "inventory.refused.c1"),
        (REPLY, "answers.moor-scheduler.p1"),
        ("moor.retry.placement", "placement.claims"),
        (DEAD, "placement.work"),
    ),
    SCHEDULER: (
        (PLACEMENT, "claim.c1"),
        (PLACEMENT, "release.cell0"),
        (PLACEMENT, "aggregates.set"),
        ("moor.cell.c1", "place.c1"),
        ("moor.cell.c1", "rebuild.c1"),
        (EVENTS, "instance.placed.c1"),
        (FEED, "shop"),
        (REPLY, "answers.moor-app-shop.p1"),
    ),
    SHOP.user: (
        (API, "build.request.shop"),
        (API, "move.request.shop"),
        (API, "instance.delete.shop"),
        (API, "instance.rebuild.shop"),
        (API, "instance.query.shop"),
        (API, "group.create.shop"),
        (PLACEMENT, "usages.query.shop"),
    ),
    ADMIN.user: (
        (API, "build.request.-"),
        (API, "build.request.bank"),
        (API, "instance.query.-"),
        (API, "host.query"),
        (API, "aggregate.set"),
        (PLACEMENT, "usages.query.bank"),
        (PLACEMENT, "candidates"),
    ),
}


async def prepare(under_test: BrokerUnderTest, *users: str) -> None:
    await under_test.declare(objects_of(CELLS))
    await under_test.add_users(users, CELLS)


async def is_refused(attempt: Awaitable[object]) -> bool:
    try:
        await attempt
    except AccessRefused:
        return True
    return False


@pytest.mark.parametrize("user", MAY_NOT_SAY)
async def test_a_user_may_not_say_what_is_not_its_own(under_test: BrokerUnderTest, user: str) -> None:
    await prepare(under_test, user)
    async with connected(under_test.broker(user)) as connection:
        for exchange, key in MAY_NOT_SAY[user]:
            publishing = await connection.open_publishing()
            said = within_patience(publishing.publish(Parcel(exchange, key, b"{}")))
            assert await is_refused(said), f"{user} may say {key} on {exchange!r}"

        # Its connection still works.
        exchange, key = MAY_SAY[user][0]
        assert await publish(connection, Parcel(exchange, key, b"{}")) == [Receipt.CONFIRMED]


@pytest.mark.parametrize("user", MAY_SAY)
async def test_a_user_may_say_what_it_needs_to(under_test: BrokerUnderTest, user: str) -> None:
    await prepare(under_test, user)
    async with connected(under_test.broker(user)) as connection:
        receipts = await publish(
            connection, *(Parcel(exchange, key, b"{}") for exchange, key in MAY_SAY[user])
        )

    assert receipts == [Receipt.CONFIRMED] * len(MAY_SAY[user])


@pytest.mark.parametrize(
    "queue",
    [
        "scheduler.requests",
        "placement.work",
        "placement.claims",
        "conductor.c2.work",
        "compute.c1.work",
        DEAD_QUEUE,
    ],
)
@pytest.mark.parametrize("user", [CONDUCTOR, SHOP.user])
async def test_a_user_may_not_read_what_is_not_its_own(
    under_test: BrokerUnderTest, user: str, queue: str
) -> None:
    await prepare(under_test, user)
    async with connected(under_test.broker(user)) as connection:
        with pytest.raises(AccessRefused):
            await within_patience(connection.open_consuming(queue, prefetch=1))


async def test_only_an_application_publishes_on_its_exchange_and_only_schedulers_read_its_queue(
    under_test: BrokerUnderTest,
) -> None:
    queue = application_queue("scheduler.requests", SHOP.name)
    await prepare(under_test, SHOP.user, BANK.user, SCHEDULER)
    await under_test.declare(objects_of_application(SHOP))

    async with connected(under_test.broker(SHOP.user)) as connection:
        orders = [Parcel(SHOP.exchange, f"{key}.shop", b"{}") for key in ("build.request", "instance.delete")]
        assert await publish(connection, *orders) == [Receipt.CONFIRMED] * 2
    for user, key in (
        *(
            (SHOP.user, key)
            for key in ("build.request.bank", "host.set", "instance.query.bank", "host.query", queue)
        ),
        *((BANK.user, key) for key in ("build.request.shop", "build.request.bank")),
        (SCHEDULER, "build.request.shop"),
    ):
        async with connected(under_test.broker(user)) as connection:
            publishing = await connection.open_publishing()
            order = Parcel(SHOP.exchange, key, b"{}")
            assert await is_refused(within_patience(publishing.publish(order))), (user, key)
    for user in (SHOP.user, BANK.user):
        async with connected(under_test.broker(user)) as connection:
            assert await is_refused(within_patience(connection.open_consuming(queue, prefetch=1)))
    async with connected(under_test.broker(SCHEDULER)) as connection:
        back = Parcel("moor.retry.scheduler", queue, b"{}", mandatory=True)
        assert await publish(connection, back) == [Receipt.CONFIRMED]
        assert len(await drain(connection, queue, 3)) == 3


async def test_an_application_hears_its_own_projects_and_nothing_else(under_test: BrokerUnderTest) -> None:
    await prepare(under_test, SHOP.user, SCHEDULER)
    name = f"feed.{SHOP.user}.p1"
    refused = [
        *(
            Binding(EVENTS, "instance.#"),
            Binding(EVENTS, "providers.changed"),
            Binding(API, "build.request.shop"),
        ),
        *(
            Binding(FEED, "bank"),
            Binding(FEED, "#"),
            Binding(FEED, "*"),
            Binding(REPLY, "answers.moor-scheduler.p1"),
        ),
    ]
    async with (
        connected(under_test.broker(SHOP.user)) as shop,
        connected(under_test.broker(SCHEDULER)) as scheduler,
    ):
        for binding in refused:
            declared = within_patience(
                shop.declare(Objects(queues=(Queue(name, QueueKind.FEED, (binding,)),)))
            )
            assert await is_refused(declared), f"an application binds {binding}"
        await shop.declare(Objects(queues=(Queue(name, QueueKind.FEED, (Binding(FEED, "shop"),)),)))
        heard = await shop.open_consuming(name, prefetch=10)
        await publish(scheduler, Parcel(FEED, "bank", b"theirs"), Parcel(FEED, "shop", b"ours"))

        assert [each.parcel.body for each in await receive(heard, 1)] == [b"ours"]


@pytest.mark.parametrize(
    "objects",
    [
        Objects(queues=(Queue("scheduler.requests", QueueKind.WORK),)),
        Objects(queues=(Queue("a.queue.of.its.own", QueueKind.QUESTIONS),)),
        Objects(queues=(answers_queue(user_of("conductor", "c2"), "p1"),)),
        Objects(queues=(Queue(OWN_ANSWERS.name, QueueKind.ANSWERS, (Binding(EVENTS, "#"),)),)),
        Objects(queues=(Queue(OWN_ANSWERS.name, QueueKind.ANSWERS, (Binding(API, "build.request.-"),)),)),
        Objects(queues=(Queue(OWN_ANSWERS.name, QueueKind.ANSWERS, (Binding(REPLY, "#"),)),)),
        Objects(
            queues=(
                Queue(OWN_ANSWERS.name, QueueKind.ANSWERS, (Binding(REPLY, "answers.moor-scheduler.1"),)),
            )
        ),
        Objects(exchanges=(Exchange("moor.mine"),)),
        Objects(exchanges=(Exchange(f"feed.{CONDUCTOR}.p1"),)),
        Objects(exchanges=(Exchange(OWN_ANSWERS.name),)),
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
        "an exchange named like a feed",
        "an exchange named like its answers",
        "an exchange that stands",
    ],
)
async def test_a_cell_may_not_declare(under_test: BrokerUnderTest, objects: Objects) -> None:
    await prepare(under_test, CONDUCTOR)
    async with connected(under_test.broker(CONDUCTOR)) as connection:
        with pytest.raises(AccessRefused):
            await within_patience(connection.declare(objects))


async def test_a_cell_reads_its_own_work_and_who_has_sent_it_also_after_a_restart(
    under_test: BrokerUnderTest,
) -> None:
    await prepare(under_test, CONDUCTOR, COMPUTE)
    async with connected(under_test.broker(COMPUTE)) as compute:
        await publish(compute, Parcel("moor.cell.c1", "spawned.c1", b"{}", mandatory=True))

    await under_test.restart()

    async with connected(under_test.broker(CONDUCTOR)) as conductor:
        (delivery,) = await drain(conductor, OWN_WORK, 1)

    assert delivery.sender == COMPUTE


async def test_a_cell_asks_and_is_answered_by_whom_it_asked(under_test: BrokerUnderTest) -> None:
    await prepare(under_test, CONDUCTOR, PLACEMENT_USER)
    async with (
        connected(under_test.broker(CONDUCTOR), Objects(queues=(OWN_ANSWERS,))) as cell,
        connected(under_test.broker(PLACEMENT_USER)) as placement,
    ):
        answers = await cell.open_consuming(OWN_ANSWERS.name, prefetch=1)
        questions = await placement.open_consuming("placement.claims", prefetch=1)
        asked = Parcel(PLACEMENT, "swap.c1", b"?", mandatory=True, reply_to=OWN_ANSWERS.name)
        assert await publish(cell, asked) == [Receipt.CONFIRMED]

        (question,) = await receive(questions, 1)
        answered = Parcel(REPLY, question.parcel.reply_to, b"!", mandatory=True)
        assert await publish(placement, answered) == [Receipt.CONFIRMED]
        (answer,) = await receive(answers, 1)

    assert (question.parcel.body, question.sender) == (b"?", CONDUCTOR)
    assert (answer.parcel.body, answer.sender) == (b"!", PLACEMENT_USER)


async def test_a_stranger_does_not_get_in(under_test: BrokerUnderTest) -> None:
    await prepare(under_test, CONDUCTOR)

    with pytest.raises(AccessRefused):
        await within_patience(under_test.broker("moor-conductor-c9").connect())
