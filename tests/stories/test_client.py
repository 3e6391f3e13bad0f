"""The public client and a cloud: requests are built once whatever happens to the broker and to answers, errors say what is wrong; what is stored
for all, flavors and images under names, and the quotas of projects; and a wrong login at RabbitMQ's door.
"""

import asyncio
from collections.abc import Awaitable
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceFailed
from bus.messages.projects import SetApplication
from bus.topology import objects_of_application
from engine.flavors import InstanceId, Wait
from moor.client import (
    BrokerAway,
    Client,
    Flavor,
    NamedImage,
    NoHostFound,
    NotAllowed,
    NotDone,
    NotFound,
    NotInTime,
    NotSendable,
    QuotaState,
    Rejected,
)
from tests.contracts.broker_under_test import SHOP
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.contracts.small_world import connected
from tests.narrowing import must_be, present
from tests.stories.cloud import Cloud, cloud, cloud_on
from tests.stories.layouts import BOTH, layout, one_broker_with_users
from tests.waiting import until

SMALL = Flavor(name="small", vcpus=1, ram_mb=1024, root_gb=1)


def client(setup: Cloud, patience_s: float = 30.0) -> Client:
    return Client(setup.brokers.at_api("operator"), patience_s=patience_s)


@BOTH
async def test_a_request_that_was_sent_before_the_broker_restarted_is_built_once(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, client(setup) as moor:
        # The scheduler may read the request before it has heard of the host.
        booting = asyncio.create_task(moor.boot(SMALL, count=3, name="web", wait=Wait(for_s=60)))
        await until_queued(setup)

        await setup.brokers.api.restart()
        async with setup.scheduling("h1"):
            request = await booting

            assert [each.name for each in await request.until_done()] == ["web-1", "web-2", "web-3"]
            assert [each.id async for each in moor.list_instances()] == sorted(request.instances)
            assert [each.name async for each in moor.list_instances(name="web-2")] == ["web-2"]
            assert [each async for each in moor.list_instances(cell="c2")] == []
            assert sorted(order.instance for order in setup.placed) == sorted(request.instances)
            await setup.until_used(h1=3)


async def until_queued(setup: Cloud) -> None:
    async with connected(setup.brokers.at_api("operator")) as connection:
        await until(lambda: connection.depth("scheduler.requests"), "the request is queued")


@BOTH
async def test_a_caller_who_got_no_answer_sends_the_request_again_and_it_is_built_once(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup:
        async with client(setup, patience_s=0.5) as moor:
            with pytest.raises(
                NotInTime, match=r"no worker has answered build\.request within 0\.5 s"
            ) as late:
                await moor.boot(SMALL, count=2)
        request_id = present(late.value.request_id)

        async with setup.scheduling("h1"), client(setup) as moor:
            again = await moor.boot(SMALL, count=2, request_id=request_id)
            await again.until_done()
            found = await moor.find_request(request_id)
            with pytest.raises(Rejected, match="duplicate id") as other:
                await moor.boot(SMALL, count=3, request_id=request_id)

            assert (again.id, sorted(found.instances)) == (request_id, sorted(again.instances))
            assert (other.value.field, other.value.request_id) == ("request_id", request_id)
            assert len(setup.placed) == 2


@BOTH
async def test_a_client_that_is_closed_lets_nobody_wait(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup:
        async with client(setup) as moor:
            booting = asyncio.create_task(moor.boot(SMALL))
            await until_queued(setup)
            hearing = asyncio.create_task(anext(moor.events("instance.#")))
            await asyncio.sleep(0)
        for waiting in (booting, hearing):
            with pytest.raises(BrokerAway, match="this client was closed"):
                await waiting
        with pytest.raises(RuntimeError, match="the client is not open"):
            await moor.boot(SMALL)


@BOTH
async def test_what_is_wrong_is_told_by_field_and_value_and_why_there_is_no_host_by_its_funnel(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, client(setup) as moor, setup.scheduling("h1"):
        with pytest.raises(Rejected) as negative:
            await moor.boot(Flavor(vcpus=-4))
        assert (negative.value.field, negative.value.value) == ("flavor.vcpus", "-4")
        with pytest.raises(NotSendable) as text:
            await moor.boot(SMALL, count="two")  # type: ignore[arg-type]
        assert (text.value.field, text.value.value) == ("count", "two")
        assert text.value.request_id is not None
        with pytest.raises(NotSendable):
            await moor.boot(SMALL, hosts="h1")

        with pytest.raises(Rejected, match="the states are accepted, waiting"):
            await moor.list_instances(state="actve")  # type: ignore[arg-type]

        giant = await moor.boot(Flavor(vcpus=500), name="giant")
        with pytest.raises(NoHostFound, match=r"giant: .*1 removed by capacity") as nowhere:
            await giant.until_done()
        assert nowhere.value.funnel.hosts == 1
        assert [each.step for each in nowhere.value.funnel.steps] == ["capacity"]
        assert [each.state for each in nowhere.value.states] == ["error"]

        unknown = UUID(int=404)
        for asking in (
            moor.show(unknown),
            moor.delete(*giant.instances, unknown),
            moor.find_request(unknown),
            moor.explain(unknown),
            moor.show_group(unknown),
            moor.show_host("h404"),
        ):
            with pytest.raises(NotFound):
                await asking
        assert (await moor.show(giant.instances[0])).state == "error", "nothing was deleted"


@BOTH
async def test_all_or_nothing_and_a_list_of_many_pages(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, client(setup) as moor, setup.scheduling("h1", "h2"):
        none = await moor.boot(SMALL, count=17, all_or_nothing=True)
        with pytest.raises(NoHostFound):
            await none.until_done()
        every = await moor.boot(SMALL, count=16, all_or_nothing=True)
        await every.until_done()
        more = await moor.boot(SMALL, count=300)
        await more.until_ended()

        listed = [each async for each in moor.list_instances()]
        active = [each.id async for each in moor.list_instances(state="active")]

        assert len(listed) == 17 + 16 + 300
        found = await moor.look(*(each.id for each in listed))
        assert {each.id for each in found.details} == {each.id for each in listed}
        assert len((await moor.explain(more.id)).explanations) == 300
        assert active == sorted(every.instances)
        assert (await moor.plan(SMALL)).fit == 0
        assert {each.host: each.step async for each in moor.verdicts(SMALL)} == {
            "h1": "capacity",
            "h2": "capacity",
        }


@BOTH
async def test_an_application_has_its_own_project_reads_what_is_stored_and_no_more(
    bus: str, books: str
) -> None:
    async with one_broker_with_users(bus, SHOP.user) as brokers:
        await brokers.api.declare(objects_of_application(SHOP))
        async with (
            cloud_on(brokers, books) as setup,
            setup.scheduling("h1"),
            Client(brokers.api.broker(SHOP.user), project="shop", patience_s=10) as moor,
            client(setup) as admin,
        ):
            await setup.client.ask(SetApplication(name="shop", projects=SHOP.projects))
            theirs = await admin.boot(SMALL, project="bank")
            await theirs.until_done()
            await admin.create_flavor(GOLD)
            await admin.create_image(DEBIAN)
            quota = await admin.set_quota("shop", {"VCPU": 3})
            await admin.set_quota("bank", {"VCPU": 3})

            ours = await moor.boot(SMALL)
            refused = await asyncio.gather(
                moor.boot(SMALL, project="bank"),
                moor.set_host("h1", "down"),
                moor.list_cells(),
                moor.create_flavor(GOLD),
                moor.delete_flavor("gold"),
                moor.create_image(DEBIAN),
                moor.set_image("debian", source="x"),
                moor.delete_image("debian"),
                moor.set_quota("shop", {"VCPU": None}),
                moor.show_quota("bank"),
                return_exceptions=True,
            )

            assert [type(each) for each in refused] == [NotAllowed] * 10, refused
            assert [each async for each in moor.list_flavors()] == [GOLD]
            assert [each async for each in moor.list_images()] == [DEBIAN]
            assert [each.state for each in await ours.until_done()] == ["active"]
            mine = await moor.show_quota()
            assert (mine.limits, mine.used["VCPU"]) == (quota.limits, 1)
            assert [each async for each in moor.list_quotas()] == [mine]
            assert [each.id async for each in moor.list_instances()] == [*ours.instances]
            with pytest.raises(NotFound):
                await moor.show(theirs.instances[0])
            assert [each.project async for each in admin.list_instances()] == ["bank", "shop"]


@BOTH
async def test_events_of_its_project_are_heard_and_an_iterator_that_is_abandoned_leaves_nothing_behind(
    bus: str, books: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cloud(bus, books) as setup, client(setup) as moor, setup.scheduling("h1", vcpu=1000):
        hearing = moor.of_project("shop").events("instance.active.*")
        first = asyncio.create_task(anext(hearing))

        async def booted(project: str) -> InstanceId:
            (active,) = await (await moor.boot(SMALL, project=project)).until_done()
            return active.id

        # Nobody says when the subscription begins, so requests are sent until one is heard.
        while not first.done():
            await booted("bank")
            await booted("shop")
        ids = [await booted(project) for project in ("shop", "bank") * 4]
        events = [await first]
        async with asyncio.timeout(20):
            while not isinstance(events[-1], InstanceActive) or events[-1].instance.id != ids[-2]:
                events.append(await anext(hearing))
        told = [each.instance for each in events if isinstance(each, InstanceActive)]
        assert len(told) == len(events)
        assert {each.project for each in told} == {"shop"}
        assert [each.id for each in told][-4:] == ids[::2]
    del hearing
    await asyncio.get_running_loop().shutdown_asyncgens()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@BOTH
async def test_what_became_of_an_instance_is_said_by_its_cell_alone(bus: str, books: str) -> None:
    async with cloud(bus, books, scripted=()) as setup, client(setup) as moor, setup.scheduling("h1"):
        request = await moor.boot(SMALL)
        ended = asyncio.create_task(request.until_ended())
        (known,) = await until(
            lambda: [each for each in request.states if each.cell == "c1"], "the client knows its cell"
        )
        lie = structs.replace(known, cell="c2", state="error", sequence=known.sequence + 99)
        await setup.conductors_in["c2"].publisher.send(InstanceFailed(cell="c2", instance=lie))
        truth = structs.replace(known, state="active", sequence=known.sequence + 1)
        await setup.conductors_in["c1"].publisher.send(InstanceActive(cell="c1", instance=truth))

        assert [(each.cell, each.state) for each in await ended] == [("c1", "active")]


GOLD = Flavor(name="gold", vcpus=2, ram_mb=1024, root_gb=1, extra_specs={"hw:cpu_policy": "shared"})
DEBIAN = NamedImage(name="debian", source="http://images/debian-13", properties={"os_type": "linux"})


async def rejected(call: Awaitable[object]) -> tuple[str, str]:
    with pytest.raises(Rejected) as wrong:
        await call
    return wrong.value.field, wrong.value.value


async def not_found(call: Awaitable[object]) -> tuple[str, str]:
    with pytest.raises(NotFound) as unknown:
        await call
    return unknown.value.what, unknown.value.name


@BOTH
async def test_flavors_are_stored_used_by_name_and_deleted(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, client(setup) as moor, setup.scheduling("h1"):
        assert [await moor.create_flavor(GOLD) for _ in range(2)] == [GOLD, GOLD]
        assert await rejected(moor.create_flavor(Flavor(name="gold", vcpus=4))) == ("flavor.vcpus", "4")
        assert (await rejected(moor.create_flavor(Flavor(vcpus=4))))[0] == "flavor.name"
        many = [f"small-{number:03}" for number in range(205)]
        for name in many:
            await moor.create_flavor(Flavor(name=name, vcpus=1))

        request = await moor.boot("gold")
        assert [each.state for each in await request.until_done()] == ["active"]

        assert await moor.show_flavor("gold") == GOLD
        assert [each.name async for each in moor.list_flavors()] == ["gold", *many]
        assert await moor.delete_flavor("gold") == GOLD
        for call in (moor.delete_flavor("gold"), moor.show_flavor("gold")):
            assert await not_found(call) == ("flavor", "gold")
        for nameless in (moor.delete_flavor(""), moor.show_flavor("")):
            assert await not_found(nameless) == ("flavor", "")
        assert (await moor.show(request.instances[0])).state == "active"


@BOTH
async def test_quotas_are_set_refuse_what_exceeds_them_and_are_removed(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, client(setup) as moor, setup.scheduling("h1"):
        assert await not_found(moor.show_quota("shop")) == ("quota of project", "shop")
        assert (await rejected(moor.show_quota()))[0] == "project"
        quota = await moor.set_quota("shop", {"instances": 5, "VCPU": 3})
        assert quota == QuotaState(project="shop", limits={"instances": 5, "VCPU": 3})
        await moor.set_quota("bank", {"VCPU": 0})

        await (await moor.boot(GOLD, project="shop")).until_done()
        with pytest.raises(NotDone, match="VCPU limit 3, used 2, asked 2"):
            await (await moor.boot(GOLD, project="shop")).until_done()

        used = {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 1, "instances": 1}
        assert await moor.show_quota("shop") == QuotaState(
            project="shop", limits={"instances": 5, "VCPU": 3}, used=used
        )
        assert [each.project async for each in moor.list_quotas()] == ["bank", "shop"]
        # Nothing of an order with a wrong class is done.
        wrong = {"instances": 1, "CUSTOM_LICENCE": 1}
        assert await rejected(moor.set_quota("shop", wrong)) == ("limits", "CUSTOM_LICENCE")
        for nothing in ({}, {"vcpus": 1}, {"VCPU": -1}, {"VCPU": "many"}):
            with pytest.raises(Rejected):
                await moor.set_quota("shop", nothing)  # type: ignore[arg-type]
        assert (await moor.set_quota("shop", {"VCPU": None})).limits == {"instances": 5}
        assert (await moor.set_quota("shop", {"instances": None})).limits == {}
        assert [each.project async for each in moor.list_quotas()] == ["bank"]


@pytest.mark.rabbitmq
async def test_a_wrong_password_and_an_unknown_user_are_told_at_once() -> None:
    async with layout("rabbitmq") as brokers:
        broker = must_be(RabbitMQUnderTest, brokers.api)
        right = broker.url()
        for wrong in (right.replace("@", "x@", 1), right.replace("//", "//nobody", 1)):
            with pytest.raises(NotAllowed):
                async with Client(wrong):
                    pass
        async with Client(right, patience_s=0.2) as moor:
            await broker.unplug()
            with pytest.raises(BrokerAway):
                await moor.list_cells()
