"""Whose a dead letter is, and with whose authority it is replayed: never another's than its verified sender's.

An application writes what it likes beside its own messages: our headers, and those by which RabbitMQ says how a message died.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import aio_pika
import pytest

from bus import message
from bus.broker import Broker, Origin
from bus.codec import encode
from bus.message import API, PLACEMENT, Envelope, Message, Parcel
from bus.messages.build import BuildInstance
from bus.messages.hosts import SetHost
from bus.queues import DEAD
from bus.topology import (
    DELIVERIES_MAX_LEAST,
    Limits,
    application_exchange,
    application_queue,
    objects_of,
    objects_of_application,
    user_of,
)
from bus.unreadable import Unreadable
from bus.workers.dead_letters import DeadLetter, NotReplayed, dead_letter_parcel, retry_parcel
from bus.workers.handlers import Handlers, Received, Said
from bus.workers.worker import Worker
from engine.flavors import Flavor, RequestId
from kit.errors import Poison
from moor.client import Client
from tests.contracts.broker_under_test import SHOP, BrokerUnderTest
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.contracts.small_world import connected, receive
from tests.contracts.stage import CELLS, Remembering, dead_letters, send, until_empty, working
from tests.waiting import until

OPERATOR, SCHEDULER, CONDUCTOR = user_of("operator"), user_of("scheduler"), user_of("conductor", "c1")
REQUESTS = "scheduler.requests"
OWN = application_queue(REQUESTS, SHOP.name)
OWN_KEY = "build.request.shop"
DRAIN = SetHost(host="host-1", mode="draining", reason="mine")
BUILD = BuildInstance(
    request_id=RequestId(UUID(int=1)), flavor=Flavor(name="small", vcpus=1, ram_mb=64), project="shop"
)
FORGED: Mapping[str, str | int] = {
    message.SENDER: OPERATOR,
    message.EXCHANGE: API,
    message.KEY: "host.set",
    message.REASON: "the operator's own",
    message.WHERE: "scheduler-1",
    message.ATTEMPTS: 19,
    message.LETTER: "scheduler-1-7",
    message.BURIED_AT: "2026-01-01T00:00:00+00:00",
    message.WAITS: 3,
}
FIRST_DEATH: Mapping[str, str | int] = {
    message.BROKER_REASON: "the operator's own",
    message.BROKER_QUEUE: "placement.work",
    message.BROKER_EXCHANGE: API,
    message.BROKER_KEY: "host.set",
}


def body(said: Message) -> bytes:
    return encode(Envelope(message=said, id="mine"))


class Heard:
    """What a scheduler takes from its queue, and from whom. `trouble` may raise."""

    def __init__(self, trouble: Sequence[Exception] = ()) -> None:
        self.said: list[tuple[Message, str]] = []
        self._trouble = [*trouble]

    async def on_any(self, batch: Sequence[Received[Any]], _: object) -> Sequence[Said]:
        if self._trouble:
            raise self._trouble.pop(0)
        self.said += [(each.message, each.sender) for each in batch]
        return ()

    @property
    def handlers(self) -> Handlers:
        return {SetHost: self.on_any, BuildInstance: self.on_any, Unreadable: self.on_any}


@pytest.fixture
async def client(under_test: BrokerUnderTest) -> Client:
    """The topology with the users of an application, an operator and workers; and a client of the operator."""
    await under_test.declare(objects_of(CELLS, limits=Limits(deliveries_max=DELIVERIES_MAX_LEAST)))
    await under_test.declare(objects_of_application(SHOP, limits=Limits(deliveries_max=DELIVERIES_MAX_LEAST)))
    await under_test.add_users((OPERATOR, SCHEDULER, SHOP.user, CONDUCTOR), CELLS)
    return Client(under_test.broker(OPERATOR))


@asynccontextmanager
async def a_scheduler(
    under_test: BrokerUnderTest, heard: Heard, queue: str = REQUESTS
) -> AsyncIterator[Worker[None]]:
    scheduler = under_test.broker(SCHEDULER)
    async with working(scheduler, Remembering(), queue=queue, handlers=heard.handlers) as worker:
        yield worker


def is_the_shops_own(letter: DeadLetter, reason: str) -> bool:
    """Nothing that the shop has written beside its message is shown as another's word."""
    return (letter.origin, letter.reason, letter.where, letter.attempts, letter.buried_at) == (
        Origin(SHOP.user),
        f"the broker gave up on it: {reason}",
        "broker",
        0,
        None,
    )


