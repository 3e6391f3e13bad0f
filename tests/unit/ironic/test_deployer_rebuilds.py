"""A daemon rebuilds the instance on a node of a simulated Ironic, and everything that may break in between breaks."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from msgspec import structs

from bus.messages.cell import InstanceDestroyed, InstanceRedeployed
from laboratory.ironic import IronicScript, IronicSimSettings, SimulatedNode, available_nodes
from laboratory.ironic.script import NodeLocked, WorkFails
from tests.ironic_clock import LONG_S
from tests.unit.ironic.deployer_stand import DELAYS, QUICK, Stand, lose_answer, lose_request
from tests.unit.ironic.deploys import OTHER_IMAGE, OURS, a_redeploy, an_undeploy

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
UNDEPLOY = an_undeploy(host=STAND_ID)


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


async def test_no_more_is_asked_of_ironic_than_needed_and_nothing_when_the_order_comes_again() -> None:
    stand = Stand(node=an_active_node(), hears=False)
    async with stand.running(), stand.daemon():
        for _ in range(2):
            await stand.order(ORDER)
        await stand.until_said(InstanceRedeployed)
        for _ in range(2):
            await stand.order(ORDER)
        await stand.order(a_redeploy(101, host=stand.id))

    assert [each for each in stand.wire.requests if not each.startswith("GET ")] == [
        "PATCH ",
        "PUT /states/provision",
    ]
    assert stand.answers == [done()] * 3
    assert times_rebuilt(stand) == 1


@HEARING
@pytest.mark.parametrize("how", [lose_request, lose_answer])
@pytest.mark.parametrize("number", range(1, REQUESTS + 1))
async def test_a_lost_request_or_answer_does_no_harm(
    number: int, how: Callable[..., Awaitable[httpx.Response]], *, hears: bool
) -> None:
    stand = Stand(node=an_active_node(), hears=hears)
    stand.wire.events[number] = how
    async with stand.running(), stand.daemon():
        await stand.order(ORDER)
        await stand.until_said(InstanceRedeployed)
        await stand.order(UNDEPLOY)
        await stand.until_said(InstanceDestroyed)
        await stand.until_available()

    assert [type(each) for each in stand.answers] == [InstanceRedeployed, InstanceDestroyed]
    assert stand.answers[0] == done()
    assert times_rebuilt(stand) == 1


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


async def test_a_rebuild_that_ends_while_nobody_owns_the_node_is_done_once() -> None:
    """Ironic's yes was lost with the daemon: only since when the node is active tells that it was rebuilt."""
    stand = Stand(node=an_active_node(), hears=False)
    ordered = asyncio.Event()

    async def die(go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        await go()
        ordered.set()
        return await asyncio.Future[httpx.Response]()

    async def pass_on(go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        if stand.wire.requests[-1] == "PUT /states/provision":
            return await die(go)
        return await go()

    stand.wire.events = dict.fromkeys(range(1, REQUESTS + 1), pass_on)
    async with stand.running():
        async with stand.daemon("d1"):
            await stand.order(ORDER)
            await ordered.wait()
        stand.wire.events.clear()
        await stand.until(lambda: stand.states[-1:] == ["active"], "the node is active")
        async with stand.daemon("d2"):
            await stand.until_said(InstanceRedeployed)

    assert stand.answers == [done()]
    assert times_rebuilt(stand) == 1


async def test_a_rebuild_that_ironic_refuses_is_said_to_leave_the_instance_as_it_was() -> None:
    stand = Stand(node=an_active_node(maintenance=True), hears=False)
    async with stand.running(), stand.daemon():
        await stand.order(ORDER)
        await stand.until_said(InstanceRedeployed)
        (answer,) = stand.answers
        await stand.order(ORDER)

    assert isinstance(answer, InstanceRedeployed)
    assert "is in maintenance" in answer.failure
    assert answer.is_active
    # Said again, it is not tried again.
    assert stand.answers == [answer, answer]
    assert "deploying" not in stand.states


async def test_a_rebuild_that_fails_is_said_with_ironics_words_and_may_be_ordered_again() -> None:
    script = IronicScript(faults=(WorkFails(work="deploy"),))
    stand = Stand(node=an_active_node(), script=script)
    async with stand.running(), stand.daemon():
        await stand.order(ORDER)
        await stand.until_said(InstanceRedeployed)
        (failed,) = stand.answers
        assert isinstance(failed, InstanceRedeployed)
        assert failed.failure.startswith("deploy failed: ")
        assert failed.failure.endswith(str(stand.node.last_error))
        assert not failed.is_active
        assert stand.node.instance_uuid == str(OURS)

        await stand.order(ORDER)
        assert stand.answers == [failed, failed]
        stand.ironic.script = IronicScript()
        await stand.order(a_redeploy(103, host=stand.id))
        await stand.until(lambda: done(103) in stand.answers, "the second rebuild is done")


async def test_a_node_that_is_locked_is_asked_again_until_it_is_free() -> None:
    stand = Stand(node=an_active_node(), script=IronicScript(faults=(NodeLocked(),)))
    async with stand.running(), stand.daemon():
        await stand.order(ORDER)
        await stand.until(lambda: "locked" in repr(stand.row.deploy), "it is locked")
        stand.ironic.script = IronicScript()
        await stand.until_said(InstanceRedeployed)

    assert stand.answers == [done()]


async def test_an_undeploy_ends_a_rebuild_whatever_it_waits_for() -> None:
    slow = IronicSimSettings(delays=structs.replace(DELAYS, deploy_s=LONG_S))
    stand = Stand(node=an_active_node(), settings=slow)
    async with stand.running(), stand.daemon():
        await stand.order(ORDER)
        await stand.until(lambda: stand.node.provision_state == "deploying", "it is being rebuilt")
        await stand.order(UNDEPLOY)
        stand.end_work()
        await stand.until_said(InstanceDestroyed)
        await stand.order(ORDER)
        await stand.until_available()

    assert [type(each) for each in stand.answers] == [InstanceDestroyed, InstanceRedeployed]
    late = stand.answers[1]
    assert isinstance(late, InstanceRedeployed)
    assert (late.failure, late.is_active) == ("attempt 1 was undeployed", False)


async def test_a_later_rebuild_takes_the_place_of_one_that_is_under_way() -> None:
    slow = IronicSimSettings(delays=structs.replace(DELAYS, deploy_s=LONG_S))
    stand = Stand(node=an_active_node(), settings=slow)
    async with stand.running(), stand.daemon():
        await stand.order(ORDER)
        await stand.until(lambda: stand.node.provision_state == "deploying", "it is being rebuilt")
        await stand.order(a_redeploy(103, host=stand.id, image=structs.replace(OTHER_IMAGE, checksum="2c3d")))
        stand.end_work()
        await stand.until(
            lambda: (times_rebuilt(stand), stand.node.provision_state) == (1, "deploying"),
            "the later one is under way",
        )
        stand.end_work()
        await stand.until_said(InstanceRedeployed)

    assert stand.answers == [done(103)]
    assert stand.node.instance_info["image_checksum"] == "2c3d"
    assert times_rebuilt(stand) == 2


async def test_progress_is_said_while_ironic_works_on_it() -> None:
    slow = IronicSimSettings(delays=structs.replace(DELAYS, deploy_s=LONG_S))
    stand = Stand(node=an_active_node(), settings=slow)
    async with stand.running(), stand.daemon(settings=structs.replace(QUICK, progress_s=0.01)):
        await stand.order(ORDER)
        deploying = "provision state is 'deploying'"
        await stand.until(lambda: deploying in repr(stand.said), "it is said that Ironic deploys")
        stand.end_work()
        await stand.until_said(InstanceRedeployed)
