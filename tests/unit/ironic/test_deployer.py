"""A daemon deploys a node of a simulated Ironic, and everything that may break in between breaks."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import httpx
import pytest
from msgspec import structs

from bus.messages.cell import DeployProgressed, InstanceDestroyed, InstanceRedeployed, InstanceSpawned
from engine.flavors import ConfigDriveParts, text_of
from ironic_sync.core.rows import Deployed, NodeRow, Offer
from ironic_sync.core.settling import Order  # noqa: TC001 - like every other import
from laboratory.ironic import IronicSimSettings, SimulatedNode, available_nodes
from tests.ironic_clock import LONG_S
from tests.unit.ironic.deployer_stand import DELAYS, Place, Stand, lose_answer, lose_request
from tests.unit.ironic.deploys import OTHER_IMAGE, OURS, a_redeploy, an_order, an_undeploy

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
async def test_a_daemon_that_dies_at_any_request_of_a_deploy_is_followed_by_one_that_goes_on(
    number: int, *, is_done: bool
) -> None:
    stand = Stand(hears=False)
    died = stand.dies_at(number, is_done=is_done)
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


@pytest.mark.hits(
    "a node is not worked on: this daemon may not act on it",
    "an order to Ironic is not sent: the node is not this daemon's any more",
)
async def test_a_daemon_that_lost_its_place_orders_nothing_more() -> None:
    """It is stopped between two steps; its place is lost meanwhile, as when the process stood still."""
    stand = Stand(hears=False)
    place_of: list[Place] = []

    async def lose_place(go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        place_of[0].is_held = False
        return await go()

    # The node was read; next would be the first order.
    stand.wire.events[1] = lose_place
    async with stand.running(), stand.daemon("d1") as place:
        place_of.append(place)
        await stand.order(an_order(host=stand.id))
        await stand.until(lambda: not place.is_held, "the place is lost")
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


def is_manageable(row: NodeRow) -> bool:
    return row.node is not None and row.node.provision_state == "manageable"


async def test_what_ironic_has_accepted_counts_also_if_the_node_goes_on_before_that_is_written() -> None:
    """Ironic brings a retired node from its cleaning to `manageable`: only the order tells that it was cleaned."""
    stand = Stand(
        node=an_active_node(retired=True),
        settings=IronicSimSettings(delays=structs.replace(DELAYS, clean_s=0.3)),
    )
    came_late: list[str] = []

    async def come_late(go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        await stand.until(lambda: stand.node.provision_state != "deleting", "it is off the node")
        answer = await go()
        await stand.until(lambda: is_manageable(stand.row), "it is heard that the node was cleaned")
        came_late.append(stand.node.provision_state)
        return answer

    # Before it the node was read, and the order was sent.
    stand.wire.events[3] = come_late
    async with stand.running(), stand.daemon():
        was_active = Deployed(cell="c1", instance=OURS, attempt=1, active_at=datetime.fromisoformat(LONG_AGO))
        await stand.writer.change({stand.id: lambda row: structs.replace(row, deployed=was_active)})
        await stand.order(an_undeploy(host=stand.id))
        await stand.until_said(InstanceDestroyed)

    assert came_late == ["manageable"]


LONG_AGO = "2026-03-04T11:00:00+00:00"
# A rebuild and an undeploy take so many requests when nothing breaks; more when something does.
REBUILD_REQUESTS = 14


def an_active_node(state: str = "active", **fields: Any) -> SimulatedNode:
    values: dict[str, Any] = {
        "provision_state": state,
        "provision_updated_at": LONG_AGO,
        "instance_uuid": str(OURS),
        "instance_info": {"image_source": "http://images/debian"},
        **fields,
    }
    return available_nodes(1, **values)[0]


def done(number: int = 102) -> InstanceRedeployed:
    return InstanceRedeployed(cell="c1", instance=OURS, attempt=1, host=STAND_ID, number=number)


def times_rebuilt(stand: Stand) -> int:
    """How often the node became active."""
    return sum(each == ("deploying", "active") for each in itertools.pairwise(stand.states))


STAND_ID = Stand(node=an_active_node()).id
ORDER = a_redeploy(host=STAND_ID, config_drive="http://drives/1")


@HEARING
async def test_a_rebuild_writes_the_new_image_in_place_and_is_said_when_it_is_true(*, hears: bool) -> None:
    stand = Stand(node=an_active_node(), hears=hears)
    async with stand.running(), stand.daemon():
        await stand.order(ORDER)
        await stand.until_said(InstanceRedeployed)
        await stand.until(lambda: not stand.row.answers, "what was said is off the row")

    assert stand.answers == [done()]
    info = stand.node.instance_info
    assert (info["image_source"], info["configdrive"]) == (OTHER_IMAGE.source, "http://drives/1")
    assert (stand.node.instance_uuid, times_rebuilt(stand)) == (str(OURS), 1)
    assert stand.row.deploy is None
    assert stand.row.due_at is None


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, REBUILD_REQUESTS + 1))
async def test_a_daemon_that_dies_at_any_request_of_a_rebuild_is_followed_by_one_that_goes_on(
    number: int, *, is_done: bool
) -> None:
    stand = Stand(node=an_active_node(), hears=False)
    died = stand.dies_at(number, is_done=is_done)
    async with stand.running():
        async with stand.daemon("d1"):
            await stand.order(ORDER)
            await stand.until(
                lambda: died.is_set() or bool(stand.answers), "the rebuild has ended, or its daemon"
            )
        async with stand.daemon("d2"):
            await stand.until_said(InstanceRedeployed)

    assert stand.answers == [done()]
    assert times_rebuilt(stand) == 1
    assert stand.row.deploy is None


Go = Callable[[], Awaitable[httpx.Response]]


async def test_a_daemon_that_loses_a_node_breaks_off_what_it_asks_and_what_it_says() -> None:
    stand = Stand(hears=False)
    stand.takes = lambda message: isinstance(message, DeployProgressed)
    broken_off = asyncio.Event()

    async def stand_still(_: Go) -> httpx.Response:
        try:
            return await asyncio.Future[httpx.Response]()
        finally:
            broken_off.set()

    async with stand.running(), stand.daemon() as place:
        await stand.order(an_order(host=stand.id))
        await stand.until(lambda: bool(stand.unsaid), "an answer waits for the broker")
        stand.wire.events |= dict.fromkeys(range(1, 1000), stand_still)
        await stand.order(an_undeploy(host=stand.id))
        await stand.until(lambda: len(stand.wire.events) < 999, "Ironic does not answer")

        place.lose(stand.id)

        await asyncio.wait_for(broken_off.wait(), 60)
        await stand.until(lambda: all(each.cancelled() for each in stand.unsaid), "nothing is said any more")


@pytest.mark.parametrize("seed", range(12))
async def test_orders_that_are_doubled_and_out_of_order_leave_at_most_the_last_attempt(seed: int) -> None:
    chance = random.Random(seed)
    orders: list[Order] = []
    for attempt in (1, 2, 3):
        orders += [an_order(attempt=attempt, ports=("port-1",))] * chance.choice((1, 2))
        orders += [an_undeploy(attempt=attempt)] * chance.choice((1, 2))
    # Each may come later than it was sent.
    late = {number: number + chance.uniform(0, 4) for number in range(len(orders))}
    orders = [orders[number] for number in sorted(late, key=late.__getitem__)]
    stand = Stand(hears=bool(seed % 2))
    async with stand.running(), stand.daemon():
        for order in orders:
            await stand.order(structs.replace(order, host=stand.id))
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.003, 0.02)))
        await stand.until(lambda: stand.row.deploy is None and not stand.row.answers, "nothing is left to do")
        # A conductor that is told of an attempt it has given up orders it off.
        for attempt in (1, 2, 3):
            await stand.order(an_undeploy(attempt=attempt, host=stand.id))
        await stand.until(lambda: stand.row.deploy is None and not stand.row.answers, "nothing is left to do")
        await stand.until_available()
        assert stand.node.instance_uuid is None

    ended = [each.attempt for each in stand.answers if isinstance(each, InstanceDestroyed)]
    assert {1, 2, 3} <= {*ended}, "each undeploy is answered"
    assert all(each.instance == OURS for each in stand.answers)
