"""What reaches the schedulers' queue and cannot be read: answered where it may be a build request, and never just gone."""

from uuid import UUID

import pytest
from msgspec import structs

from bus.broker import PLAIN, Parcel
from bus.messages.build import BuildRejected, RequestId
from bus.topology import API
from tests.contracts.stage import dead_letters, send, until, until_empty
from tests.stories.cloud import Cloud, cloud

pytestmark = pytest.mark.asyncio

ID = RequestId(UUID(int=7))


async def say(here: Cloud, *bodies: bytes) -> None:
    broker = here.brokers.at_api("operator")
    await send(broker, *[Parcel(API, "build.request.-", body, content_type=PLAIN) for body in bodies])


async def test_a_build_request_that_cannot_be_read_is_rejected_and_leaves_no_dead_letter() -> None:
    async with (
        cloud("memory", "memory") as here,
        here.placement(),
        here.scheduler(),
        here.listening("build.rejected") as heard,
    ):
        request = '{"message":{"type":"build.request","request_id":"%s","flavor":{"vcpus":"two"}}}' % ID  # noqa: UP031 - the braces are JSON's
        await say(here, request.encode(), b'{"message":{"type":"build.request","request_id":"mine"}}')

        await until(lambda: len(heard) == 2, "both are rejected")
        assert [structs.replace(each, reason="") for each in heard if isinstance(each, BuildRejected)] == [
            BuildRejected(request_id=ID, field="flavor.vcpus", value="two", reason=""),
            BuildRejected(request_id=None, field="request_id", value="mine", reason=""),
        ]
        await until_empty(here.brokers.at_api("operator"), "scheduler.requests")
        assert await dead_letters(here.brokers.at_api("operator"), 0) == []


async def test_what_may_not_even_be_a_request_is_kept_for_a_person() -> None:
    async with (
        cloud("memory", "memory") as here,
        here.placement(),
        here.scheduler(),
        here.listening("build.rejected") as heard,
    ):
        await say(here, b"two instances, please", b'{"message":{"type":"instance.delete","instance":"mine"}}')

        by_reason = {
            letter.body: letter.reason for letter in await dead_letters(here.brokers.at_api("operator"), 2)
        }
        assert len(by_reason) == 2
        assert (
            'at `$.message.instance`: got "mine"'
            in by_reason[b'{"message":{"type":"instance.delete","instance":"mine"}}']
        )
        # Nobody says of a delete that it was a build.
        await until(lambda: len(heard) == 1, "what has no type is rejected")
        assert isinstance(heard[0], BuildRejected)
        assert (heard[0].field, heard[0].reason) == ("message", by_reason[b"two instances, please"])
