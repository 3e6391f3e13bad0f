"""A daemon deploys a node of a simulated Ironic, and everything that may break in between breaks."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import httpx
import pytest
from msgspec import structs

from bus.messages.cell import DeployProgressed, InstanceDestroyed, InstanceSpawned, SpawnFailed
from engine.flavors import ConfigDriveParts, text_of
from ironic_sync.core.rows import Offer
from laboratory.ironic import IronicScript, IronicSimSettings, available_nodes
from laboratory.ironic.script import NodeLocked, WorkFails
from tests.ironic_clients.nodes import create, delete
from tests.ironic_clock import LONG_S
from tests.unit.ironic.deployer_stand import DELAYS, QUICK, Place, Stand, lose_answer, lose_request
from tests.unit.ironic.deploys import OURS, THEIRS, an_order, an_undeploy

pytestmark = pytest.mark.asyncio

HEARING = pytest.mark.parametrize("hears", [True, False], ids=["notified", "not notified"])


@HEARING
async def test_a_node_is_deployed_and_undeployed_and_each_end_is_said_when_it_is_true(*, hears: bool) -> None:
    stand = Stand(hears=hears)
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=("port-1",), config_drive="http://drives/1"))
        await stand.until_said(InstanceSpawned)
        node = stand.node
        assert (node.vifs, node.instance_info["configdrive"]) == (("port-1",), "http://drives/1")
        await stand.until(lambda: not stand.row.answers, "what was said is off the row")

        await stand.order(an_undeploy(host=stand.id))
        await stand.until_said(InstanceDestroyed)
        await stand.until_available()

    assert [type(each) for each in stand.answers] == [InstanceSpawned, InstanceDestroyed]
    assert stand.row.deploy is None
    assert stand.row.due_at is None


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


async def test_what_another_daemon_hears_is_looked_at_without_waiting_for_the_next_reading() -> None:
    stand = Stand(elsewhere=True)
    async with stand.running(), stand.daemon(settings=structs.replace(QUICK, deploy_read_s=3600.0)):
        await stand.order(an_order(host=stand.id))
        await stand.until_said(InstanceSpawned)
        await stand.order(an_undeploy(host=stand.id))
        await stand.until_said(InstanceDestroyed)


async def test_what_another_daemon_hears_during_a_look_is_looked_at_without_waiting_for_the_next_reading() -> (
    None
):
    slow = structs.replace(DELAYS, deploy_s=LONG_S)
    stand = Stand(elsewhere=True, settings=IronicSimSettings(delays=slow))

    async def answer_late(go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        answer = await go()
        stand.end_work()
        await stand.until(
            lambda: stand.row.node is not None and stand.row.node.provision_state == "active",
            "the other daemon heard that it is active",
        )
        return answer

    # Read, patch, validate, order; then the node is read, and is being deployed.
    stand.wire.events[5] = answer_late
    async with stand.running(), stand.daemon(settings=structs.replace(QUICK, deploy_read_s=3600.0)):
        await stand.order(an_order(host=stand.id))
        await stand.until_said(InstanceSpawned)
    assert not stand.wire.events


# A deploy and an undeploy take at least so many requests when nothing breaks.
REQUESTS = 11


async def requests_of_one() -> list[str]:
    stand = Stand(hears=False)
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=("port-1",)))
        await stand.until_said(InstanceSpawned)
        await stand.order(an_undeploy(host=stand.id))
        await stand.until_said(InstanceDestroyed)
    return stand.wire.requests


async def test_no_more_is_asked_of_ironic_than_needed() -> None:
    orders = [each for each in await requests_of_one() if not each.startswith("GET ")]

    assert orders == ["PATCH ", "POST /vifs", "PUT /states/provision", "PUT /states/provision"]


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


async def test_what_is_to_be_said_outlives_the_daemon() -> None:
    stand = Stand()
    stand.takes = lambda message: isinstance(message, DeployProgressed)
    async with stand.running():
        async with stand.daemon("d1"):
            await stand.order(an_order(host=stand.id))
            await stand.until(lambda: bool(stand.row.answers), "the answer is on the row")
        stand.takes = lambda _: True
        async with stand.daemon("d2"):
            await stand.until_said(InstanceSpawned)
            await stand.until(lambda: not stand.row.answers, "it is said, and off the row")


async def test_nothing_is_deployed_before_the_new_owner_has_read_the_node() -> None:
    stand = Stand()
    async with stand.running(), stand.daemon("d1", reads=False) as place:
        await stand.order(an_order(host=stand.id))
        await stand.until_looked()
        assert stand.wire.requests == []

        place.owned[stand.id] = await stand.give_to("d1")
        await stand.until_said(InstanceSpawned)


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


async def test_a_daemon_whose_node_went_to_another_writes_nothing_of_what_it_saw() -> None:
    stand = Stand(hears=False)

    async def give_away(go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        await stand.give_to("d2", reads=False)
        return await go()

    stand.wire.events[1] = give_away
    async with stand.running(), stand.daemon("d1"):
        stand.ironic.set_maintenance(str(stand.id), is_on=True)
        await stand.order(an_order(host=stand.id, attempt=1))
        deploy = stand.row.deploy
        assert deploy is not None
        await stand.until(lambda: stand.row.owner == "d2", "it went to another")
        await stand.until_looked()

        assert stand.row.deploy == deploy
        assert stand.answers == []


async def test_a_deploy_that_fails_is_cleaned_up_before_it_is_said() -> None:
    stand = Stand(script=IronicScript(faults=(WorkFails(work="deploy"),)))
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=("port-1",)))
        await stand.until_said(SpawnFailed)
        assert stand.node.provision_state in ("cleaning", "available")
        (failed,) = stand.answers
        assert isinstance(failed, SpawnFailed)
        assert failed.reason.startswith("deploy failed: ")

        await stand.until_available()
        # It comes again, and is answered again.
        await stand.order(an_order(host=stand.id, ports=("port-1",)))
        assert stand.answers == [failed, failed]
        assert stand.row.deploy is None


async def test_what_ironic_refuses_fails_with_its_words_and_leaves_nothing() -> None:
    nodes = available_nodes(1, deploy_interface="direct")
    stand = Stand(node=nodes[0])
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, image=None, ports=("port-1",)))
        await stand.until_said(SpawnFailed)
        await stand.until_available()

    (failed,) = stand.answers
    assert isinstance(failed, SpawnFailed)
    assert "no image_source" in failed.reason


async def test_more_ports_than_the_node_has_fail_and_are_detached_again() -> None:
    stand = Stand(settings=IronicSimSettings(delays=DELAYS, ports_count=1))
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=("port-1", "port-2")))
        await stand.until_said(SpawnFailed)
        await stand.until_available()
    assert stand.states.count("deploying") == 0


async def test_a_node_with_anothers_instance_is_left_alone() -> None:
    stand = Stand(hears=False)
    async with stand.running(), stand.daemon():
        # Nobody told us.
        stand.ironic.patch(str(stand.id), [{"op": "add", "path": "/instance_uuid", "value": str(THEIRS)}])
        before = stand.node
        await stand.order(an_order(host=stand.id))
        await stand.until_said(SpawnFailed)
        await stand.order(an_undeploy(host=stand.id))
        await stand.until_said(InstanceDestroyed)

        assert stand.node == before


async def test_a_locked_node_and_an_ironic_that_is_away_are_waited_for() -> None:
    stand = Stand(script=IronicScript(faults=(NodeLocked(),)))
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id))
        await stand.until(lambda: "locked" in (stand.row.deploy or an_order()).__repr__(), "it is locked")
        stand.ironic.script = IronicScript()
        stand.ironic.go_away(LONG_S, refuses=True)
        await stand.until(lambda: "cannot be reached" in repr(stand.row.deploy), "Ironic is away")
        assert stand.said == []
        stand.ironic.come_back()
        await stand.until_said(InstanceSpawned)


@HEARING
async def test_maintenance_in_the_middle_of_a_deploy_ends_it(*, hears: bool) -> None:
    slow = structs.replace(DELAYS, agent_call_s=LONG_S)
    (node,) = available_nodes(1, deploy_interface="direct")
    stand = Stand(node=node, hears=hears, settings=IronicSimSettings(delays=slow))
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id))
        await stand.until(lambda: stand.node.provision_state == "wait call-back", "it waits for the agent")
        stand.ironic.set_maintenance(str(stand.id), is_on=True, reason="smoke")
        await stand.until_said(SpawnFailed)

    (failed,) = stand.answers
    assert isinstance(failed, SpawnFailed)
    assert failed.reason == "the node was put in maintenance while it was deployed: smoke"


@pytest.mark.parametrize("requests", [0, 1, 3, 5, 7])
async def test_an_undeploy_in_the_middle_of_a_deploy_ends_it_whatever_it_does(requests: int) -> None:
    stand = Stand()
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=("port-1",)))
        await stand.until(lambda: len(stand.wire.requests) >= requests, f"{requests} requests")
        await stand.order(an_undeploy(host=stand.id))
        await stand.until_said(InstanceDestroyed)
        await stand.until_available()
        await stand.order(an_order(host=stand.id))

    assert isinstance(stand.answers[-1], SpawnFailed)
    assert stand.row.deploy is None


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


async def test_a_failed_cleaning_counts_as_off_the_node() -> None:
    stand = Stand(script=IronicScript(faults=(WorkFails(work="clean"),)))
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id))
        await stand.until_said(InstanceSpawned)
        await stand.order(an_undeploy(host=stand.id))
        await stand.until_said(InstanceDestroyed)
        await stand.until(lambda: stand.node.provision_state == "clean failed", "the cleaning failed")
        # Or two notifications came so close that only a sweep, of which there is none here, can say which is the later.
        await stand.until(
            lambda: "clean failed" in repr(stand.row.offer) or stand.row.is_doubted, "it stays reserved"
        )
        assert stand.row.offer is not None
        assert stand.row.offer.reserved


async def test_a_node_that_is_deleted_ends_what_is_done_with_it() -> None:
    stand = Stand(hears=False)
    async with stand.running(), stand.daemon("d1", reads=False) as place:
        await stand.order(an_order(host=stand.id))
        delete(stand.ironic, str(stand.id))
        create(stand.ironic, {"driver": "fake-hardware", "name": "another"})
        place.owned[stand.id] = stand.row.epoch
        await stand.writer.change({stand.id: lambda row: structs.replace(row, read_epoch=row.epoch)})
        await stand.until_said(SpawnFailed)

    (failed,) = stand.answers
    assert isinstance(failed, SpawnFailed)
    assert failed.reason == "the node is deleted in Ironic"
    assert stand.row.is_deleted


async def test_a_404_ends_no_deploy_if_something_else_was_heard_of_the_node_meanwhile() -> None:
    stand = Stand()

    async def answer_404(_: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        await stand.writer.change({stand.id: lambda row: structs.replace(row, report_note="heard")})
        fault = json.dumps({"error_message": json.dumps({"faultstring": "Node could not be found."})})
        return httpx.Response(404, text=fault)

    stand.wire.events[1] = answer_404
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id))
        await stand.until_said(InstanceSpawned)

    assert [type(each) for each in stand.answers] == [InstanceSpawned]
    assert not stand.wire.events


async def test_a_request_that_reaches_ironic_after_the_undeploy_leaves_nothing_behind() -> None:
    stand = Stand()
    async with stand.running(), stand.daemon():
        await stand.order(an_undeploy(host=stand.id))
        await stand.until_said(InstanceDestroyed)
        # Late, from a deploy that nobody knows of any more.
        stand.ironic.patch(str(stand.id), [{"op": "add", "path": "/instance_uuid", "value": str(OURS)}])
        assert stand.node.instance_uuid == str(OURS)
        await stand.until_available()
        await stand.until(lambda: stand.row.deploy is None, "it is over")

    # Nobody waits for that.
    assert [type(each) for each in stand.answers] == [InstanceDestroyed]


async def test_progress_is_said_again_while_ironic_works_and_not_while_it_is_away() -> None:
    slow = structs.replace(DELAYS, deploy_s=LONG_S)
    stand = Stand(settings=IronicSimSettings(delays=slow))
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id))
        await stand.until(lambda: len(stand.said) >= 3, "progress is said again")
        words = [each.words for each in stand.said if isinstance(each, DeployProgressed)]
        assert words == ["provision state is 'deploying'"] * len(words)
        stand.ironic.go_away(60, refuses=True)
        await stand.until(lambda: "cannot be reached" in repr(stand.row.deploy), "Ironic is away")
        said = len(stand.said)
        await stand.until_looked(30)
        assert len(stand.said) == said
        stand.ironic.come_back()
        stand.end_work()
        await stand.until_said(InstanceSpawned)
