"""Instances are offloaded, and unshelved on any host; and stopped, started and rebooted, while their claim stays: every worker is
real. After each story the instance runs on one host, or on none, and only that is held.
"""

import asyncio
from uuid import UUID

import pytest

from bus.messages.build import DeleteInstance, MoveKind
from bus.messages.cell import DestroyInstance
from bus.messages.hosts import SetHost
from bus.messages.moves import AskHistory, HistoryFound
from compute_sim.core.attempts import AttemptRecord, AttemptState, HostOrder, Work
from engine.flavors import InstanceId, RequestId
from laboratory.computes.faults import FailsToBuild, StopsSlowly
from tests.stories.cells.held_driver import HeldDriver
from tests.stories.layouts import BOTH, STAGES
from tests.stories.moves.test_moves import (
    NEVER_MS,
    SILENT,
    Movers,
    down,
    hosts_of_held_time,
    movers,
    script,
    until_empty,
)
from tests.waiting import Clock, until

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
        await here.setup.until_used(h1=0, h2=0)
        await here.move(instance, "unshelve", request_id=THIRD, hosts=("h1",))
        assert (await here.until(instance, "active", "done")).host == "h1"
        await here.setup.until_used(h1=1, h2=0)


@BOTH
async def test_a_delete_while_it_is_offloaded_leaves_nothing(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", script=script(StopsSlowly(stop_ms=NEVER_MS))) as here:
        instance = await here.booted()
        await here.move(instance, "offload")
        await here.setup.delete(instance)
        await here.setup.until_used(h1=0)
        await until_empty(here)


@BOTH
async def test_of_unshelve_and_delete_at_once_nothing_is_left(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2", script=script()) as here:
        instance = await here.booted()
        await here.move(instance, "offload")
        await here.until(instance, "offloaded", "done")
        await asyncio.gather(
            here.setup.client.ask(here.order(instance, "unshelve", request_id=SECOND)),
            here.setup.client.ask(DeleteInstance(instance=instance)),
        )
        await here.setup.until_state(instance, "deleted")
        await here.setup.until_used(h1=0, h2=0)
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


@pytest.mark.parametrize("until_it", ["returns", "is dead"])
@BOTH
async def test_a_host_that_falls_silent_when_it_is_saved_keeps_the_share(
    bus: str, books: str, until_it: str
) -> None:
    held = Clock(0.0)
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
        await here.setup.until_used(h1=1, h2=0)

        if until_it == "returns":
            held.pass_s(10)
        else:
            await here.setup.client.ask(SetHost(host="h1", mode="dead", reason="it burnt", sure=True))
        gone = await here.until(instance, "offloaded", "done")
        assert (gone.host, gone.keeps_share) == ("", False)
        await here.setup.until_used(h1=0, h2=0)
        await here.move(instance, "unshelve", request_id=SECOND)
        assert (await here.until(instance, "active", "done")).host == "h2"


NEED_ONE_THAT_RUNS: tuple[MoveKind, ...] = ("reboot", "live-migrate", "shelve")


def request(number: int) -> RequestId:
    return RequestId(UUID(int=number))


async def switched(here: Movers, instance: InstanceId, kind: MoveKind, number: int, state: str) -> None:
    await here.move(instance, kind, request_id=request(number))
    told = await here.until(instance, state, "done")
    assert told.move is not None
    assert told.move.request_id == request(number)


@STAGES
async def test_an_instance_is_stopped_started_and_rebooted_where_it_is(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2") as here:
        instance = await here.booted()
        await switched(here, instance, "stop", 1, "stopped")
        await here.setup.until_used(h1=1, h2=0)
        for kind in NEED_ONE_THAT_RUNS:
            assert (
                await here.refused(instance, kind, request_id=request(50))
            ).reason == f"it is stopped: to {kind}, it must be active"
        # To stop what is stopped changes nothing, and so does a copy of that order when it runs again.
        for number in (1, 2, 2):
            again = await here.move(instance, "stop", request_id=request(number))
            assert [each.state for each in again.instances] == ["stopped"]
        await switched(here, instance, "start", 3, "active")
        for number in (1, 2, 3, 4):
            late = await here.move(instance, "start" if number > 2 else "stop", request_id=request(number))
            assert [each.state for each in late.instances] == ["active"]
        assert (await here.refused(instance, "stop", request_id=request(4))).field == "request_id"
        await switched(here, instance, "reboot", 5, "active")
        await here.setup.client.ask(DeleteInstance(instance=instance))
        await here.setup.until_used(h1=0, h2=0)
        assert (await here.refused(instance, "start", request_id=request(6))).reason.startswith(
            ("it is deleting: to start", "it is deleted: to start")
        )
        assert (
            await here.refused(InstanceId(UUID(int=77)), "stop", request_id=request(7))
        ).reason == "there is no such instance"

        found = await here.setup.ask(AskHistory(instance=instance), HistoryFound)
        assert [each.what for each in found.changes] == ["boot", "stop", "start", "reboot", "delete"]


@BOTH
async def test_a_stopped_instance_of_a_lost_host_is_evacuated_and_stays_stopped(bus: str, books: str) -> None:
    held = Clock(0.0)
    async with hosts_of_held_time(bus, books, held, SILENT) as (here, _):
        instance = await here.booted()
        await switched(here, instance, "stop", 1, "stopped")
        held.pass_s(10)
        await down(here, "h1")
        assert (
            await here.refused(instance, "start", request_id=request(2))
        ).reason == "its host h1 is down: evacuate it"
        await here.move(instance, "evacuate", request_id=request(3))
        assert (await here.until(instance, "stopped", "confirmed")).host == "h2"
        await switched(here, instance, "start", 4, "active")
