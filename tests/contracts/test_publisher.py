"""Contract of the publisher on all brokers: messages arrive whatever the broker does meanwhile; if one cannot, its sender is told."""

import asyncio
from uuid import UUID

import pytest
from msgspec import structs

from bus.broker import Broker
from bus.codec import CODEC, known_messages
from bus.message import Parcel
from bus.messages.build import BuildInstance
from bus.messages.placement import InventoryRefused, LogPosition, ProvidersChanged
from bus.topology import EVENTS, Grant, Limits, objects_of
from bus.workers.connections import Station, listen
from bus.workers.publisher import Overfull
from bus.workers.sending import Outgoing
from engine.flavors import RequestId
from engine.inventories import ProviderId
from engine.refusals import NotAllowed
from kit.errors import ConnectionLost, NotFound, Undeliverable
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.small_world import connected, drain
from tests.contracts.small_world import within_patience as within
from tests.contracts.stage import (
    CELLS,
    SETTINGS,
    WORK,
    Remembering,
    declared,
    order,
    station,
    until_empty,
    working,
)
from tests.varied import varied
from tests.waiting import until

# One message for each parcel.
APART = varied(SETTINGS, PARCEL_ITEMS_MAX=1)


async def test_an_order_that_no_queue_takes_is_an_error(under_test: BrokerUnderTest) -> None:
    await under_test.declare(objects_of(()))

    async with station(under_test.broker()) as client:
        await client.publisher.send_all([])  # nothing to say is said at once
        with pytest.raises(
            Undeliverable, match=r"no queue takes 'release\.no\.such\.cell' on 'moor\.placement'"
        ):
            await client.publisher.send(order(1, cell="no.such.cell"))


async def test_builds_of_several_projects_share_no_parcel(broker: Broker) -> None:
    """The project is in the routing key, and a message counts only under its own key."""
    builds = [
        BuildInstance(request_id=RequestId(UUID(int=number)), project=project)
        for number, project in enumerate(("shop", "bank", "", "shop"))
    ]
    async with station(broker) as client, connected(broker, objects_of(CELLS)) as connection:
        await within(client.publisher.send_all([Outgoing(build) for build in builds]))

        arrived = await drain(connection, "scheduler.requests", 3)

    assert {
        (each.parcel.routing_key, *(read.message.project for read in known_messages(each.parcel, CODEC)))  # type: ignore[attr-defined]
        for each in arrived
    } == {
        ("build.request.shop", "shop", "shop"),
        ("build.request.bank", "bank"),
        ("build.request.-", ""),
    }


async def test_a_feed_is_heard_and_its_gaps_are_seen(under_test: BrokerUnderTest, broker: Broker) -> None:
    heard: list[int] = []

    async with station(broker) as client, station(broker, "p1") as ears:
        feed = listen(ears, [Grant(EVENTS, ("providers.changed",))])
        assert await anext(feed) == ()
        for n in (1, 2):
            await client.publisher.send(ProvidersChanged(at=LogPosition(term=1, position=n)))
        while len(heard) < 2:
            heard += [
                each.message.at.position
                for each in await anext(feed)
                if isinstance(each.message, ProvidersChanged)
            ]
        await under_test.delete_queue(f"feed.{broker.user or 'anyone'}.p1")
        await client.publisher.send(ProvidersChanged(at=LogPosition(term=1, position=3)))
        assert await anext(feed) == ()  # it stands again, and what was said meanwhile is missed
        await client.publisher.send(ProvidersChanged(at=LogPosition(term=1, position=4)))
        heard += [
            each.message.at.position
            for each in await anext(feed)
            if isinstance(each.message, ProvidersChanged)
        ]
        await feed.aclose()

    assert heard == [1, 2, 4]


@pytest.mark.hits("a queue is full or the broker is unreachable: trying again")
async def test_a_full_queue_holds_the_publisher_back_until_there_is_room(under_test: BrokerUnderTest) -> None:
    await under_test.declare(objects_of(CELLS, limits=Limits(work_length_max=5)))
    broker, memory = under_test.broker(), Remembering()

    async with station(broker, settings=APART) as client:
        sending = [client.publisher.send(order(n)) for n in range(10)]
        await until(lambda: sum(each.done() for each in sending) >= 5)
        # RabbitMQ's limit is soft: it still takes what is on its way when the limit is reached.
        sending += [client.publisher.send(order(n)) for n in range(10, 30)]
        await until(lambda: client.publisher.sender.held_back > 0)
        assert not all(each.done() for each in sending)
        async with working(broker, memory):
            await asyncio.gather(*sending)
            await until(lambda: len(set(memory.handled)) == 30)


