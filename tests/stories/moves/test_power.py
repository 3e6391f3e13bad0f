"""Instances are stopped, started and rebooted: every worker is real. The claim stays while they are stopped, also when they move."""

from uuid import UUID

import pytest

from bus.messages.build import BuildRejected, DeleteInstance, InstancesFound, MoveKind
from bus.messages.moves import AskHistory, HistoryFound
from engine.flavors import InstanceId, RequestId
from tests.stories.layouts import BOTH, STAGES
from tests.stories.moves.test_moves import Movers, movers
from tests.stories.moves.test_moves_fail import SILENT, down, hosts_of_held_time
from tests.waiting import Clock

pytestmark = pytest.mark.asyncio

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
        await here.until_used(h1=1, h2=0)
        for kind in NEED_ONE_THAT_RUNS:
            refused = await here.move(instance, kind, request_id=request(50))
            assert isinstance(refused, BuildRejected)
            assert refused.reason == f"it is stopped: to {kind}, it must be active"
        # To stop what is stopped changes nothing, and so does a copy of that order when it runs again.
        for number in (1, 2, 2):
            again = await here.move(instance, "stop", request_id=request(number))
            assert isinstance(again, InstancesFound)
            assert [each.state for each in again.instances] == ["stopped"]
        await switched(here, instance, "start", 3, "active")
        for number in (1, 2, 3, 4):
            late = await here.move(instance, "start" if number > 2 else "stop", request_id=request(number))
            assert isinstance(late, InstancesFound)
            assert [each.state for each in late.instances] == ["active"]
        other = await here.move(instance, "stop", request_id=request(4))
        assert isinstance(other, BuildRejected)
        assert other.field == "request_id"
        await switched(here, instance, "reboot", 5, "active")
        await here.setup.client.ask(DeleteInstance(instance=instance))
        await here.until_used(h1=0, h2=0)
        gone = await here.move(instance, "start", request_id=request(6))
        assert isinstance(gone, BuildRejected)
        assert gone.reason.startswith(("it is deleting: to start", "it is deleted: to start"))
        unknown = await here.move(InstanceId(UUID(int=77)), "stop", request_id=request(7))
        assert isinstance(unknown, BuildRejected)
        assert unknown.reason == "there is no such instance"

        found = await here.setup.client.ask(AskHistory(instance=instance))
        assert isinstance(found, HistoryFound)
        assert [each.what for each in found.changes] == ["boot", "stop", "start", "reboot", "delete"]


@BOTH
async def test_a_stopped_instance_of_a_lost_host_is_evacuated_and_stays_stopped(bus: str, books: str) -> None:
    held = Clock(0.0)
    async with hosts_of_held_time(bus, books, held, SILENT) as (here, _):
        instance = await here.booted()
        await switched(here, instance, "stop", 1, "stopped")
        held.pass_s(10)
        await down(here, "h1")
        refused = await here.move(instance, "start", request_id=request(2))
        assert isinstance(refused, BuildRejected)
        assert refused.reason == "its host h1 is down: evacuate it"
        await here.move(instance, "evacuate", request_id=request(3))
        assert (await here.until(instance, "stopped", "confirmed")).host == "h2"
        await switched(here, instance, "start", 4, "active")
