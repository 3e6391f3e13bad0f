"""Unreadable messages in the schedulers' queue: answered where they may be build requests, and never just dropped."""

from uuid import UUID

import pytest
from msgspec import structs

from bus.message import PLAIN, Parcel
from bus.messages.build import BuildRejected
from bus.topology import API
from engine.flavors import RequestId
from tests.contracts.stage import dead_letters, send, until, until_empty
from tests.stories.cloud import Cloud, cloud

pytestmark = pytest.mark.asyncio

ID = RequestId(UUID(int=7))


async def say(setup: Cloud, *bodies: bytes) -> None:
    broker = setup.brokers.at_api("operator")
    await send(broker, *[Parcel(API, "build.request.-", body, content_type=PLAIN) for body in bodies])


async def test_a_build_request_that_cannot_be_read_is_rejected_and_leaves_no_dead_letter() -> None:
    async with (
        cloud("memory", "memory") as setup,
        setup.placement(),
        setup.scheduler(),
        setup.listening("build.rejected") as heard,
    ):
        request = '{"message":{"type":"build.request","request_id":"%s","flavor":{"vcpus":"two"}}}' % ID  # noqa: UP031 - the braces are JSON's
        await say(setup, request.encode(), b'{"message":{"type":"build.request","request_id":"mine"}}')

        await until(lambda: len(heard) == 2, "both are rejected")
        assert [structs.replace(each, reason="") for each in heard if isinstance(each, BuildRejected)] == [
            BuildRejected(request_id=ID, field="flavor.vcpus", value="two", reason=""),
            BuildRejected(request_id=None, field="request_id", value="mine", reason=""),
        ]
        await until_empty(setup.brokers.at_api("operator"), "scheduler.requests")
        assert await dead_letters(setup.brokers.at_api("operator"), 0) == []


async def test_a_message_that_may_be_no_request_is_kept_as_a_dead_letter() -> None:
    async with (
        cloud("memory", "memory") as setup,
        setup.placement(),
        setup.scheduler(),
        setup.listening("build.rejected") as heard,
    ):
        await say(
            setup, b"two instances, please", b'{"message":{"type":"instance.delete","instance":"mine"}}'
        )

        by_reason = {
            letter.parcel.body: letter.reason
            for letter in await dead_letters(setup.brokers.at_api("operator"), 2)
        }
        assert len(by_reason) == 2
        assert (
            'at `$.message.instance`: got "mine"'
            in by_reason[b'{"message":{"type":"instance.delete","instance":"mine"}}']
        )
        # The message is a delete, so no answer calls it a build request.
        await until(lambda: len(heard) == 1, "what has no type is rejected")
        assert isinstance(heard[0], BuildRejected)
        assert (heard[0].field, heard[0].reason) == ("message", by_reason[b"two instances, please"])
