"""The public client and a cloud: requests are built once whatever happens to the broker and to answers, and errors say what is wrong."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID

import pytest

from bus.messages.build import InstanceActive
from bus.messages.stored_names import SetApplication
from bus.topology import objects_of_application
from engine.flavors import Wait
from moor.client import (
    BrokerAway,
    Client,
    Flavor,
    NoHostFound,
    NotAllowed,
    NotFound,
    NotInTime,
    NotSendable,
    Rejected,
)
from tests.contracts.broker_under_test import SHOP
from tests.stories.cloud import Cloud, cloud, cloud_on
from tests.stories.layouts import BOTH, one_broker_with_users
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, BOTH]

SMALL = Flavor(name="small", vcpus=1, ram_mb=1024, root_gb=1)


@asynccontextmanager
async def workers(setup: Cloud, *hosts: str) -> AsyncIterator[None]:
    """Placement and a scheduler, with these hosts in cell c1."""
    async with setup.placement(), setup.scheduler():
        for host in hosts:
            await setup.add_host(host)
        await setup.until_reported(*hosts)
        yield


def client(setup: Cloud, patience_s: float = 30.0) -> Client:
    return Client(setup.brokers.at_api("operator"), patience_s=patience_s)


async def test_a_request_that_was_sent_before_the_broker_restarted_is_built_once(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, client(setup) as moor:
        # The scheduler may read the request before it has heard of the host.
        booting = asyncio.create_task(moor.boot(SMALL, count=3, name="web", wait=Wait(for_s=60)))
        await until_queued(setup)

        await setup.brokers.api.restart()
        async with workers(setup, "h1"):
            request = await booting
            states = await request.until_done()

            assert [each.name for each in states] == ["web-1", "web-2", "web-3"]
            assert [each.id async for each in moor.list_instances()] == sorted(request.instances)
            assert [each.name async for each in moor.list_instances(name="web-2")] == ["web-2"]
            assert [each async for each in moor.list_instances(cell="c2")] == []
            assert sorted(order.instance for order in setup.placed) == sorted(request.instances)
            await setup.until_used(h1=3)


async def until_queued(setup: Cloud) -> None:
    connection = await setup.brokers.at_api("operator").connect()
    await until(lambda: connection.depth("scheduler.requests"), "the request is queued")
    await connection.close()


async def test_a_caller_who_got_no_answer_sends_the_request_again_and_it_is_built_once(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup:
        async with client(setup, patience_s=0.5) as moor:
            with pytest.raises(
                NotInTime, match=r"no worker has answered build\.request within 0\.5 s"
            ) as late:
                await moor.boot(SMALL, count=2)
        request_id = late.value.request_id
        assert request_id is not None

        async with workers(setup, "h1"), client(setup) as moor:
            again = await moor.boot(SMALL, count=2, request_id=request_id)
            await again.until_done()
            found = await moor.find_request(request_id)
            with pytest.raises(Rejected) as other:
                await moor.boot(SMALL, count=3, request_id=request_id)

            assert (again.id, sorted(found.instances)) == (request_id, sorted(again.instances))
            assert (other.value.field, other.value.request_id) == ("request_id", request_id)
            assert len(setup.placed) == 2


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


async def test_what_is_wrong_is_told_by_field_and_value_and_why_there_is_no_host_by_its_funnel(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, client(setup) as moor, workers(setup, "h1"):
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

        with pytest.raises(Rejected, match="it is up, so nothing was evacuated"):
            await moor.evacuate_host("h1")

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


async def test_all_or_nothing_and_a_list_of_many_pages(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, client(setup) as moor, workers(setup, "h1", "h2"):
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
        plan = await moor.plan(SMALL)
        assert plan.fit == 0
        assert {each.host: each.step async for each in moor.verdicts(SMALL)} == {
            "h1": "capacity",
            "h2": "capacity",
        }


async def test_an_application_has_its_own_project_and_no_more(bus: str, books: str) -> None:
    async with AsyncExitStack() as stack:
        brokers = await stack.enter_async_context(one_broker_with_users(bus, SHOP.user))
        await brokers.api.declare(objects_of_application(SHOP))
        setup = await stack.enter_async_context(cloud_on(brokers, books))
        await stack.enter_async_context(workers(setup, "h1"))
        await setup.client.ask(SetApplication(name="shop", projects=SHOP.projects))
        moor = await stack.enter_async_context(
            Client(brokers.api.broker(SHOP.user), project="shop", patience_s=10)
        )
        admin = await stack.enter_async_context(client(setup))
        theirs = await admin.boot(SMALL, project="bank")
        await theirs.until_done()

        ours = await moor.boot(SMALL)
        refused = await asyncio.gather(
            moor.boot(SMALL, project="bank"),
            moor.set_host("h1", "down"),
            moor.list_cells(),
            return_exceptions=True,
        )

        assert [type(each) for each in refused] == [NotAllowed] * 3, refused
        assert [each.state for each in await ours.until_done()] == ["active"]
        assert [each.id async for each in moor.list_instances()] == [*ours.instances]
        with pytest.raises(NotFound):
            await moor.show(theirs.instances[0])
        assert [each.project async for each in admin.list_instances()] == ["bank", "shop"]


async def test_events_are_heard_and_an_iterator_that_is_abandoned_leaves_nothing_behind(
    bus: str, books: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cloud(bus, books) as setup, client(setup) as moor, workers(setup, "h1"):
        hearing = moor.events("instance.active.*")
        first = asyncio.create_task(anext(hearing))
        # Nobody says when the subscription begins, so a request is sent until one is heard.
        while not first.done():
            await (await moor.boot(SMALL)).until_done()
        event = await first
        assert isinstance(event, InstanceActive)
        assert event.instance.state == "active"
    del hearing
    await asyncio.get_running_loop().shutdown_asyncgens()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
