"""Consumers that workers created over the bus, read over HTTP: a client of Placement may write back what it read."""

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.placement import NO_OWNER, ClaimAnswered, Heir, SwapClaim
from bus.workers.station import Station
from engine.inventories import ConsumerId, ResourceAmount, Share
from engine.refusals import Claimed
from tests.api.whole_app import Server, server_over
from tests.contracts.stage import SETTINGS
from tests.stories.cloud import Cloud, a_build, cloud, host_id, instance_of
from tests.stories.layouts import STAGES

pytestmark = pytest.mark.asyncio

CLEANUP = ConsumerId(UUID("6c0b1f9c-58a5-4f4c-9f62-8c1d2d1f5a02"))
MIGRATION = ConsumerId(UUID("6c0b1f9c-58a5-4f4c-9f62-8c1d2d1f5a03"))


@STAGES
async def test_consumers_of_a_boot_and_of_swaps_can_be_written_back_as_they_were_read(
    bus: str, books: str
) -> None:
    async with AsyncExitStack() as stack:
        setup = await stack.enter_async_context(cloud(bus, books))
        await stack.enter_async_context(setup.placement())
        await stack.enter_async_context(setup.scheduler())
        server = await stack.enter_async_context(server_over(setup.books))
        await setup.add_host("first", vcpu=2)
        await setup.until_registered("first")
        owned = structs.replace(a_build(1), project="shop", user="ann")
        nobodys = structs.replace(a_build(2), project="", user="")
        for build in (owned, nobodys):
            await setup.send(build)
            await setup.until_state(instance_of(build), "active")
        await setup.add_host("second", vcpu=2)
        await swap(setup, ConsumerId(instance_of(owned)), Heir(id=CLEANUP, type="CLEANUP"))
        await swap(setup, ConsumerId(instance_of(nobodys)), Heir(id=MIGRATION, type="MIGRATION"))

        instance = await read_and_written_back(server, ConsumerId(instance_of(owned)))
        cleanup = await read_and_written_back(server, CLEANUP)
        other = await read_and_written_back(server, ConsumerId(instance_of(nobodys)))
        migration = await read_and_written_back(server, MIGRATION)

    assert instance == ("INSTANCE", "shop", "ann")
    assert cleanup == ("CLEANUP", "shop", "ann")
    assert other == ("INSTANCE", NO_OWNER, NO_OWNER)
    assert migration == ("MIGRATION", NO_OWNER, NO_OWNER)


async def swap(setup: Cloud, consumer: ConsumerId, heir: Heir) -> None:
    """To the second host."""
    order = SwapClaim(
        cell="c1",
        consumer=consumer,
        held_attempt=1,
        attempt=2,
        issued_at=datetime.now(UTC),
        share=Share(
            host=host_id("second"),
            amounts=(ResourceAmount(provider=host_id("second"), resource="VCPU", amount=1),),
        ),
        heir=heir,
    )
    conductor = Station(setup.brokers.in_cell("c1"), "conductor-that-asks", settings=SETTINGS, asks=True)
    async with setup.running((conductor,), conductor):
        answer = await conductor.ask(order)
    assert isinstance(answer, ClaimAnswered)
    assert answer.verdict == Claimed()


async def read_and_written_back(server: Server, consumer: ConsumerId) -> tuple[str, str, str]:
    """Its type, project and user; the allocations are written back unchanged, as a client does that changes only a
    part.
    """
    path = f"/allocations/{consumer}"
    read: dict[str, Any] = await server.done("GET", path)
    assert read["allocations"], "it holds something"
    await server.done("PUT", path, read)
    again = await server.done("GET", path)
    assert {**again, "consumer_generation": 0, "allocations": {}} == {
        **read,
        "consumer_generation": 0,
        "allocations": {},
    }
    return read["consumer_type"], read["project_id"], read["user_id"]
