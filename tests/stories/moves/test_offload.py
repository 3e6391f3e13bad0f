"""Instances are offloaded, and unshelved on any host: every worker is real. After each story the instance runs on one host, or on
none, and only that is held.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from bus.messages.build import DeleteInstance
from bus.messages.cell import DestroyInstance
from bus.messages.hosts import SetHost
from compute_sim.core.attempts import AttemptRecord, AttemptState, HostOrder, Work
from engine.flavors import InstanceId, RequestId
from laboratory.computes.faults import FailsToBuild, StopsSlowly
from tests.stories.cells.held_driver import HeldDriver
from tests.stories.layouts import BOTH
from tests.stories.moves.test_moves import Movers, movers
from tests.stories.moves.test_moves_fail import (
    NEVER_MS,
    SILENT,
    down,
    hosts_of_held_time,
    script,
    until_empty,
)
from tests.waiting import Clock, until

pytestmark = pytest.mark.asyncio

SECOND, THIRD = RequestId(UUID(int=1001)), RequestId(UUID(int=1002))


@BOTH
async def test_when_no_host_builds_it_it_is_offloaded_again_and_may_be_unshelved_later(
    bus: str, books: str
) -> None:
    async with movers(bus, books, "h1", "h2", script=script(FailsToBuild(hosts=("h2",)))) as here:
        instance = await here.booted()
        await here.move(instance, "offload")
        await here.until(instance, "offloaded", "done")
        await here.move(instance, "unshelve", request_id=SECOND, hosts=("h2",))
        again = await here.until(instance, "offloaded", "failed")
        assert ([each.host for each in again.failures], again.keeps_share) == (["h2"], False)
        await here.until_used(h1=0, h2=0)
        await here.move(instance, "unshelve", request_id=THIRD, hosts=("h1",))
        assert (await here.until(instance, "active", "done")).host == "h1"
        await here.until_used(h1=1, h2=0)


@BOTH
async def test_a_delete_while_it_is_offloaded_leaves_nothing(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", script=script(StopsSlowly(stop_ms=NEVER_MS))) as here:
        instance = await here.booted()
        await here.move(instance, "offload")
        await here.setup.client.ask(DeleteInstance(instance=instance))
        await here.setup.until_state(instance, "deleted")
        await here.until_used(h1=0)
        await until_empty(here)


@BOTH
async def test_of_unshelve_and_delete_at_once_nothing_is_left(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2", script=script()) as here:
        instance = await here.booted()
        await here.move(instance, "offload")
        await here.until(instance, "offloaded", "done")
        await asyncio.gather(
            here.move(instance, "unshelve", request_id=SECOND),
            here.setup.client.ask(DeleteInstance(instance=instance)),
        )
        await here.setup.until_state(instance, "deleted")
        await here.until_used(h1=0, h2=0)
        await until_empty(here)


class SilentOnceSaved(HeldDriver):
    """The host has told that the instance is saved, and falls silent: the test's clock moves on."""

    destroyed = 0

    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        work = super().look_at(attempt, at_s)
        if attempt.state is AttemptState.STOPPING and not work.left_ms:
            self.clock.pass_s(10)
        return work

    def begin(self, order: HostOrder, at_s: float) -> Work:
        self.destroyed += isinstance(order, DestroyInstance)
        return super().begin(order, at_s)


@asynccontextmanager
async def silent_before_it_tells_of_the_destroy(
    bus: str, books: str, held: Clock[float]
) -> AsyncIterator[tuple[Movers, InstanceId]]:
    async with hosts_of_held_time(bus, books, held, SILENT, SilentOnceSaved) as (here, drivers):
        instance = await here.booted()
        await here.move(instance, "offload")
        (host,) = [each for each in drivers if each.host.name == "h1"]
        assert isinstance(host, SilentOnceSaved)
        # It is reminded, and cannot tell that it has destroyed the instance.
        await until(lambda: host.destroyed >= 1, "it is ordered to destroy what is saved")
        await down(here, "h1")
        await until(lambda: host.destroyed >= 2, "it is reminded")
        await here.until(instance, "moving")
        await here.until_used(h1=1, h2=0)
        yield here, instance


@BOTH
async def test_a_host_that_falls_silent_when_it_is_saved_keeps_the_share_until_it_returns(
    bus: str, books: str
) -> None:
    held = Clock(0.0)
    async with silent_before_it_tells_of_the_destroy(bus, books, held) as (here, instance):
        held.pass_s(10)
        gone = await here.until(instance, "offloaded", "done")
        assert (gone.host, gone.keeps_share) == ("", False)
        await here.until_used(h1=0, h2=0)
        await here.move(instance, "unshelve", request_id=SECOND)
        assert (await here.until(instance, "active", "done")).host == "h2"


@BOTH
async def test_a_host_that_falls_silent_when_it_is_saved_keeps_the_share_until_it_is_dead(
    bus: str, books: str
) -> None:
    async with silent_before_it_tells_of_the_destroy(bus, books, Clock(0.0)) as (here, instance):
        await here.setup.client.ask(SetHost(host="h1", mode="dead", reason="it burnt", sure=True))
        gone = await here.until(instance, "offloaded", "done")
        assert (gone.host, gone.keeps_share) == ("", False)
        await here.until_used(h1=0, h2=0)
