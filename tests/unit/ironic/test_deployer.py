"""A daemon deploys a node of a simulated Ironic, and everything that may break in between breaks."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
from msgspec import structs

from bus.messages.cell import InstanceDestroyed, InstanceSpawned
from engine.flavors import ConfigDriveParts, text_of
from ironic_sync.core.rows import Offer
from laboratory.ironic import IronicSimSettings
from tests.ironic_clock import LONG_S
from tests.unit.ironic.deployer_stand import DELAYS, Place, Stand, lose_answer, lose_request
from tests.unit.ironic.deploys import OURS, an_order, an_undeploy

pytestmark = pytest.mark.asyncio

HEARING = pytest.mark.parametrize("hears", [True, False], ids=["notified", "not notified"])


async def test_ironic_makes_the_config_drive_from_user_data_and_metadata() -> None:
    stand = Stand()
    parts = ConfigDriveParts(user_data="#!/bin/sh\necho up\n", meta_data={"meta": {"role": "db"}})
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, name="Shop DB_1", config_drive=text_of(parts)))
        await stand.until_said(InstanceSpawned)

    assert stand.node.instance_info["configdrive"] == {
        "meta_data": {
            "uuid": str(OURS),
            "name": "Shop DB_1",
            "hostname": "shop-db-1",
            "meta": {"role": "db"},
        },
        "user_data": "#!/bin/sh\necho up\n",
    }


# A deploy and an undeploy take at least so many requests when nothing breaks.
REQUESTS = 11


@HEARING
@pytest.mark.parametrize("how", [lose_request, lose_answer])
@pytest.mark.parametrize("number", range(1, REQUESTS + 1))
async def test_a_lost_request_or_answer_does_no_harm(
    number: int, how: Callable[..., Awaitable[httpx.Response]], *, hears: bool
) -> None:
    stand = Stand(hears=hears)
    stand.wire.events[number] = how
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=("port-1",)))
        await stand.until_said(InstanceSpawned)
        await stand.order(an_undeploy(host=stand.id))
        await stand.until_said(InstanceDestroyed)
        await stand.until_available()

    assert not stand.wire.events
    assert [type(each) for each in stand.answers] == [InstanceSpawned, InstanceDestroyed]
    assert stand.states.count("active") == 1


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, REQUESTS + 1))
async def test_a_daemon_that_dies_at_any_request_is_followed_by_one_that_goes_on(
    number: int, *, is_done: bool
) -> None:
    stand = Stand(hears=False)
    died = asyncio.Event()

    async def die(go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        if is_done:
            await go()
        died.set()
        return await asyncio.Future[httpx.Response]()

    stand.wire.events[number] = die
    async with stand.running():
        async with stand.daemon("d1"):
            await stand.order(an_order(host=stand.id, ports=("port-1",)))
            await stand.until(
                lambda: died.is_set() or bool(stand.answers), "the deploy has ended, or its daemon"
            )
            if not died.is_set():
                await stand.order(an_undeploy(host=stand.id))
                await stand.until(died.is_set, "the undeploy is under way, and its daemon has ended")
        async with stand.daemon("d2"):
            await stand.until_said(InstanceSpawned)
            await stand.order(an_undeploy(host=stand.id))
            await stand.until_said(InstanceDestroyed)
            await stand.until_available()

    assert stand.states.count("active") == 1
    assert stand.row.deploy is None


async def test_a_daemon_that_lost_its_place_orders_nothing_more() -> None:
    """It is stopped between two steps; its place is lost meanwhile, as when the process stood still."""
    stand = Stand(hears=False)
    place_of: list[Place] = []

    async def lose_place(go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        place_of[0].may_act = False
        return await go()

    # The node was read; next would be the first order.
    stand.wire.events[1] = lose_place
    async with stand.running(), stand.daemon("d1") as place:
        place_of.append(place)
        await stand.order(an_order(host=stand.id))
        await stand.until(lambda: not place.may_act, "the place is lost")
        await stand.until_looked()

        assert {each.split()[0] for each in stand.wire.requests} == {"GET"}
        assert stand.node.instance_uuid is None


async def test_a_claim_ends_only_when_placement_holds_the_node() -> None:
    slow = structs.replace(DELAYS, clean_s=LONG_S)
    stand = Stand(settings=IronicSimSettings(delays=slow))
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id))
        await stand.until_said(InstanceSpawned)
        stand.is_placed = False
        offered = Offer(resource_class="CUSTOM_BAREMETAL", reserved=False)
        await stand.writer.change({stand.id: lambda row: structs.replace(row, reported=offered)})
        await stand.order(an_undeploy(host=stand.id))
        await stand.until(lambda: stand.node.provision_state == "cleaning", "it is off the node")
        await stand.until_looked()
        assert [type(each) for each in stand.answers] == [InstanceSpawned]

        await stand.place_again()
        await stand.until_said(InstanceDestroyed)