@pytest.mark.hits("messages are refused: too many wait for the broker")
async def test_under_an_alarm_what_waits_is_bounded_and_shares_parcels(
    under_test: BrokerUnderTest, broker: Broker
) -> None:
    memory = Remembering()
    held = Station(broker, "held", settings=structs.replace(SETTINGS, messages_waiting_max=1000))
    await held.publisher.send(order(0))
    await under_test.set_alarm(on=True)
    sending = [held.publisher.send(order(1))]
    await until(lambda: held.publisher.is_held)
    sent_before = held.publisher.sender.parcels_sent

    sending += [held.publisher.send(order(n)) for n in range(2, 1500)]
    refused = [each for each in sending if each.done()]
    with pytest.raises(Overfull, match="1000 messages wait for the broker, at most 1000 may: 1 more"):
        await refused[0]
    assert all(isinstance(each.exception(), Overfull) for each in refused)
    taken = [each for each in sending if not each.done()]
    assert 1000 <= len(taken) <= 1001
    assert held.publisher.waiting == 1000
    assert len(held.publisher.under_way) <= 1
    waiting_for_room = asyncio.ensure_future(held.publisher.until_room())
    withdrawn = taken.pop()
    held.publisher.withdraw(withdrawn)
    assert withdrawn.cancelled()
    assert held.publisher.waiting == 999
    assert not waiting_for_room.done()

    await under_test.set_alarm(on=False)
    await asyncio.gather(waiting_for_room, *taken)
    assert held.publisher.waiting == 0
    assert held.publisher.sender.parcels_sent - sent_before <= 7
    async with working(broker, memory):
        await until(lambda: len(memory.handled) == 1 + len(taken))
    assert memory.handled == [*range(1 + len(taken))]
    await held.close()


async def test_a_publisher_that_was_closed_takes_nothing_and_forgets_nobody(
    under_test: BrokerUnderTest, broker: Broker
) -> None:
    impatient = Station(broker, "impatient", settings=structs.replace(SETTINGS, drain_ms_max=50))
    await impatient.publisher.send(order(0))
    await under_test.set_alarm(on=True)
    sending = [impatient.publisher.send(order(n)) for n in range(1000)]

    await impatient.close()

    for each in (*sending, impatient.publisher.send(order(1))):
        with pytest.raises(ConnectionLost):
            await each
    await under_test.set_alarm(on=False)


async def test_nothing_confirmed_is_lost_when_connections_are_cut(
    under_test: BrokerUnderTest, broker: Broker
) -> None:
    memory = Remembering()

    async with station(broker) as client, working(broker, memory):
        for cut in range(4):
            sending = [client.publisher.send(order(n)) for n in range(cut * 300, cut * 300 + 300)]
            await asyncio.sleep(0)
            await under_test.cut_connections()
            await asyncio.gather(*sending)
        await until(lambda: len(set(memory.handled)) == 1200)
        await until_empty(broker)


@pytest.mark.hits("part %r fails, trying again: %s", "part %r works again; it has failed %d times so far")
async def test_a_consumer_whose_queue_was_deleted_comes_back_when_it_stands_again(
    under_test: BrokerUnderTest, broker: Broker
) -> None:
    memory = Remembering()

    async with station(broker) as client, working(broker, memory) as worker:
        await client.publisher.send(order(0))
        await until(lambda: memory.handled == [0])
        await under_test.delete_queue(WORK)
        # RabbitMQ reports no deletion if the queue exists again within a few milliseconds.
        await until(lambda: worker.intake.interruptions > 0)
        await declared(under_test)
        await client.publisher.send(order(1))
        await until(lambda: memory.handled == [0, 1])


@pytest.mark.parametrize("length", [10, 110], ids=["short", "cut off by the broker"])
async def test_those_that_the_broker_refuses_are_told_and_their_neighbours_arrive(
    broker: Broker, length: int
) -> None:
    memory = Remembering()
    refused = Parcel("moor." + "x" * length, "k" * 255, b"{}", mandatory=True)

    async with station(broker, settings=APART) as client, working(broker, memory):
        sending, refusing = [], []
        for n in range(300):
            sending.append(client.publisher.send(order(n)))
            if n % 50 == 7:
                refusing.append(asyncio.ensure_future(client.publisher.offer(refused)))
        told = await within(asyncio.gather(*refusing, return_exceptions=True))
        await within(asyncio.gather(*sending))
        await until(lambda: len(set(memory.handled)) == 300)
        # Later messages can still be sent.
        await client.publisher.send(order(300))
        await until(lambda: 300 in memory.handled)

    assert [type(each) for each in told] == [NotFound] * 6


@pytest.mark.hits("an answer is dropped: nobody waits for it any more")
async def test_an_answer_to_what_is_no_address_harms_nobody_else(broker: Broker) -> None:
    addresses = ("a" * 200, "a" * 255, "a" * 256, "\u00e4" * 200, "", "\0", "#", "the number comes here")

    async with station(broker) as client:
        said = [client.publisher.send_all([Outgoing(refusal(), to=to)]) for to in addresses if to]
        asked = [client.publisher.send_all([Outgoing(order(1), reply_to=to)]) for to in addresses]
        told = await within(asyncio.gather(*said, *asked, return_exceptions=True))
        await client.publisher.send(order(2))

    assert [str(each).partition(" has ")[2] for each in told if each is not None] == [
        f"{size} bytes, at most 255 are allowed: {to[:40]!r}..."
        for size, to in ((256, "a" * 40), (400, "\u00e4" * 40)) * 2
    ]


def refusal() -> InventoryRefused:
    return InventoryRefused(
        cell="c1", root=ProviderId(UUID(int=1)), verdict=NotAllowed(field="cell", reason="no such cell")
    )