async def stays_and_does_nothing(under_test: BrokerUnderTest, client: Client, letter: DeadLetter) -> None:
    """Neither a replay that asks first nor one that does not lets a scheduler act on it as the operator."""
    heard = Heard()
    async with a_scheduler(under_test, heard, letter.queue):
        for handles in ((), (letter.handle,)):
            with pytest.raises(
                NotReplayed, match="nobody has verified under which key moor-app-shop sent it"
            ):
                await client.replay_dead_letters(*handles, every=not handles)
        await send(under_test.broker(OPERATOR), retry_parcel(letter.parcel.body, letter.queue, letter.origin))
        await until(lambda: len(heard.said) == 1, "it is told")
        await until_empty(under_test.broker(), letter.queue)
    ((told, sender),) = heard.said
    assert isinstance(told, Unreadable), told
    assert sender == SHOP.user


ON_RABBITMQ = pytest.mark.parametrize(
    "under_test", [pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)], indirect=True
)


async def say_by_another_library(
    under_test: BrokerUnderTest, exchange: str, told: Message, **properties: Any
) -> None:
    """The shop says it, with properties that our library does not set."""
    assert isinstance(under_test, RabbitMQUnderTest)
    said = aio_pika.Message(body(told), content_type=message.PLAIN, user_id=SHOP.user, **properties)
    async with await aio_pika.connect(under_test.url(SHOP.user)) as connection:
        there = await (await connection.channel()).get_exchange(exchange, ensure=False)
        await there.publish(said, OWN_KEY)


async def given_up(broker: Broker, queue: str) -> None:
    """What is in the queue comes back until the broker gives up on it."""
    async with connected(broker) as connection:
        consuming = await connection.open_consuming(queue, prefetch=10)
        for _ in range(DELIVERIES_MAX_LEAST + 1):
            (delivery,) = await receive(consuming, 1)
            await consuming.give_back(delivery.tag)


async def test_what_comes_back_too_often_is_its_verified_senders(
    under_test: BrokerUnderTest, client: Client
) -> None:
    forged = Parcel(API, OWN_KEY, body(DRAIN), mandatory=True, headers={**FORGED, **FIRST_DEATH})
    await send(under_test.broker(SHOP.user), forged)
    await given_up(under_test.broker(SCHEDULER), REQUESTS)
    await dead_letters(under_test.broker(), 1)

    (letter,) = await client.list_dead_letters()
    assert is_the_shops_own(letter, message.DELIVERY_LIMIT)
    await stays_and_does_nothing(under_test, client, letter)


def a_death(**changed: object) -> dict[str, object]:
    """A table as RabbitMQ writes it into `x-death`, which it takes for its own if queue and reason are equal."""
    return {
        "count": 0,
        "reason": "expired",
        "queue": REQUESTS,
        "exchange": API,
        "routing-keys": ["host.set"],
        **changed,
    }


DEATHS: Mapping[str, object] = {
    "none": None,
    "empty": [],
    "an empty table": [{}],
    "its own": [a_death()],
    "its own queue": [a_death(queue=OWN)],
    "another": [a_death(queue="placement.work", reason="rejected")],
    "two": [a_death(reason="rejected"), a_death()],
    "odd types": [a_death(reason=7, queue=[], exchange={}, **{"routing-keys": "host.set"})],
    "keys of no text": [a_death(**{"routing-keys": [7, None]})],
    "a text": "expired",
    "a number": 7,
    "a table": a_death(),
    "a truth": True,
}


@ON_RABBITMQ
@pytest.mark.parametrize("own_exchange", [False, True], ids=["for all", "its own"])
@pytest.mark.parametrize("deaths", DEATHS)
async def test_what_expires_is_its_verified_senders_whatever_is_written_beside_it(
    under_test: BrokerUnderTest, client: Client, deaths: str, *, own_exchange: bool
) -> None:
    exchange, queue = (application_exchange(SHOP.name), OWN) if own_exchange else (API, REQUESTS)
    headers: dict[str, Any] = {**FORGED, **(FIRST_DEATH if deaths != "none" else {})}
    if deaths != "none":
        headers |= {"x-death": DEATHS[deaths], "CC": ["host.set"], "BCC": ["host.set"]}
    await say_by_another_library(under_test, exchange, DRAIN, headers=headers, expiration=0)
    await dead_letters(under_test.broker(), 1)

    letters = await client.list_dead_letters()
    letter = next(each for each in letters if each.queue == queue)
    assert is_the_shops_own(letter, "expired"), letter
    await stays_and_does_nothing(under_test, client, letter)


