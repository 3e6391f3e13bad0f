"""Applications: the events of their own projects, from every scheduler, also after a crash; and queues of their own, in which the
flood of one does not delay another.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec import structs

from bus.broker import Broker, Receipt
from bus.message import PLAIN, Message, Parcel, type_of
from bus.messages.build import (
    AskInstances,
    BuildAccepted,
    BuildInstance,
    BuildRejected,
    InstanceFailed,
)
from bus.messages.hosts import SetHost
from bus.messages.planning import AskExplanation, AskPlan
from bus.messages.projects import (
    ApplicationSet,
    ApplicationsFound,
    AskApplications,
    KnownApplication,
    SetApplication,
)
from bus.topology import (
    API,
    API_QUEUES,
    FEED,
    Application,
    application_queue,
    objects_of_application,
)
from engine.flavors import Flavor, InstanceId
from tests.contracts.broker_under_test import BANK, SHOP
from tests.contracts.small_world import connected, publish
from tests.contracts.stage import dead_letters, line
from tests.stories.cloud import (
    SMALL,
    Cloud,
    a_build,
    cloud,
    cloud_on,
    funnel_of,
    instance_of,
    until_fed,
    until_heard,
)
from tests.stories.layouts import IN_MEMORY, STAGES, one_broker_with_users
from tests.waiting import until

WHOLE_LIFE = ["build.accepted", "instance.placed", "instance.active", "instance.deleted"]


def types_of(instance: InstanceId, heard: Sequence[Message]) -> list[str]:
    """The types of the events of an instance, each once, in the order of their arrival."""
    said: list[str] = []
    for each in heard:
        if isinstance(each, BuildRejected):
            continue
        about: Any = each
        ids = about.instances if isinstance(each, BuildAccepted) else (about.instance.id,)
        if instance in ids and type_of(type(each)) not in said:
            said.append(type_of(type(each)))
    return said


async def register(setup: Cloud, name: str, *projects: str) -> None:
    answer = await setup.client.ask(SetApplication(name=name, projects=projects))
    assert answer == ApplicationSet(application=KnownApplication(name=name, projects=projects))


async def build_and_delete(setup: Cloud, build: BuildInstance) -> InstanceId:
    id_ = instance_of(build)
    await setup.send(build)
    await setup.until_state(id_, "active")
    await setup.delete(id_)
    return id_


@IN_MEMORY
async def test_an_order_without_a_valid_sending_time_is_refused(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        for said in ({}, {"sent_at": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}):
            message = {"type": "application.set", "name": "shop", "admin": True}
            body = msgspec.json.encode({"message": message, **said})
            await setup.client.publisher.offer(Parcel(API, "application.set", body, mandatory=True))
        letters = await dead_letters(setup.brokers.at_api("operator"), 2)

        letters.sort(key=lambda letter: len(letter.parcel.body))
        assert [letter.reason.partition(": ")[0] for letter in letters] == ["sent_at", "sent_at"]
        assert "must be given" in letters[0].reason
        assert re.search("is 3[56][0-9]{2} s ahead of the clock here, may be 300", letters[1].reason)
        assert await setup.client.ask(AskApplications()) == ApplicationsFound(applications=())


@STAGES
async def test_an_application_receives_events_of_its_own_projects_only(bus: str, books: str) -> None:
    async with (
        cloud(bus, books) as setup,
        setup.placement(),
        setup.scheduler(),
        setup.listening("p1", exchange=FEED) as heard_of_one,
        setup.listening("*", exchange=FEED) as heard,
    ):
        await setup.add_hosts("h1")
        await build_and_delete(setup, a_build(1, project="p1"))
        assert heard == [], "nobody is registered, and nothing is said"
        await register(setup, "shop", "p1", "p2")
        await until_fed(setup, "p1", heard)

        ids = {
            project: await build_and_delete(setup, a_build(number, project=project))
            for number, project in ((2, "p1"), (3, "p2"), (4, "p3"), (5, ""))
        }

        for project in ("p1", "p2"):
            await until(
                partial(types_of, ids[project], heard),
                f"all is heard of {project}",
                lambda types: sorted(types) == sorted(WHOLE_LIFE),
            )
        assert types_of(ids["p3"], heard) == types_of(ids[""], heard) == []
        assert sorted(types_of(ids["p1"], heard_of_one)) == sorted(WHOLE_LIFE)
        assert types_of(ids["p2"], heard_of_one) == []


@IN_MEMORY
async def test_all_schedulers_learn_of_an_application_and_a_removed_one_gets_no_events(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.listening("*", exchange=FEED) as heard:
        async with setup.scheduler():
            await setup.add_hosts("h1")
            await register(setup, "shop", "p1")
            await register(setup, "shop", "p2")
            await register(setup, "desk", "p1")
            assert await setup.client.ask(AskApplications()) == ApplicationsFound(
                applications=(
                    KnownApplication(name="desk", projects=("p1",)),
                    KnownApplication(name="shop", projects=("p2",)),
                )
            )
            removed = await setup.client.ask(SetApplication(name="desk", removed=True))
            assert removed == ApplicationSet(application=None)
        async with setup.scheduler("another"):
            gone = await build_and_delete(setup, a_build(1, project="p1"))
            kept = await build_and_delete(setup, a_build(2, project="p2"))
            await until(
                lambda: types_of(kept, heard),
                "what is registered is heard",
                lambda types: "instance.deleted" in types,
            )
            assert types_of(gone, heard) == []


@STAGES
async def test_a_feed_and_an_answer_for_a_member_tell_nothing_of_hosts_and_an_operator_is_told(
    bus: str, books: str
) -> None:
    note = "fan swap by ann"
    async with (
        cloud(bus, books) as setup,
        setup.placement(),
        setup.scheduler(),
        setup.listening("shop", exchange=FEED) as fed,
    ):
        for host in ("vault-1", "vault-2"):
            await setup.add_hosts(host, vcpu=7919)
        await setup.client.ask(SetHost(host="vault-1", mode="draining", reason=note))
        await register(setup, "a", "shop")
        await until_fed(setup, "shop", fed)
        large = a_build(1, project="shop", flavor=Flavor(vcpus=8000))
        await setup.built(large, "error")

        def secrets_in(message: Message) -> list[str]:
            text = msgspec.json.encode(message).decode()
            return [each for each in ("vault", "7919", note) if each in text]

        failed = await until_heard(fed, InstanceFailed)
        for question in (
            AskPlan(project="shop", request=large),
            AskExplanation(project="shop", instance=instance_of(large), plan_now=True),
            AskInstances(project="shop"),
        ):
            told = await setup.client.ask(question)
            shown = await setup.client.ask(structs.replace(question, for_member=True))
            assert secrets_in(told) == ["vault", "7919", note]
            assert secrets_in(shown) == []

    assert secrets_in(failed) == []
    assert [(each.step, each.removed) for each in funnel_of(failed.instance).steps] == [
        ("enabled", 1),
        ("capacity", 1),
    ]


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


async def send_each(broker: Broker, exchange: str, requests: Sequence[Message], project: str) -> None:
    """Each request in a parcel of its own, as the program in docs/bus.md publishes it."""
    parcels = [
        Parcel(exchange, f"build.request.{project}", line(each), content_type=PLAIN, mandatory=True)
        for each in requests
    ]
    async with connected(broker) as connection:
        assert {*await publish(connection, *parcels)} == {Receipt.CONFIRMED}


async def give_queue(setup: Cloud, *applications: Application) -> None:
    for each in applications:
        await setup.brokers.api.declare(objects_of_application(each))


def wrong(number: int, project: str) -> Message:
    """It is answered without a host, which makes a flood of it cheap to test."""
    return a_build(number, project=project, flavor=structs.replace(SMALL, vcpus=-1))


@BUSES
@pytest.mark.timeout(180)
async def test_a_flood_of_one_application_delays_the_boot_of_another_by_a_few_batches(
    bus: str, books: str
) -> None:
    async with a_cloud(bus, books) as setup, setup.listening("build.#") as heard:
        await give_queue(setup, SHOP, BANK)
        async with setup.scheduler():
            await register(setup, SHOP.name, *SHOP.projects)
            await register(setup, BANK.name, *BANK.projects)
            await setup.add_hosts("h1")
        flood = [wrong(number, "shop") for number in range(1, FLOOD + 1)]
        await send_each(setup.brokers.api.broker(SHOP.user), SHOP.exchange, flood, "shop")
        late = a_build(FLOOD + 1, project="bank")
        await send_each(setup.brokers.api.broker(BANK.user), BANK.exchange, [late], "bank")

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
            await send_each(setup.brokers.api.broker(by.user), by.exchange, requests, by.name)

        async with setup.scheduler():
            # It is registered before it has queues.
            await register(setup, SHOP.name, *SHOP.projects)
            await send_each(setup.brokers.api.broker(SHOP.user), API, [wrong(1, "shop")], "shop")
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
            await register(setup, BANK.name, *BANK.projects)
            await by_its_own(4, BANK)
            await until_rejected(4)
