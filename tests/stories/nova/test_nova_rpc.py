"""Nova's RPC as it goes wrong: messages that no Nova sends, callers that are gone, messages that come twice, workers that die."""

import json
from uuid import uuid4

import pytest

from tests.stories.nova.conductor import TOKEN, asked_for, failure_of
from tests.stories.nova.nova_world import an_instance, nova_world, scheduled
from tests.unit.nova.recorded import enveloped

pytestmark = pytest.mark.rabbitmq


async def test_messages_that_no_nova_sends_are_dropped_and_logged_without_their_secrets_and_the_worker_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrong = {
        "no JSON": (b"\xff\xfe", "these bytes are no JSON"),
        "another envelope": (enveloped({"method": "x"}, "3.0"), "this version of the envelope is unknown"),
        "a forged reply queue": (
            enveloped(
                {
                    "method": "select_destinations",
                    "args": {},
                    "_msg_id": "1",
                    "_reply_q": "scheduler",
                    "_context_auth_token": TOKEN,
                }
            ),
            "it must be a queue of oslo.messaging's for answers",
        ),
        "no method": (enveloped({"args": {}}), "method"),
        "a cast of a call": (
            enveloped({"method": "select_destinations", "args": {}, "version": "4.5"}),
            "is no cast that is known here",
        ),
        "a cast of a later version": (
            enveloped({"method": "update_aggregates", "args": {}, "version": "5.0"}),
            "is known up to version 4.5",
        ),
        "a cast without its object": (
            enveloped({"method": "update_instance_info", "args": {"host_name": "h1"}, "version": "4.2"}),
            "instance_info",
        ),
    }
    async with nova_world() as world:
        await world.add("h1")
        async with world.scheduler() as metrics:
            for body, _ in wrong.values():
                await world.conductor.publish(body)
            await world.until_ended(metrics, "unreadable", len(wrong))
            assert await world.conductor.select(an_instance())

    dropped = [each for each in caplog.messages if "is dropped" in each]
    assert len(dropped) == len(wrong)
    for name, (_, reason) in wrong.items():
        assert any(reason in each for each in dropped), name
    assert TOKEN not in caplog.text


async def test_calls_that_cannot_be_served_are_answered_with_the_error_that_oslo_has_for_it() -> None:
    async with scheduled("h1") as world:
        for version in ("4.6", "5.0"):
            said = await world.conductor.call("select_destinations", {}, version=version)
            assert json.loads(said["failure"])["class"] == "UnsupportedVersion"
        said = await world.conductor.call("select_nothing", {})
        assert json.loads(said["failure"])["class"] == "NoSuchMethod"
        assert "instance_uuids" in failure_of(await world.conductor.call("select_destinations", {}))
        said = await world.conductor.call("ping", {"arg": 7}, version="1.0", namespace="baseapi")
        assert said["result"] == {"service": "scheduler", "arg": 7}


async def test_a_call_that_comes_twice_is_decided_and_answered_once() -> None:
    async with nova_world() as world:
        await world.add("h1", "h2")
        instance = an_instance()
        async with world.scheduler():
            id_, unique = uuid4().hex, uuid4().hex
            for _ in range(2):
                await world.conductor.send(
                    "select_destinations", asked_for(instance), _msg_id=id_, _unique_id=unique
                )
            await world.conductor.until_answered(id_)
            await world.conductor.select(an_instance())

        assert len(world.conductor.heard[id_]) == 1
        assert len(await world.held(instance)) == 1


async def test_a_request_that_its_caller_gave_up_before_it_was_taken_claims_nothing() -> None:
    async with nova_world() as world:
        await world.add("h1")
        late = an_instance()
        async with world.scheduler():
            await world.conductor.send("select_destinations", asked_for(late), expires_s=0.001)
            await world.conductor.select(an_instance())

        assert await world.held(late) == {}


async def test_a_call_under_way_is_answered_once_although_the_connection_broke_meanwhile() -> None:
    async with nova_world() as world:
        await world.add("h1", "h2")
        instance = an_instance()
        async with world.scheduler():
            await world.conductor.select(an_instance())
            async with world.without_placement():
                id_ = await world.conductor.send("select_destinations", asked_for(instance))
                # As a network breaks the connections to Nova's broker.
                await world.broker.unplug()
                await world.broker.plug_in()
                await world.until_heard()
            said = await world.conductor.until_answered(id_)
            await world.conductor.select(an_instance())

        assert said["failure"] is None
        assert [each["ending"] for each in world.conductor.heard[id_]] == [True]
        (chosen,) = said["result"]
        assert [*await world.held(instance)] == [chosen[0]["nova_object.data"]["service_host"]]
