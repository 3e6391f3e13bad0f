"""A daemon rebuilds the instance on a node of a simulated Ironic, and everything that may break in between breaks."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from bus.messages.cell import InstanceRedeployed
from laboratory.ironic import SimulatedNode, available_nodes
from tests.unit.ironic.deployer_stand import Stand
from tests.unit.ironic.deploys import OTHER_IMAGE, OURS, a_redeploy

pytestmark = pytest.mark.asyncio

HEARING = pytest.mark.parametrize("hears", [True, False], ids=["notified", "not notified"])
LONG_AGO = "2026-03-04T11:00:00+00:00"
# A rebuild and an undeploy take so many requests when nothing breaks; more when something does.
REQUESTS = 14


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
@pytest.mark.parametrize("number", range(1, REQUESTS + 1))
async def test_a_daemon_that_dies_at_any_request_is_followed_by_one_that_goes_on(
    number: int, *, is_done: bool
) -> None:
    stand = Stand(node=an_active_node(), hears=False)
    died = asyncio.Event()

    async def die(go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        if is_done:
            await go()
        died.set()
        return await asyncio.Future[httpx.Response]()

    stand.wire.events[number] = die
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
