"""Moves that wait for room: every worker is real. A host has room for one instance of this size."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from msgspec import structs

from bus.messages.build import DeleteInstance, InstanceState
from bus.messages.hosts import SetHost
from bus.messages.moves import AskHistory, AskMoves, EndMove, HistoryFound, MovesFound, MoveWait
from bus.messages.projects import CreateGroup
from engine.flavors import Flavor, InstanceId, JoinedGroup, RequestId, Wait
from laboratory.computes.hosts import HostSize, SimulatedHost
from scheduler_worker import waiting
from tests.narrowing import present
from tests.planted.replacing import replaced
from tests.stories.cloud import QUICK, cloud
from tests.stories.layouts import EMBEDDED, STAGES
from tests.stories.moves.test_groups_move import GROUP
from tests.stories.moves.test_moves import NARROW, Movers, down, movers
from tests.waiting import until

OTHER = RequestId(UUID(int=2000))
WHOLE = Flavor(name="whole", vcpus=1, ram_mb=HostSize().ram_mb * 6 // 10, root_gb=1)
LONG = MoveWait(for_s=3600)


@asynccontextmanager
async def offloaded(bus: str, books: str) -> AsyncIterator[tuple[Movers, InstanceId, InstanceId]]:
    """An offloaded instance, and one that has taken its host, which is the only one."""
    async with movers(bus, books, "h1") as here:
        saved = await here.booted(1, "h1", WHOLE)
        await here.move(saved, "offload", request_id=RequestId(UUID(int=999)))
        await here.until(saved, "offloaded", "done")
        await here.setup.until_used(h1=0)
        yield here, saved, await here.booted(2, "h1", WHOLE)


async def waits(here: Movers, instance: InstanceId) -> InstanceState:
    told = present(await here.setup.instance(instance))
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
async def test_an_unshelve_into_a_full_cloud_waits_gets_the_room_and_has_one_entry_in_the_history(
    bus: str, books: str
) -> None:
    async with offloaded(bus, books) as (here, saved, full):
        answer = await here.move(saved, "unshelve", wait=structs.replace(LONG, priority=7))

        (told,) = answer.instances
        assert told.state == "offloaded"
        assert told.waiting is not None
        assert (told.waiting.priority, told.waiting.since) == (7, told.changed_at)
        assert told.waiting.reason.startswith("no host among 1: 1 removed by capacity")
        assert told.no_valid_host is not None
        await here.move(saved, "unshelve", wait=structs.replace(LONG, priority=7))
        going = await here.setup.ask(AskMoves(), MovesFound)
        assert [(each.what, each.outcome) for each in going.moves] == [("unshelve", "waiting")]
        assert going.moves[0].failure.startswith("waits for room until ")

        await here.setup.delete(full)

        there = await here.until(saved, "active", "done")
        assert (there.host, there.waiting, there.no_valid_host) == ("h1", None, None)
        await here.setup.until_used(h1=1)
        found = await here.setup.ask(AskHistory(instance=saved), HistoryFound)

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
        lost, full = await here.booted(1, "h1", WHOLE), await here.booted(2, "h2", WHOLE)
        await down(here, "h1")
        build = await here.setup.boot(3, "waiting", flavor=WHOLE, wait=Wait(for_s=3600, priority=100))

        await here.move(lost, "evacuate")

        told = await waits(here, lost)
        assert (told.state, told.host, present(told.waiting).priority) == ("active", "h1", 101)
        await here.setup.delete(full)
        assert (await here.until(lost, "active", "confirmed")).host == "h2"
        assert (await here.setup.until_state(build.id, "waiting")).host == ""


@STAGES
async def test_a_waiting_evacuation_ends_when_its_host_is_up_again(bus: str, books: str) -> None:
    async with movers(bus, books, "h1") as here:
        lost = await here.booted(1, "h1", WHOLE)
        await down(here, "h1")
        await here.move(lost, "evacuate")
        await waits(here, lost)

        await here.setup.client.ask(SetHost(host="h1", mode="up"))

        told = await ends(here, lost, "failed")
        assert (told.state, told.host) == ("active", "h1")
        assert present(told.move).failure.startswith("its host h1 is up")


@EMBEDDED
async def test_a_resize_waits_for_room_on_its_own_host(bus: str, books: str) -> None:
    ram_mb = HostSize().ram_mb
    async with movers(bus, books, "h1") as here:
        half = Flavor(vcpus=1, ram_mb=ram_mb * 4 // 10, root_gb=1)
        ids = [await here.booted(number, flavor=half) for number in (1, 2)]
        # Without its own share there would be no room even then.
        larger = Flavor(vcpus=1, ram_mb=ram_mb * 8 // 10, root_gb=1)
        await here.move(ids[0], "resize", flavor=larger, hosts=("h1",), wait=LONG, confirm_s=0)
        assert (await waits(here, ids[0])).host == "h1"
        await here.setup.delete(ids[1])
        assert (await here.until(ids[0], "active", "confirmed")).host == "h1"
        found = await here.setup.ask(AskHistory(instance=ids[0]), HistoryFound)
        assert present(found.changes[-1].size).amounts["MEMORY_MB"] == larger.ram_mb


@STAGES
async def test_members_of_an_affinity_group_wait_together_for_one_host(bus: str, books: str) -> None:
    async with movers(bus, books, "h1", "h2", "h3") as here:
        await here.setup.client.ask(CreateGroup(id=GROUP, policy="affinity", name="pair"))
        third = Flavor(vcpus=1, ram_mb=HostSize().ram_mb * 3 // 10, root_gb=1)
        joined = JoinedGroup(id=GROUP)
        pair = [await here.booted(number, flavor=third, group=joined) for number in (1, 2, 3)]
        full = [await here.booted(8, "h2", WHOLE), await here.booted(9, "h3", WHOLE)]
        await down(here, "h1")

        answer = await here.move(pair[1], "evacuate", with_group=True)

        assert {each.id for each in answer.instances} == {*pair}
        for each in pair:
            await waits(here, each)
        # One that is deleted meanwhile does not keep the others.
        await here.setup.client.ask(DeleteInstance(instance=pair[1]))
        await here.setup.delete(full[1])
        for each in (pair[0], pair[2]):
            assert (await here.until(each, "active", "confirmed")).host == "h3"


@STAGES
async def test_a_wait_outlives_the_schedulers_and_another_one_ends_it(bus: str, books: str) -> None:
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.cell(SimulatedHost(name="h1", size=NARROW)),
    ):
        here = Movers(setup)
        async with setup.scheduler("s1", settings=QUICK):
            await setup.until_reported("h1")
            saved = await here.booted(1, "h1", WHOLE)
            await here.move(saved, "offload", request_id=RequestId(UUID(int=999)))
            await here.until(saved, "offloaded", "done")
            await here.setup.until_used(h1=0)
            full = await here.booted(2, "h1", WHOLE)
            await here.move(saved, "unshelve", wait=LONG)
        async with setup.scheduler("s2", settings=QUICK), setup.scheduler("s3", settings=QUICK):
            assert (await waits(here, saved)).state == "offloaded"
            await here.setup.delete(full)
            assert (await here.until(saved, "active", "done")).host == "h1"


@EMBEDDED
async def test_what_waits_does_not_count_against_the_limits_of_moves(bus: str, books: str) -> None:
    async with movers(
        bus, books, "h1", "h2", "h3", settings=structs.replace(QUICK, moves_per_cell_max=1)
    ) as here:
        one, full = await here.booted(1, "h1", WHOLE), await here.booted(2, "h2", WHOLE)
        await here.move(one, "migrate", wait=LONG, hosts=("h2",))
        await waits(here, one)
        # It moves, and is not confirmed: now the limit is reached.
        await here.move(full, "migrate", request_id=OTHER, hosts=("h3",), confirm_s=3600)
        await here.until(full, "moved")
        await here.booted(7, "h2")
        await here.setup.client.ask(
            EndMove(request_id=OTHER, instance=full, how="confirm"),
        )
        assert (await here.until(one, "moved")).host == "h2"


@EMBEDDED
async def test_what_release_0_1_0_has_written_as_waiting_is_woken(bus: str, books: str) -> None:
    """Its rows do not say what they wait for."""
    with replaced(waiting, "needs_in", lambda _real: lambda _kept: None):
        async with offloaded(bus, books) as (here, saved, full):
            await here.move(saved, "unshelve", wait=LONG)
            await here.setup.delete(full)
            assert (await here.until(saved, "active", "done")).host == "h1"
            later = await here.setup.boot(7, "waiting", flavor=WHOLE, wait=Wait(for_s=3600))
            await here.setup.delete(saved)
            await here.setup.until_state(later.id, "active")
