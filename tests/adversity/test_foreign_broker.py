"""Ironic's own RabbitMQ is killed with its exchange, and a reader with minimal rights continues."""

import asyncio
import json
from contextlib import aclosing

import aio_pika
import pytest

from bus.rabbit import RabbitBroker
from bus.workers.sending import Link
from ironic_sync.events import InboxBatch, read_inbox
from ironic_sync.settings import Inbox
from kit.parts import Status
from tests.contracts.small_world import eventually, within_patience
from tests.contracts.stage import SETTINGS
from tests.servers.rabbitmq import PrivateRabbitMQ

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq]

KEY = "ironic_versioned_notifications.info"
INBOX = Inbox()
# The rights in docs/bus-concepts.md for a daemon that declares its queues itself.
RIGHTS = {
    "configure": r"^ironic\.events$",
    "write": r"^ironic\.events$",
    "read": r"^(ironic|ironic\.events)$",
}
LOOK_S = 0.05


def reader_on(server: PrivateRabbitMQ) -> RabbitBroker:
    """A user of Ironic's broker with the rights of the page."""
    definitions = {
        "users": [{"name": "moorage", "password": "moorage", "tags": []}],
        "permissions": [{"user": "moorage", "vhost": "/"} | RIGHTS],
    }
    server.ctl("import_definitions", stdin=json.dumps(definitions))
    return RabbitBroker(server.url.replace("guest:guest", "moorage:moorage"))


class Ironic:
    """Publishes as Ironic does: the exchange is not durable, and each publisher creates it again."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def say(self, *bodies: str) -> None:
        connection = await aio_pika.connect(self._url)
        async with connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange("ironic", aio_pika.ExchangeType.TOPIC, durable=False)
            for body in bodies:
                message = aio_pika.Message(body.encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await exchange.publish(message, KEY)

    async def say_until_heard(self, body: str) -> None:
        """Publish until a queue is bound. Earlier messages are lost, and the reader is told of a gap."""
        connection = await aio_pika.connect(self._url)
        async with connection:
            channel = await connection.channel(on_return_raises=True)
            exchange = await channel.declare_exchange("ironic", aio_pika.ExchangeType.TOPIC, durable=False)

            async def is_heard() -> bool:
                message = aio_pika.Message(body.encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                try:
                    await exchange.publish(message, KEY, mandatory=True)
                except aio_pika.exceptions.DeliveryError:
                    return False
                return True

            await eventually(is_heard, "the inbox is bound")


async def test_a_killed_broker_of_ironics_own_costs_a_gap_and_no_message_that_it_had() -> None:
    with PrivateRabbitMQ() as server:
        ironic = Ironic(server.url)
        link = Link(await asyncio.to_thread(reader_on, server), SETTINGS)
        status = Status("inbox")
        batches = read_inbox(
            link, INBOX, settings=SETTINGS, status=status, look_s=LOOK_S, look_s_absent=LOOK_S
        )

        async def next_batch() -> InboxBatch:
            return await within_patience(anext(batches))

        async with aclosing(batches):
            assert (await next_batch()).gap.startswith("reading begins")
            # The reader has declared its queues itself, and now waits for the exchange.
            waiting = asyncio.ensure_future(anext(batches))
            await ironic.say_until_heard("1")
            assert "did not exist" in (await within_patience(waiting)).gap
            assert [each.body for each in (await next_batch()).messages] == [b"1"]
            assert status.failures == 0
            # One message is with the reader, unacknowledged, and one waits behind it.
            await ironic.say("2")

            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)

            assert (await next_batch()).gap.startswith("reading was interrupted")
            heard: list[bytes] = []
            while {b"1", b"2"} - {*heard}:
                heard += [each.body for each in (await next_batch()).messages]
            waiting = asyncio.ensure_future(anext(batches))
            await ironic.say_until_heard("3")
            assert "did not exist" in (await within_patience(waiting)).gap
            assert [each.body for each in (await next_batch()).messages] == [b"3"]
        await link.close()
