"""Instances on simulated hypervisors are rebuilt in place: every worker is real."""

from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import (
    BuildRejected,
    DeleteInstance,
    Image,
    InstanceId,
    InstancesFound,
    RebuildInstance,
    RequestId,
)
from bus.messages.hosts import SetHost
from compute_sim.laboratory.faults import BuildsSlowly, FailsToBuild
from tests.stories.cells.held_driver import HeldClock, HeldDriver
from tests.stories.cloud import wait_until
from tests.stories.layouts import BOTH, STAGES
from tests.stories.moves.test_moves import Movers, movers
from tests.stories.moves.test_moves_fail import NEVER_MS, SILENT, down, hosts_of_held_time

pytestmark = pytest.mark.asyncio

NEW = Image(source="http://images/fedora", checksum="1b2c")


async def rebuild(here: Movers, instance: InstanceId, number: int = 1, **fields: object) -> Message:
    order = RebuildInstance(request_id=RequestId(UUID(int=2000 + number)), instance=instance, image=NEW)
    return await here.setup.client.ask(structs.replace(order, **fields))


async def until_begun(driver: HeldDriver) -> None:
    async def is_so() -> bool:
        return NEW.source in driver.images()

    await wait_until(is_so, "its host has the order to rebuild it")


@STAGES
async def test_an_active_instance_is_rebuilt_in_place_and_a_repeated_request_changes_nothing(
    bus: str, books: str
) -> None:
    async with movers(bus, books, "h1", "h2") as here:
        instance = await here.booted()
        answer = await rebuild(here, instance)
        assert isinstance(answer, InstancesFound)
        assert (answer.instances[0].state, answer.instances[0].host) == ("rebuilding", "h1")

        rebuilt = await here.until(instance, "active")

        assert rebuilt.rebuild is not None
        assert (rebuilt.rebuild.image, rebuilt.rebuild.failure) == (NEW, "")
        assert (rebuilt.host, rebuilt.attempt, rebuilt.reason) == ("h1", 1, "")
        assert await rebuild(here, instance) == InstancesFound(instances=(rebuilt,))
        await here.until_used(h1=1, h2=0)
        # It moves and is shelved like any other.
        await here.move(instance)
        refused = await rebuild(here, instance, 2)
        assert isinstance(refused, BuildRejected)
        assert (refused.field, refused.value) == ("instance", str(instance))
        await here.until(instance, "moved")
        await here.end(instance, "confirm")
        await here.until(instance, "active", "confirmed")
        await rebuild(here, instance, 3)
        assert (await here.until(instance, "active", "confirmed")).host == "h2"
        await here.setup.client.ask(DeleteInstance(instance=instance))
        await here.until_used(h1=0, h2=0)


@BOTH
async def test_a_rebuild_that_fails_says_why_keeps_its_host_and_can_be_asked_again(
    bus: str, books: str
) -> None:
    held, fault = HeldClock(), FailsToBuild(hosts=("h1",), after_s=10, for_s=10, reason="no disk")
    async with hosts_of_held_time(bus, books, held, fault) as (here, _):
        instance = await here.booted()
        held.move(10)
        await rebuild(here, instance)

        failed = await here.until(instance, "error")

        assert failed.reason == "its rebuild failed: no disk"
        assert (failed.host, failed.attempt, failed.keeps_share) == ("h1", 1, True)
        await here.until_used(h1=1, h2=0)
        held.move(10)
        await rebuild(here, instance, 2)
        active = await here.until(instance, "active")
        assert active.rebuild is not None
        assert (active.rebuild.failure, active.reason, active.keeps_share) == ("", "", False)
        await here.until_used(h1=1, h2=0)


@BOTH
async def test_a_host_that_is_lost_in_a_rebuild_is_asked_until_it_says_how_it_ended(
    bus: str, books: str
) -> None:
    held = HeldClock()
    async with hosts_of_held_time(bus, books, held, SILENT) as (here, (driver, _)):
        instance = await here.booted()
        held.move(10)
        await rebuild(here, instance)
        await until_begun(driver)
        await down(here, "h1")

        failed = await here.until(instance, "error")

        assert failed.reason == "its rebuild failed: the host is set down: no power"
        refused = await rebuild(here, instance, 2)
        assert isinstance(refused, BuildRejected)
        assert (refused.field, refused.reason) == ("instance", "its host h1 is down")
        # Its answer was lost. It is asked again.
        held.move(10)
        active = await here.until(instance, "active")
        assert active.rebuild is not None
        assert (active.host, active.attempt, active.rebuild.failure) == ("h1", 1, "")
        await here.setup.client.ask(SetHost(host="h1", mode="up"))
        await here.until_used(h1=1, h2=0)


@BOTH
async def test_a_delete_in_the_middle_of_a_rebuild_leaves_nothing_on_the_host(bus: str, books: str) -> None:
    held, slow = HeldClock(), BuildsSlowly(hosts=("h1",), spawn_ms=NEVER_MS, after_s=10)
    async with hosts_of_held_time(bus, books, held, slow) as (here, (driver, _)):
        instance = await here.booted()
        held.move(10)
        await rebuild(here, instance)
        await until_begun(driver)
        refused = await rebuild(here, instance, 2)
        assert isinstance(refused, BuildRejected)
        assert "it is rebuilt already, by request" in refused.reason

        await here.setup.client.ask(DeleteInstance(instance=instance))

        await here.setup.until_state(instance, "deleted")
        await here.until_used(h1=0, h2=0)
