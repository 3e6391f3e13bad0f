"""A cell with a broker of its own and two conductors is down and comes back: what it holds up, and what waits for it."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from msgspec import structs

from bus.messages.build import AskInstances, BuildInstance, DeleteInstance, InstancesFound
from bus.messages.cell import (
    AskConsole,
    ConsoleFound,
)
from bus.messages.cloud import AskCells, CellsFound, CellState, ConductorAlive, WorkerAlive
from bus.settings import BusSettings
from bus.workers.connections import Station
from cell_conductor.settings import ConductorPace
from kit.health import About, Health
from scheduler_worker.settings import SchedulerSettings
from tests.contracts.stage import SETTINGS
from tests.contracts.stores import open_conductor_stores
from tests.stories.cloud import QUICK, Cloud, a_build, cloud, funnel_of, instance_of
from tests.stories.layouts import BACKENDS_APART
from tests.stories.scripted import ScriptedComputes
from tests.varied import varied
from tests.waiting import MovedClock, until

PACE = ConductorPace(poll_s=0.02, retry_delay_s_first=0.02, retry_delay_s_max=0.1, beat_s=0.2)
# No host falls silent, however far a test moves the schedulers' clock.
FOR_EVER_S = 1e9
SOON = varied(SETTINGS, SWEEP_S=0.05, drain_ms_max=100, host_down_s=FOR_EVER_S)
SCHEDULING = structs.replace(QUICK, cell_down_s=20.0)


class Story:
    """Two cells, of which c1 has two conductors."""

    def __init__(self, setup: Cloud) -> None:
        self.setup = setup
        self.clock = MovedClock()
        self.computes = ScriptedComputes()
        self.health: Health

    async def cell(self, name: str = "c1") -> CellState:
        return (await self.setup.ask(AskCells(name=name), CellsFound)).cells[0]

    async def until_cell(self, condition: Callable[[CellState], bool]) -> CellState:
        return await until(self.cell, "the cell is so", condition)

    async def until_down(self) -> CellState:
        """A heartbeat may have been on its way: so time passes until there is none."""

        async def cell() -> CellState:
            self.clock.pass_s(30)
            return await self.cell()

        return await until(cell, "c1 is down", lambda found: found.life == "down")

    async def c2_is_heard(self) -> None:
        """Its conductor is a script, and has no heartbeats of its own."""
        await self.setup.conductors_in["c2"].publisher.send(ConductorAlive(cell="c2", conductor="scripted"))
        await until(lambda: self.cell("c2"), "c2 is up", lambda found: found.life == "up")

    async def console_of(self, build: BuildInstance) -> ConsoleFound:
        return await self.setup.ask(AskConsole(instance=instance_of(build)), ConsoleFound)

    async def until_active(self, builds: Sequence[BuildInstance]) -> set[str]:
        """Their hosts."""
        return {state.host for state in await self.setup.until_each(builds, "active")}


@asynccontextmanager
async def story(
    bus: str, books: str, settings: SchedulerSettings = SCHEDULING, of_bus: BusSettings = SOON
) -> AsyncIterator[Story]:
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        open_conductor_stores(books, ("c1", "c1")) as (one, other),
        setup.placement(),
    ):
        told = Story(setup)
        beside = Station(setup.brokers.in_cell("c1", "compute"), "computes", settings=SETTINGS)
        async with (
            setup.scheduler(settings=settings, bus=of_bus, clock=told.clock) as parts,
            setup.conductor(one, name="conductor-1", pace=PACE, bus=SOON),
            setup.conductor(other, name="conductor-2", pace=PACE, bus=SOON),
            setup.running((beside, *told.computes.workers(beside)), beside),
        ):
            told.health = Health(About("scheduler", "test"), parts)
            await setup.add_hosts("h1", vcpu=50)
            await setup.add_hosts("h2", cell="c2", vcpu=50)
            await told.until_cell(lambda cell: [each.life for each in cell.conductors] == ["up", "up"])
            yield told


def on_h1(first: int, count: int) -> list[BuildInstance]:
    return [a_build(number, hosts=("h1",)) for number in range(first, first + count)]


@BACKENDS_APART
async def test_while_a_cell_is_down_boots_go_elsewhere_and_what_it_was_given_is_done_once_when_it_is_back(
    bus: str, books: str
) -> None:
    async with story(bus, books) as told:
        setup = told.setup
        (old, *_) = before = on_h1(1, 3)
        await setup.client.ask_all(before)
        assert await told.until_active(before) == {"h1"}
        await setup.brokers.cells["c1"].unplug()
        # The schedulers do not know yet that it is down.
        given = on_h1(11, 5)
        await setup.client.ask_all(given)
        await setup.until_each(given, "placed")
        await setup.client.ask(DeleteInstance(instance=instance_of(old)))

        down = await told.until_down()
        assert "no conductor that can work was heard since" in down.reason
        assert (down.instances, down.waiting) == (8, 6)
        assert told.health.awaits() == {}
        assert [str(each["part"]) for each in told.health.failing() if each["part"] == "cell c1"]
        found = await setup.ask(AskInstances(instances=(instance_of(old),)), InstancesFound)
        assert [(each.cell, each.life, each.heard_at) for each in found.cells] == [
            ("c1", "down", down.heard_at)
        ]
        assert (await told.console_of(old)).none.startswith("cell c1: ")

        await told.c2_is_heard()
        elsewhere = [a_build(number) for number in range(101, 111)]
        await setup.client.ask_all(elsewhere)
        assert await told.until_active(elsewhere) == {"h2"}
        (nowhere,) = on_h1(201, 1)
        (refused,) = await setup.built(nowhere, "error")
        assert "its cell 'c1' is down" in next(
            step.example for step in funnel_of(refused).steps if step.step == "cell up"
        )

        await setup.brokers.cells["c1"].plug_in()
        assert await told.until_active(given) == {"h1"}
        await setup.until_state(instance_of(old), "deleted")
        await told.until_cell(lambda cell: cell.life == "up" and cell.waiting == 0)
        once = [(each.instance, each.attempt) for each in told.computes.spawns]
        assert sorted(set(once)) == sorted((instance_of(build), 1) for build in (*before, *given))
        await setup.until_used(h1=7, h2=10)
        await told.until_cell(lambda cell: cell.instances == 7)


@BACKENDS_APART
async def test_a_console_is_told_by_the_compute_of_the_instances_cell(bus: str, books: str) -> None:
    async with story(bus, books) as told:
        (build,) = on_h1(1, 1)
        await told.setup.built(build)

        found = await told.console_of(build)

        assert (found.none, found.text) == ("", f"console of {instance_of(build)}")


@BACKENDS_APART
async def test_by_setting_boots_wait_for_a_cell_that_is_down(bus: str, books: str) -> None:
    waiting = structs.replace(SCHEDULING, when_cell_down="wait")
    soon = structs.replace(SOON, host_down_s=60.0)
    async with story(bus, books, waiting, soon) as told:
        await told.setup.brokers.cells["c1"].unplug()
        await told.until_down()
        (build,) = given = on_h1(1, 1)
        await told.setup.client.ask_all(given)
        assert (await told.setup.until_state(instance_of(build), "placed")).host == "h1"

        await told.setup.brokers.cells["c1"].plug_in()

        assert await told.until_active(given) == {"h1"}


@BACKENDS_APART
async def test_a_conductor_that_ends_as_it_should_is_not_told_as_down(bus: str, books: str) -> None:
    async with story(bus, books) as told:
        at = datetime.now(UTC)
        station = told.setup.conductors_in["c2"]
        await told.c2_is_heard()
        assert [each.name for each in (await told.cell("c2")).conductors] == ["scripted"]
        beat = WorkerAlive(
            cell="c2",
            worker="scripted",
            role="conductor",
            release="0",
            started_at=at,
            told_at=at,
            has_ended=True,
        )
        await station.publisher.send(beat)
        await until(
            lambda: told.cell("c2"),
            "the cell has no conductor that anybody has to look after",
            lambda found: not found.conductors,
        )
        await told.c2_is_heard()
        told.clock.pass_s(20 * 60)
        assert (await told.cell("c2")).conductors == ()
