"""Cells at API level: when each was last heard, which are down, and what that means for new instances."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.messages.audit import AskCellBooks, CellBooksFound
from bus.messages.cloud import AskCells, CellsFound, ConductorAlive
from bus.workers.handling import Answer, Bury, ReadOnly, Said
from bus.workers.publisher import Outgoing
from bus.workers.station import Heartbeats, Station
from cell_conductor.core.rows import Instance
from cell_conductor.handlers import question_handlers
from cell_conductor.hosts import conductor_beats
from cell_conductor.store import ConductorStore
from engine.choosing.choosing import Chosen, choose
from engine.picture.picture import Picture
from kit.errors import Transient
from kit.parts import PartState
from scheduler_worker.cell_questions import cell_questions
from scheduler_worker.cells import CellWatch
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.registry import CONDUCTORS_MAX, CellRegistry
from scheduler_worker.settings import SCHEDULER, SchedulerSettings
from scheduler_worker.store import KnownCell
from scheduler_worker.wiring import scheduler_parts
from tests.contracts.conductor_stores import open_conductor_store
from tests.contracts.test_conductor_store import a_row, instance_id, save
from tests.plugins import standard_plugins
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_spec, a_state
from tests.unit.scheduler.test_scheduler_handlers import an_ask

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DOWN_AFTER = timedelta(seconds=20)
PLUGINS = standard_plugins()


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def two_cells() -> Picture:
    return a_picture(
        a_state("h1", cell="c1"),
        a_state("h2", cell="c2"),
        hosts=(a_host("h1", cell="c1"), a_host("h2", cell="c2")),
    )


def a_beat(cell: str = "c1", conductor: str = "conductor-1", trouble: str = "") -> ConductorAlive:
    return ConductorAlive(cell=cell, conductor=conductor, trouble=trouble)


def hosts_chosen(picture: Picture, count: int = 8) -> set[str]:
    found = choose(picture, [a_spec()] * count, PLUGINS, salt=0)
    return {one.choice.name for one in found if isinstance(one, Chosen)}


class World:
    """Two cells, of which conductors have been heard."""

    def __init__(self, *, is_avoided: bool = True) -> None:
        self.clock = Clock()
        self.picture = two_cells()
        self.cells = CellRegistry(self.picture, DOWN_AFTER, self.clock, is_avoided=is_avoided)
        self.hosts = HostRegistry(self.picture, timedelta(seconds=60), self.clock)
        self.hear("c1", "c2")

    def hear(self, *cells: str) -> None:
        for cell in cells:
            self.cells.hear(a_beat(cell))

    def c1_falls_silent(self) -> None:
        self.clock.pass_s(20)
        self.hear("c2")
        self.cells.look()


def test_a_cell_without_heartbeats_of_its_conductors_is_down_and_others_get_its_share() -> None:
    world = World()
    assert hosts_chosen(world.picture) == {"h1", "h2"}

    world.c1_falls_silent()

    assert hosts_chosen(world.picture) == {"h2"}
    told = world.cells.heard("c1")
    assert (told.life, told.heard_at) == ("down", NOON)
    assert told.reason == "no conductor that can work was heard since 2026-01-01 12:00:00 UTC"
    assert world.cells.heard("c2").life == "up"


def test_a_request_that_only_a_cell_that_is_down_could_take_is_told_so() -> None:
    world = World()
    world.c1_falls_silent()

    (refused,) = choose(world.picture, [structs.replace(a_spec(), hosts=("h1",))], PLUGINS, salt=0)

    assert not isinstance(refused, Chosen)
    step = next(step for step in refused.steps if step.step == "cell up")
    assert step.removed == 1
    assert step.example.startswith("h1: its cell 'c1' is down: no conductor that can work was heard since")


def test_a_cell_that_is_heard_again_is_up_at_once_and_wakes_what_waits_for_room() -> None:
    world = World()
    world.c1_falls_silent()
    told: list[str] = []
    world.picture.touched.watch(watches=True)
    world.picture.touched.tell(lambda: told.append("something changed"))

    world.hear("c1")

    assert hosts_chosen(world.picture) == {"h1", "h2"}
    assert told


def test_a_conductor_that_cannot_reach_its_database_keeps_no_cell_up() -> None:
    world = World()
    for _ in range(4):
        world.clock.pass_s(5)
        world.cells.hear(a_beat(trouble="its database: no connection"))
    world.cells.look()

    assert world.cells.heard("c1").reason.endswith("; conductor-1 says: its database: no connection")
    # Another one that can is enough.
    world.cells.hear(a_beat(conductor="conductor-2"))
    assert world.cells.heard("c1").life == "up"
    assert [each.name for each in world.cells.conductors_of("c1")] == ["conductor-2", "conductor-1"]


def test_a_cell_whose_conductors_never_could_work_is_down_too() -> None:
    clock, picture = Clock(), two_cells()
    cells = CellRegistry(picture, DOWN_AFTER, clock)
    cells.hear(a_beat(trouble="its database: no connection"))
    cells.look()
    assert (cells.heard("c1").life, cells.rows()) == ("unknown", [])

    clock.pass_s(20)
    cells.hear(a_beat(trouble="its database: no connection"))
    cells.look()

    assert hosts_chosen(picture) == {"h2"}
    assert cells.heard("c1").reason == (
        "no conductor that can work was ever heard; conductor-1 says: its database: no connection"
    )


def test_a_cell_of_which_nothing_was_ever_heard_is_unknown_and_counts_as_up() -> None:
    clock, picture = Clock(), two_cells()
    cells = CellRegistry(picture, DOWN_AFTER, clock)
    clock.pass_s(1000)
    cells.look()

    assert cells.heard("c1").life == "unknown"
    assert hosts_chosen(picture) == {"h1", "h2"}


@pytest.mark.asyncio
async def test_a_cell_whose_computes_are_heard_and_no_conductor_is_down() -> None:
    clock, picture = Clock(), two_cells()
    cells, hosts = (
        CellRegistry(picture, DOWN_AFTER, clock),
        HostRegistry(picture, timedelta(seconds=60), clock),
    )
    watch = CellWatch(MemorySchedulerStore(), cells, hosts, 5.0)
    hosts.hear_beats("c1", ())
    await watch._look()  # noqa: SLF001 - one round of the part
    assert (cells.heard("c1").life, hosts_chosen(picture)) == ("unknown", {"h1", "h2"})

    clock.pass_s(20)
    hosts.hear_beats("c1", ())
    await watch._look()  # noqa: SLF001

    assert (cells.heard("c1").life, hosts_chosen(picture)) == ("down", {"h2"})
    cells.hear(a_beat("c1"))
    assert (cells.heard("c1").life, hosts_chosen(picture)) == ("up", {"h1", "h2"})


def test_after_a_start_a_cell_has_as_long_to_be_heard_as_at_any_time() -> None:
    clock, picture = Clock(), two_cells()
    cells = CellRegistry(picture, DOWN_AFTER, clock)
    cells.learn([KnownCell("c1", NOON - timedelta(hours=1))])
    cells.look()
    assert cells.heard("c1").life == "up"

    clock.pass_s(20)
    cells.look()

    assert cells.heard("c1").life == "down"
    assert cells.heard("c1").heard_at == NOON - timedelta(hours=1)


def test_a_cell_speaks_for_itself_alone() -> None:
    world = World()
    world.clock.pass_s(20)
    world.cells.hear(a_beat("c1"), speaks_for="c2")
    world.cells.look()

    assert world.cells.heard("c1").life == "down"


def test_conductors_that_are_started_again_and_again_fill_no_memory() -> None:
    world = World()
    for number in range(100):
        world.cells.hear(a_beat(conductor=f"conductor-{number}"))

    known = world.cells.conductors_of("c1")
    assert len(known) == CONDUCTORS_MAX
    assert known[0].name == "conductor-99"


# When instances wait for a cell that is down


def test_by_setting_new_instances_go_to_a_cell_that_is_down_and_its_silent_hosts_count_as_up() -> None:
    world = World(is_avoided=False)
    hosts = HostRegistry(world.picture, timedelta(seconds=60), world.clock, excuses=world.cells.excuses)
    hosts.learn([a_host("h1", cell="c1"), a_host("h2", cell="c2")])
    for _ in range(10):
        world.c1_falls_silent()
        hosts.look()

    assert world.cells.heard("c1").life == "down"
    # The hosts of the other cell are down: their silence is their own.
    assert hosts_chosen(world.picture) == {"h1"}

    # When the cell is back, its hosts have as long to be heard as at any time.
    world.hear("c1")
    world.clock.pass_s(59)
    world.hear("c1")
    hosts.look()
    assert hosts_chosen(world.picture) == {"h1"}
    world.clock.pass_s(2)
    world.hear("c1")
    hosts.look()
    assert hosts_chosen(world.picture) == set()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"MOOR_SCHEDULER_CELL_DOWN_S": "0.0"}, "cell_down_s is '0.0' .* must be a number, more than 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SCHEDULER.read(fields)


def test_cells_that_are_waited_for_are_down_before_their_hosts_are() -> None:
    settings = SchedulerSettings(when_cell_down="wait", cell_down_s=60.0)
    station = Station(MemoryBroker().as_user(), "scheduler", asks=True)

    with pytest.raises(
        ValueError, match=r"cell_down_s is 60.0 .* must be less than bus.host_down_s \(60.0\)"
    ):
        scheduler_parts(station, MemorySchedulerStore(), settings)


# Health, rows and questions


@pytest.mark.asyncio
async def test_health_names_a_cell_that_is_down_and_the_worker_stays_ready() -> None:
    world = World()
    watch = CellWatch(MemorySchedulerStore(), world.cells, world.hosts, 5.0)
    await watch._look()  # noqa: SLF001 - one round of the part
    world.c1_falls_silent()
    await watch._look()  # noqa: SLF001

    one, two = watch.parts
    assert (one.name, one.state, one.awaits) == ("cell c1", PartState.FAILING, "")  # type: ignore[attr-defined]
    assert "no conductor that can work was heard" in one.last_error  # type: ignore[attr-defined]
    assert (two.name, two.state) == ("cell c2", PartState.WELL)  # type: ignore[attr-defined]


@pytest.mark.asyncio
async def test_when_a_cell_was_heard_is_written_now_and_then_and_known_to_the_next_worker() -> None:
    world, store = World(), MemorySchedulerStore()
    watch = CellWatch(store, world.cells, world.hosts, 5.0)
    await watch._look()  # noqa: SLF001 - one round of the part
    world.clock.pass_s(10)
    world.hear("c1")
    await watch._look()  # noqa: SLF001
    assert await store.cells() == [KnownCell("c1", NOON), KnownCell("c2", NOON)]
    world.clock.pass_s(5)
    world.hear("c1")
    await watch._look()  # noqa: SLF001
    assert (await store.cells())[0] == KnownCell("c1", NOON + timedelta(seconds=15))

    other = CellRegistry(Picture(), DOWN_AFTER, world.clock)
    await CellWatch(store, other, world.hosts, 5.0)._look()  # noqa: SLF001
    assert other.heard("c1").heard_at == NOON + timedelta(seconds=15)


@pytest.mark.asyncio
async def test_cells_are_listed_with_their_hosts_and_conductors() -> None:
    world = World()
    hosts = HostRegistry(world.picture, timedelta(seconds=60), world.clock)
    hosts.learn([a_host("h1", cell="c1"), a_host("h3", cell="c3")])
    world.clock.pass_s(60)
    hosts.look()
    handler = cell_questions(MemorySchedulerStore(), world.cells, hosts)[AskCells]
    assert isinstance(handler, ReadOnly)

    everyone, one, none = await handler.handle([an_ask(AskCells(name=name)) for name in ("", "c3", "c9")])

    found = [each.message for each in (everyone, one, none) if isinstance(each, Answer)]
    assert all(isinstance(each, CellsFound) for each in found)
    assert [[each.cell for each in page.cells] for page in found] == [["c1", "c2", "c3"], ["c3"], []]  # type: ignore[attr-defined]
    first = found[0].cells[0]  # type: ignore[attr-defined]
    assert (first.hosts, first.hosts_up, [each.name for each in first.conductors]) == (1, 0, ["conductor-1"])


# Rows of a cell


def an_ended(number: int) -> Instance:
    return structs.replace(a_row(number), state="error")


async def answered(store: ConductorStore, question: AskCellBooks) -> Said:
    handler = question_handlers("c1", store)[AskCellBooks]
    assert isinstance(handler, ReadOnly)
    (said,) = await handler.handle([an_ask(question)])
    return said


async def books(store: ConductorStore, **fields: object) -> CellBooksFound:
    said = await answered(store, structs.replace(AskCellBooks(cell="c1"), **fields))
    assert isinstance(said, Answer)
    assert isinstance(said.message, CellBooksFound)
    return said.message


@pytest.mark.asyncio
async def test_a_cell_tells_its_rows_a_page_at_a_time_and_those_that_were_named() -> None:
    async with open_conductor_store("memory") as store:
        await save(store, *(an_ended(number) for number in range(1, 12)))

        first = await books(store, limit=4)
        second = await books(store, limit=8, after=first.next)
        named = await books(store, instances=(instance_id(3), instance_id(99)))

        assert [each.instance.id for each in first.entries] == [instance_id(each) for each in range(1, 5)]
        assert [each.instance.id for each in second.entries] == [instance_id(each) for each in range(5, 12)]
        assert second.next is None
        assert [each.instance.id for each in named.entries] == [instance_id(3)]


@pytest.mark.asyncio
async def test_what_would_be_too_long_for_one_message_has_another_page() -> None:
    async with open_conductor_store("memory") as store:
        rows = [structs.replace(an_ended(number), reason="because " * 10_000) for number in range(1, 11)]
        await save(store, *rows)
        ids = tuple(row.id for row in rows)

        pages = [await books(store, instances=ids)]
        while pages[-1].next is not None:
            pages.append(await books(store, instances=ids, after=pages[-1].next))

        assert len(pages) > 1
        assert tuple(each.instance.id for page in pages for each in page.entries) == ids


@pytest.mark.asyncio
async def test_a_cell_answers_no_question_for_another_one() -> None:
    async with open_conductor_store("memory") as store:
        buried = await answered(store, AskCellBooks(cell="c2"))

        assert isinstance(buried, Bury)
        assert buried.reason == "cell is 'c2', but this is the conductor of cell 'c1'"


# Heartbeats


class Sending(Station):
    """A station that sends nothing: it notes what it would send, and fails to send orders if there is a problem."""

    def __init__(self, problem: Exception | None = None) -> None:
        super().__init__(MemoryBroker().as_user(), "scheduler")
        self.sent: list[Outgoing] = []
        self._problem = problem
        self.publisher.send_all = self._send_all  # type: ignore[method-assign,assignment]

    def _send_all(self, outgoing: Sequence[Outgoing], _kept: object = ()) -> "asyncio.Future[None]":
        self.sent += outgoing
        done = asyncio.get_running_loop().create_future()
        if self._problem is None or outgoing[0].to:
            done.set_result(None)
        else:
            done.set_exception(self._problem)
        return done


class Unreachable:
    """A conductor's store whose database fails, or never answers."""

    def __init__(self, problem: Exception | None) -> None:
        self._problem = problem

    async def read(self, _instances: object, _after: object, _limit: int) -> tuple[()]:
        if self._problem is not None:
            raise self._problem
        await asyncio.Event().wait()
        return ()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("problem", "trouble"),
    [
        (Transient("no connection"), "its database: no connection"),
        (None, "its database has not answered within 0.001 s"),
    ],
)
async def test_a_heartbeat_says_that_the_database_does_not_answer(
    problem: Exception | None, trouble: str
) -> None:
    station = Sending()
    store: Any = Unreachable(problem)
    said = partial(conductor_beats, store, cell="c1", name="conductor-1", within_s=0.001)
    beats = Heartbeats("heartbeats", station.publisher, said, 0.001)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(beats.run())
        while not station.sent:
            await asyncio.sleep(0)
        await beats.stop()

    sent = station.sent[0]
    assert sent.message == ConductorAlive(cell="c1", conductor="conductor-1", trouble=trouble)