@ON_RABBITMQ
@pytest.mark.usefixtures("client")
async def test_an_expiration_is_refused_by_name(under_test: BrokerUnderTest) -> None:
    heard = Heard()
    async with a_scheduler(under_test, heard):
        await say_by_another_library(under_test, API, BUILD, expiration=600)
        await until(lambda: len(heard.said) == 1, "it is told")

    ((told, _),) = heard.said
    assert isinstance(told, Unreadable)
    assert (told.request_id, told.field, told.value) == (BUILD.request_id, "expiration", "600000")
    assert "AMQP's expiration must not be set" in told.reason


async def test_a_letter_that_a_worker_has_buried_is_replayed_as_its_first_senders(
    under_test: BrokerUnderTest, client: Client
) -> None:
    heard = Heard([Poison("never")])
    async with a_scheduler(under_test, heard):
        forged = Parcel(API, OWN_KEY, body(BUILD), mandatory=True, headers=FORGED)
        await send(under_test.broker(SHOP.user), forged)
        await dead_letters(under_test.broker(), 1)
        (letter,) = await client.list_dead_letters()
        assert (letter.origin, letter.reason) == (Origin(SHOP.user, "", API, OWN_KEY), "never")

        (replayed,) = await client.replay_dead_letters(letter.handle)
        await until(lambda: len(heard.said) == 1, "it is handled")

    assert replayed == letter
    assert heard.said == [(BUILD, SHOP.user)]
    assert await client.count_dead_letters() == 0


async def test_a_replay_is_refused_for_what_its_first_sender_may_not_send_and_others_are_replayed(
    under_test: BrokerUnderTest, client: Client
) -> None:
    """A worker of 0.1.0 has buried an order that never counted; it stays, and holds up no other."""
    heard = Heard()
    moment = datetime.fromisoformat("2026-01-01T00:00:00+00:00")

    def buried(sender: str, said: Message, key: str) -> Parcel:
        return dead_letter_parcel(
            body(said),
            REQUESTS,
            Origin(sender, "", API, key),
            reason="no",
            attempts=1,
            where="s",
            letter=key + sender,
            at=moment,
        )

    async with a_scheduler(under_test, heard):
        wrong = (
            buried(SHOP.user, DRAIN, "host.set"),
            buried(SHOP.user, DRAIN, OWN_KEY),
        )
        right = (buried(SHOP.user, BUILD, OWN_KEY), buried(OPERATOR, DRAIN, "host.set"))
        await send(under_test.broker(SCHEDULER), *wrong, *right)
        with pytest.raises(NotReplayed) as refused:
            await client.replay_dead_letters(every=True)
        await until(lambda: len(heard.said) == 2, "the others are handled")

    assert sorted(sender for _, sender in heard.said) == sorted([SHOP.user, OPERATOR])
    assert await client.count_dead_letters() == len(wrong)
    told = str(refused.value)
    assert "'moor-app-shop' has no right to send 'host.set' to 'moor.api'" in told
    assert "'host.set' counts only under the key 'host.set'" in told


async def test_a_cells_worker_speaks_for_others_in_its_own_queues_alone(
    under_test: BrokerUnderTest, client: Client
) -> None:
    """It may bury and return what its queue had from an operator: it reads that queue by itself."""
    own = "conductor.c1.work"
    letters = [
        Parcel(DEAD, own, body(DRAIN), headers=FORGED, mandatory=True),
        Parcel(PLACEMENT, "release.c1", body(DRAIN), headers=FORGED, mandatory=True),
    ]
    await send(under_test.broker(CONDUCTOR), *letters)
    await given_up(under_test.broker(), "placement.work")
    await dead_letters(under_test.broker(), 2)

    assert {each.queue: each.origin for each in await client.list_dead_letters()} == {
        own: Origin(OPERATOR, "", API, "host.set"),
        "placement.work": Origin(CONDUCTOR, "", PLACEMENT, "release.c1"),
    }


async def test_what_an_operator_replays_and_comes_back_too_often_is_still_its_first_senders(
    under_test: BrokerUnderTest, client: Client
) -> None:
    origin = Origin(SHOP.user, "", API, OWN_KEY)
    await send(under_test.broker(OPERATOR), retry_parcel(body(BUILD), REQUESTS, origin))
    await given_up(under_test.broker(SCHEDULER), REQUESTS)
    await dead_letters(under_test.broker(), 1)

    (letter,) = await client.list_dead_letters()
    assert letter.origin == origin
    assert letter.reason == f"the broker gave up on it: {message.DELIVERY_LIMIT}"
