"""Moves that wait for room: every worker is real. A host has room for one instance of this size."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import DeleteInstance, InstancesFound, InstanceState
from bus.messages.hosts import SetHost
from bus.messages.moves import AskHistory, AskMoves, EndMove, HistoryFound, MovesFound, MoveWait
from bus.messages.stored_names import CreateGroup
from engine.flavors import Flavor, InstanceId, JoinedGroup, RequestId, Wait
from laboratory.computes.hosts import HostSize, SimulatedHost
from tests.contracts.conductor_stores import open_conductor_store
from tests.stories.cloud import QUICK, a_build, cloud, instance_of
from tests.stories.layouts import EMBEDDED, STAGES
from tests.stories.moves.test_groups_move import GROUP
from tests.stories.moves.test_moves import NARROW, SMALL, Movers, movers
from tests.stories.moves.test_moves_fail import down
from tests.waiting import until

pytestmark = pytest.mark.asyncio

OTHER = RequestId(UUID(int=2000))
WHOLE = Flavor(name="whole", vcpus=1, ram_mb=HostSize().ram_mb * 6 // 10, root_gb=1)
LONG = MoveWait(for_s=3600)


async def booted(here: Movers, number: int, host: str) -> InstanceId:
    build = a_build(number, flavor=WHOLE, hosts=(host,))
    await here.setup.send(build)
    assert (await here.setup.until_state(instance_of(build), "active")).host == host
    return instance_of(build)


async def deleted(here: Movers, instance: InstanceId) -> None:
    await here.setup.client.ask(DeleteInstance(instance=instance))
    await here.setup.until_state(instance, "deleted")


@asynccontextmanager
async def offloaded(bus: str, books: str) -> AsyncIterator[tuple[Movers, InstanceId, InstanceId]]:
    """An offloaded instance, and one that has taken its host, which is the only one."""
    async with movers(bus, books, "h1") as here:
        saved = await booted(here, 1, "h1")
        await here.move(saved, "offload", request_id=RequestId(UUID(int=999)))
        await here.until(saved, "offloaded", "done")
        await here.until_used(h1=0)
        yield here, saved, await booted(here, 2, "h1")


async def waits(here: Movers, instance: InstanceId) -> InstanceState:
    told = await here.setup.instance(instance)
    assert told is not None
    assert told.waiting is not None, told
    return told


async def ends(here: Movers, instance: InstanceId, outcome: str) -> InstanceState:
    ended = await until(
        lambda: here.setup.instance(instance),
        f"the move of {instance} is {outcome}",
        lambda told: told.move and told.move.outcome == outcome,
    )
    assert ended.waiting is None
    return ended


@STAGES
async def test_an_unshelve_into_a_full_cloud_waits_and_gets_the_room(bus: str, books: str) -> None:
    async with offloaded(bus, books) as (here, saved, full):
        answer = await here.move(saved, "unshelve", wait=structs.replace(LONG, priority=7))

        assert isinstance(answer, InstancesFound), answer
        (told,) = answer.instances
        assert told.state == "offloaded"
        assert told.waiting is not None
        assert (told.waiting.priority, told.waiting.since) == (7, told.changed_at)
        assert told.waiting.reason.startswith("no host among 1: 1 removed by capacity")
        assert told.no_valid_host is not None
        again = await here.move(saved, "unshelve", wait=structs.replace(LONG, priority=7))
        assert isinstance(again, InstancesFound), again

        await deleted(here, full)

        there = await here.until(saved, "active", "done")
        assert (there.host, there.waiting, there.no_valid_host) == ("h1", None, None)
        await here.until_used(h1=1)


@STAGES
async def test_the_history_has_one_entry_of_a_move_that_waited(bus: str, books: str) -> None:
    async with offloaded(bus, books) as (here, saved, full):
        await here.move(saved, "unshelve", wait=LONG)
        going = await here.setup.client.ask(AskMoves())
        assert isinstance(going, MovesFound)
        assert [(each.what, each.outcome) for each in going.moves] == [("unshelve", "waiting")]
        assert going.moves[0].failure.startswith("waits for room until ")
        await deleted(here, full)
        await here.until(saved, "active", "done")

        found = await here.setup.client.ask(AskHistory(instance=saved))

        assert isinstance(found, HistoryFound)
        assert [(each.what, each.outcome, each.failure) for each in found.changes] == [
            ("boot", "active", ""),
            ("offload", "done", ""),
            ("unshelve", "done", ""),
        ]
        assert found.changes[2].asked_at == going.moves[0].asked_at
        assert await here.setup.client.ask(AskMoves()) == MovesFound(moves=())


@STAGES
async def test_an_evacuation_waits_by_default_and_goes_before_builds(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2") as here:
        lost, full = await booted(here, 1, "h1"), await booted(here, 2, "h2")
        await down(here, "h1")
        build = a_build(3, flavor=WHOLE, wait=Wait(for_s=3600, priority=100))
        await here.setup.send(build)
        await here.setup.until_state(instance_of(build), "waiting")

        answer = await here.move(lost, "evacuate")

        assert isinstance(answer, InstancesFound), answer
        told = await waits(here, lost)
        assert told.waiting is not None
        assert (told.state, told.host, told.waiting.priority) == ("active", "h1", 101)
        await deleted(here, full)
        assert (await here.until(lost, "active", "confirmed")).host == "h2"
        assert (await here.setup.until_state(instance_of(build), "waiting")).host == ""


@STAGES
async def test_a_waiting_evacuation_ends_when_its_host_is_up_again(bus: str, books: str) -> None:
    async with movers(bus, books, "h1") as here:
        lost = await booted(here, 1, "h1")
        await down(here, "h1")
        await here.move(lost, "evacuate")
        await waits(here, lost)

        await here.setup.client.ask(SetHost(host="h1", mode="up"))

        told = await ends(here, lost, "failed")
        assert (told.state, told.host) == ("active", "h1")
        assert told.move is not None
        assert told.move.failure.startswith("its host h1 is up")


@EMBEDDED
async def test_a_resize_waits_for_room_on_its_own_host(bus: str, books: str) -> None:
    ram_mb = HostSize().ram_mb
    async with movers(bus, books, "h1") as here:
        ids = []
        for number in (1, 2):
            build = a_build(number, flavor=Flavor(vcpus=1, ram_mb=ram_mb * 4 // 10, root_gb=1))
            await here.setup.send(build)
            await here.setup.until_state(instance_of(build), "active")
            ids.append(instance_of(build))
        # Without its own share there would be no room even then.
        larger = Flavor(vcpus=1, ram_mb=ram_mb * 8 // 10, root_gb=1)
        await here.move(ids[0], "resize", flavor=larger, hosts=("h1",), wait=LONG, confirm_s=0)
        assert (await waits(here, ids[0])).host == "h1"
        await deleted(here, ids[1])
        assert (await here.until(ids[0], "active", "confirmed")).host == "h1"
        found = await here.setup.client.ask(AskHistory(instance=ids[0]))
        assert isinstance(found, HistoryFound)
        assert found.changes[-1].size is not None
        assert found.changes[-1].size.amounts["MEMORY_MB"] == larger.ram_mb


@STAGES
async def test_members_of_an_affinity_group_wait_together_for_one_host(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2", "h3") as here:
        await here.setup.client.ask(CreateGroup(id=GROUP, policy="affinity", name="pair"))
        third = Flavor(vcpus=1, ram_mb=HostSize().ram_mb * 3 // 10, root_gb=1)
        pair = []
        for number in (1, 2, 3):
            build = a_build(number, flavor=third, hosts=("h1",), group=JoinedGroup(id=GROUP))
            await here.setup.send(build)
            await here.setup.until_state(instance_of(build), "active")
            pair.append(instance_of(build))
        full = [await booted(here, 8, "h2"), await booted(here, 9, "h3")]
        await down(here, "h1")

        answer = await here.move(pair[1], "evacuate", with_group=True)

        assert isinstance(answer, InstancesFound), answer
        assert {each.id for each in answer.instances} == {*pair}
        for each in pair:
            await waits(here, each)
        # One that is deleted meanwhile does not keep the others.
        await here.setup.client.ask(DeleteInstance(instance=pair[1]))
        await deleted(here, full[1])
        for each in (pair[0], pair[2]):
            assert (await here.until(each, "active", "confirmed")).host == "h3"


@STAGES
async def test_a_wait_outlives_the_schedulers_and_another_one_ends_it(bus: str, books: str) -> None:
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        open_conductor_store(books, "c1") as rows,
        setup.cell(rows, SimulatedHost(name="h1", size=NARROW)),
    ):
        here = Movers(setup)
        async with setup.scheduler("s1", settings=QUICK):
            await setup.until_reported("h1")
            saved = await booted(here, 1, "h1")
            await here.move(saved, "offload", request_id=RequestId(UUID(int=999)))
            await here.until(saved, "offloaded", "done")
            await here.until_used(h1=0)
            full = await booted(here, 2, "h1")
            await here.move(saved, "unshelve", wait=LONG)
        async with setup.scheduler("s2", settings=QUICK), setup.scheduler("s3", settings=QUICK):
            told = await waits(here, saved)
            assert told.state == "offloaded"
            await deleted(here, full)
            assert (await here.until(saved, "active", "done")).host == "h1"


@EMBEDDED
async def test_what_waits_does_not_count_against_the_limits_of_moves(bus: str, books: str) -> None:
    one_at_once = structs.replace(QUICK, moves_per_cell_max=1)
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(settings=one_at_once),
        open_conductor_store(books, "c1") as rows,
        setup.cell(rows, *[SimulatedHost(name=name, size=NARROW) for name in ("h1", "h2", "h3")]),
    ):
        await setup.until_reported("h1", "h2", "h3")
        here = Movers(setup)
        one, full = await booted(here, 1, "h1"), await booted(here, 2, "h2")
        await here.move(one, "migrate", wait=LONG, hosts=("h2",))
        await waits(here, one)
        # It moves, and is not confirmed: now the limit is reached.
        answer = await here.move(full, "migrate", request_id=OTHER, hosts=("h3",), confirm_s=3600)
        assert isinstance(answer, InstancesFound), answer
        await here.until(full, "moved")
        small = a_build(7, flavor=SMALL, hosts=("h2",))
        await here.setup.send(small)
        await here.setup.until_state(instance_of(small), "active")
        await here.setup.client.ask(
            EndMove(request_id=OTHER, instance=full, how="confirm"),
        )
        assert (await here.until(one, "moved")).host == "h2"
