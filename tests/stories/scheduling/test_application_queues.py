"""Applications with queues of their own: a flood of one leaves another's requests at the head of theirs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from bus.broker import Broker, Receipt
from bus.message import PLAIN, Message, Parcel
from bus.messages.build import BuildAccepted, BuildRejected
from bus.messages.stored_names import SetApplication
from bus.topology import (
    API,
    API_QUEUES,
    Application,
    application_queue,
    objects_of_application,
)
from tests.contracts.broker_under_test import BANK, SHOP
from tests.contracts.stage import line
from tests.stories.cloud import SMALL, Cloud, a_build, cloud_on
from tests.stories.layouts import one_broker_with_users
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]

FLOOD = 2_000
BUSES = pytest.mark.parametrize(
    ("bus", "books"), [("memory", "memory"), pytest.param("rabbitmq", "memory", marks=pytest.mark.rabbitmq)]
)


@asynccontextmanager
async def a_cloud(bus: str, books: str) -> AsyncIterator[Cloud]:
    async with (
        one_broker_with_users(bus, SHOP.user, BANK.user) as brokers,
        cloud_on(brokers, books) as setup,
        setup.placement(),
    ):
        yield setup


async def publish(broker: Broker, exchange: str, requests: Sequence[Message], project: str) -> None:
    """Each request in a parcel of its own, as the program in docs/bus.md publishes it."""
    connection = await broker.connect()
    publishing = await connection.open_publishing()
    parcels = [
        Parcel(exchange, f"build.request.{project}", line(each), content_type=PLAIN, mandatory=True)
        for each in requests
    ]
    receipts = await asyncio.gather(*[publishing.publish(each) for each in parcels])
    assert set(receipts) == {Receipt.CONFIRMED}
    await connection.close()


async def give_queue(setup: Cloud, *applications: Application) -> None:
    for each in applications:
        await setup.brokers.api.declare(objects_of_application(each))


async def register(setup: Cloud, *applications: Application) -> None:
    for each in applications:
        await setup.client.ask(SetApplication(name=each.name, projects=each.projects))


def wrong(number: int, project: str) -> Message:
    """It is answered without a host, which makes a flood of it cheap to test."""
    return a_build(number, project=project, flavor=structs.replace(SMALL, vcpus=-1))


@BUSES
async def test_a_flood_of_one_application_delays_the_boot_of_another_by_a_few_batches(
    bus: str, books: str
) -> None:
    async with a_cloud(bus, books) as setup, setup.listening("build.#") as heard:
        await setup.add_host("h1")
        await give_queue(setup, SHOP, BANK)
        async with setup.scheduler():
            await register(setup, SHOP, BANK)
            await setup.until_registered("h1")
        flood = [wrong(number, "shop") for number in range(1, FLOOD + 1)]
        await publish(setup.brokers.api.broker(SHOP.user), SHOP.exchange, flood, "shop")
        late = a_build(FLOOD + 1, project="bank")
        await publish(setup.brokers.api.broker(BANK.user), BANK.exchange, [late], "bank")

        async with setup.scheduler():
            await until(lambda: len(heard) == FLOOD + 1, "every request has ended")

        of_bank = [number for number, each in enumerate(heard) if isinstance(each, BuildAccepted)]
        assert len(of_bank) == 1
        # All of the flood waited before it.
        assert of_bank[0] < FLOOD / 2
        assert sum(isinstance(each, BuildRejected) for each in heard) == FLOOD


@BUSES
async def test_schedulers_read_the_queue_of_an_application_from_when_it_exists_until_it_is_removed(
    bus: str, books: str
) -> None:
    async with a_cloud(bus, books) as setup, setup.listening("build.#") as heard:

        async def until_rejected(count: int) -> None:
            await until(lambda: heard, f"{count} requests are answered", lambda all_: len(all_) == count)

        async def by_its_own(number: int, by: Application = SHOP) -> None:
            requests = [wrong(number, by.name)]
            await publish(setup.brokers.api.broker(by.user), by.exchange, requests, by.name)

        async with setup.scheduler():
            # It is registered before it has queues.
            await register(setup, SHOP)
            await publish(setup.brokers.api.broker(SHOP.user), API, [wrong(1, "shop")], "shop")
            await until_rejected(1)
            await give_queue(setup, SHOP)
            await by_its_own(2)
            await until_rejected(2)

            await setup.client.ask(SetApplication(name=SHOP.name, removed=True))
            for queue in API_QUEUES:
                await setup.brokers.api.delete_queue(application_queue(queue, SHOP.name))
            await setup.send(wrong(3, "bank"))
            await until_rejected(3)

            await give_queue(setup, BANK)
            await register(setup, BANK)
            await by_its_own(4, BANK)
            await until_rejected(4)
