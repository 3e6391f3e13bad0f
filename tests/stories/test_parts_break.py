"""Breaks each part of each worker in each way in which a broker or a database may break it. The process continues, the
failure is counted, and the part works again afterwards. A bug in any part ends the process.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import UUID

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import BuildInstance
from bus.messages.cell import SpawnInstance
from bus.messages.placement import AskRevisions, AskSnapshot, ClaimAnswered, ReportInventory, SwapClaim
from bus.settings import BusSettings
from bus.topology import EVENTS, objects_of
from bus.workers.handling import Said
from bus.workers.station import Station
from cell_conductor.settings import ConductorPace, ConductorSettings
from cell_conductor.wiring import conductor_parts
from compute_sim.handlers import ComputeStore
from compute_sim.settings import ComputeSettings
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import ConsumerId, ResourceAmount, Share
from engine.refusals import Claimed
from kit.errors import (
    AccessRefused,
    ConnectionLost,
    ConsumerCancelled,
    NotFound,
    Poison,
    Transient,
    Unavailable,
    Undeliverable,
)
from kit.health import About, Health
from kit.parts import PartState, Status, statuses
from kit.process import Part, run_until
from laboratory.computes.driver import root_of, simulated_parts
from laboratory.computes.hosts import equal_hosts
from placement_worker.settings import PlacementSettings
from placement_worker.wiring import placement_parts
from scheduler_worker.core.instances.rows import accepted
from scheduler_worker.settings import SchedulerPace, SchedulerSettings
from scheduler_worker.store import NewRequest
from scheduler_worker.wiring import scheduler_parts
from tests.simulation.loop import run_simulated
from tests.stores_in_memory import MemoryConductorStore, MemoryPlacementStore, MemorySchedulerStore
from tests.stories.breakable import BreakableBroker, BreakableStation, BreakableStore, Faults, Problem
from tests.stories.cloud import a_host
from tests.unit.conductor.cell import Cell, failed, place
from tests.varied import varied

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
BUS = varied(BusSettings(), ask_again_ms=500, answer_timeout_ms=2_000, SWEEP_S=2.0, CONNECT_DELAY_MS_MAX=500)
# In simulated time.
PATIENCE_S = 120.0
HOSTS = equal_hosts("c1", 2)


def clock() -> datetime:
    return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())


class WorkerSetup:
    """One worker whose broker and store can be broken, on a broker where everything else works."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.faults = Faults()
        self.memory, self.below = MemoryBroker(), MemoryBroker()
        self.station = BreakableStation(
            BreakableBroker(self.memory.as_user(), self.faults), role, settings=BUS, asks=True, clock=clock
        )
        self.station.faults = self.faults
        self.other = Station(self.memory.as_user(), "other", settings=BUS, asks=True, clock=clock)
        self.requests = MemorySchedulerStore()
        self.rows = MemoryConductorStore(clock)
        self._closing: list[Station] = [self.station, self.other]
        self.parts = self._parts()
        self.health = Health(About(role, "test"), self.parts)

    def statuses(self, part: str) -> list[Status]:
        found = [each for each in statuses(self.parts) if each.name == part]
        assert found, f"no part is called {part!r} among {sorted({s.name for s in statuses(self.parts)})}"
        return found

    def failures(self, part: str) -> int:
        return sum(each.failures for each in self.statuses(part))

    def _parts(self) -> tuple[Part, ...]:
        match self.role:
            case "placement":
                books = BreakableStore(MemoryPlacementStore(), self.faults)
                return placement_parts((self.station,), books, PlacementSettings(), clock, prune_every_s=5.0)
            case "scheduler":
                way_down = BreakableBroker(self.below.as_user(), self.faults)
                below = Station(way_down, "down", settings=BUS, clock=clock, cells=("c2",))
                self._closing.append(below)
                quick = SchedulerPace(verify_every_s=5.0, prune_every_s=5.0, unconfirmed_s=1.0)
                store = BreakableStore(self.requests, self.faults)
                return scheduler_parts(
                    self.station, store, SchedulerSettings(), clock, cells={"c2": below}, pace=quick
                )
            case "conductor":
                pace = ConductorPace(look_s=2.0, poll_s=1.0, retry_delay_s_max=2.0)
                store = BreakableStore(self.rows, self.faults)
                return (
                    *conductor_parts(
                        self.station, store, ConductorSettings(), "c1", self.ask, clock=clock, pace=pace
                    ),
                    self.station,
                )
            case _:
                clock_s = asyncio.get_running_loop().time
                kept = cast("ComputeStore", BreakableStore(ComputeStore(clock_s), self.faults))
                of_hosts = ComputeSettings(cell="c1", facts_every_s=1.0)
                return simulated_parts(
                    self.station, HOSTS, of_hosts, clock=clock, clock_s=clock_s, store=kept
                )

    async def ask(self, questions: Sequence[Message]) -> list[Message]:
        """Answers a conductor's questions as placement would, when not broken."""
        for question in questions:
            self.faults.check("ask", type(question).__name__)
        wrong = [self.faults.answers.get(type(question)) for question in questions]
        granted = [
            ClaimAnswered(consumer=each.consumer, attempt=each.attempt, verdict=Claimed())
            for each in questions
            if isinstance(each, SwapClaim)
        ]
        return [each for each in wrong if each is not None] or [*granted]

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        for memory in (self.memory, self.below):
            connection = await memory.as_user().connect()
            await connection.declare(objects_of(("c1", "c2")))
            await connection.close()
        beside: list[Part] = [self.other]
        if self.role != "placement":
            station = Station(self.memory.as_user(), "placement", settings=BUS, clock=clock)
            self._closing.append(station)
            books = MemoryPlacementStore()
            beside += placement_parts((station,), books, PlacementSettings(), clock)
        told = asyncio.Event()
        others = asyncio.create_task(run_until(told, beside, 5))
        running = asyncio.create_task(run_until(told, self.parts, 5))
        try:
            yield running
        finally:
            self.faults.mend()
            told.set()
            await asyncio.gather(others, running, return_exceptions=True)
            for station in self._closing:
                await station.close()


Break = Callable[[Faults], None]
Stir = Callable[[WorkerSetup], Awaitable[object]]


async def nothing(_: WorkerSetup) -> None:
    """A part that fails without any action."""


@dataclass(frozen=True)
class Case:
    """How to break one part with a server's error and with a bug; the name appears in the test's id."""

    role: str
    part: str
    ways: dict[str, Break]
    bug: Break | None
    # The action that gives the part something to do while it is broken.
    stir: Stir = nothing
    from_start: bool = False
    # The part that retries what this one had to leave.
    mended_by: str = ""


def a_bug() -> Exception:
    return TypeError("planted")


def breaking(operation: str, problem: Problem, places: Sequence[str]) -> Break:
    def break_all(faults: Faults) -> None:
        for where in places:
            faults.break_(operation, problem, where)

    return break_all


def consuming(queue: str) -> tuple[dict[str, Break], Break]:
    def lost(faults: Faults) -> None:
        faults.break_("connect", lambda: ConnectionLost("nobody is there"))
        faults.break_("receive", lambda: ConnectionLost("gone"))

    def locked_out(faults: Faults) -> None:
        faults.break_("connect", lambda: AccessRefused("wrong password"))
        faults.break_("receive", lambda: ConnectionLost("closed by an operator"))

    def stopped(why: Exception | None) -> Break:
        def stop(faults: Faults) -> None:
            faults.break_("receive", lambda: ConsumerCancelled("was the queue deleted?"), queue)
            if why is not None:
                faults.break_("open", lambda: type(why)(*why.args), queue)

        return stop

    ways = {
        "connection lost": lost,
        "password changed": locked_out,
        "consumer cancelled": stopped(None),
        "access refused": stopped(AccessRefused("no right to it")),
        "queue deleted": stopped(NotFound("no such queue")),
    }
    return ways, lambda faults: faults.break_("receive", a_bug, queue)


def storing(*methods: str) -> tuple[dict[str, Break], Break]:
    def failing(problem: Callable[[], Exception]) -> Break:
        return breaking("store", problem, methods)

    ways = {
        "store transient": failing(lambda: Transient("a deadlock")),
        "store unavailable": failing(lambda: Unavailable("no database")),
    }
    return ways, failing(a_bug)


def publishing(*exchanges: str) -> dict[str, Break]:
    def failing(problem: Callable[[], Exception]) -> Break:
        return breaking("publish", problem, exchanges)

    return {
        "publish refused": failing(lambda: AccessRefused("no right to write")),
        "exchange deleted": failing(lambda: NotFound("no such exchange")),
    }


def unroutable(*exchanges: str) -> dict[str, Break]:
    return {"undeliverable": lambda faults: faults.unroutable.update(exchanges)}


def asking(*questions: type[Message]) -> tuple[dict[str, Break], Break]:
    def failing(problem: Callable[[], Exception]) -> Break:
        return breaking("ask", problem, [each.__name__ for each in questions])

    ways = {
        "no answer": failing(lambda: Unavailable("nobody answers")),
        "undeliverable": failing(lambda: Undeliverable("no queue takes it")),
        "wrong answer": lambda faults: faults.answers.update(dict.fromkeys(questions, a_wrong_answer())),
    }
    return ways, failing(a_bug)


def a_wrong_answer() -> Message:
    return BuildInstance(request_id=RequestId(UUID(int=1)), name="this is no answer")


def consumer(role: str, queue: str) -> Case:
    return Case(role, f"{queue}: consume", *consuming(queue))


# Actions that give a part something to do


async def a_report(worker_setup: WorkerSetup) -> None:
    worker_setup.other.publisher.send(a_host("h1"))


async def an_overdue_request(worker_setup: WorkerSetup) -> None:
    now = clock()
    request = RequestId(UUID(int=9))
    build = BuildInstance(request_id=request, name="web")
    rows = accepted(build, [InstanceId(ConsumerId(UUID(int=1)))], now, now)
    async with worker_setup.requests.transaction() as tx:
        await tx.accept([NewRequest(request, b"digest", rows)])


async def a_swap(worker_setup: WorkerSetup) -> None:
    row = structs.replace(Cell(place("h2"), failed(1, "h1")).row, state_ends_at=clock())
    async with worker_setup.rows.transaction() as tx:
        await tx.save([row], (), ())


async def a_silent_host(worker_setup: WorkerSetup) -> None:
    cell = Cell(place())
    row = structs.replace(cell.row, outbox=(), state_ends_at=clock())
    async with worker_setup.rows.transaction() as tx:
        await tx.save([row], (), ())


async def a_spawn(worker_setup: WorkerSetup) -> None:
    host = root_of(HOSTS[0].name)
    share = Share(host=host, amounts=(ResourceAmount(provider=host, resource="VCPU", amount=1),))
    worker_setup.other.publisher.send(
        SpawnInstance(
            cell="c1",
            instance=InstanceId(ConsumerId(UUID(int=1))),
            attempt=1,
            host=host,
            flavor=Flavor(vcpus=1),
            share=share,
        )
    )


CELL = "moor.cell.c1"
OF_THE_STORE = {part: storing(*methods) for part, methods in {
    "feed": ("lead_feed",),
    "prune": ("prune",),
    "notes": ("unconfirmed",),
    "hosts": ("host_versions",),
    "cells": ("cells",),
    "overdue": ("overdue",),
    "pending": ("pending",),
    "transaction": ("transaction",),
    "due": ("next_due_s",),
    "changed": ("take_changed",),
}.items()}  # fmt: skip

CASES = (
    consumer("placement", "placement.work"),
    consumer("placement", "placement.questions"),
    consumer("placement", "placement.claims"),
    consumer("placement", "placement.searches"),
    Case("placement", "publish the feed of changes", *OF_THE_STORE["feed"], from_start=True),
    Case("placement", "publish the feed of changes", publishing(EVENTS), None, stir=a_report),
    Case("placement", "forget what ended long ago", *OF_THE_STORE["prune"]),
    consumer("scheduler", "scheduler.requests"),
    consumer("scheduler", "scheduler.events"),
    consumer("scheduler", "scheduler.questions"),
    Case("scheduler", "answers", *consuming("answers")),
    Case("scheduler", "hear the feed", *consuming("feed")),
    Case("scheduler", "hear of hosts in cells (cell c2)", *consuming("feed")),
    Case("scheduler", "look at cells", *OF_THE_STORE["cells"]),
    Case("scheduler", "scheduler.requests: say what is kept", *OF_THE_STORE["notes"]),
    Case("scheduler", "say what is kept for cells", *OF_THE_STORE["notes"]),
    Case("scheduler", "read placement's books", *asking(AskSnapshot), from_start=True),
    Case("scheduler", "compare all revisions", *asking(AskRevisions)),
    Case("scheduler", "read hosts", *OF_THE_STORE["hosts"]),
    Case("scheduler", "end what is overdue", *OF_THE_STORE["overdue"]),
    Case("scheduler", "end what is overdue", publishing(EVENTS, CELL), None, stir=an_overdue_request),
    Case("scheduler", "forget old requests", *OF_THE_STORE["prune"]),
    consumer("conductor", "conductor.c1.work"),
    Case("conductor", "answers", *consuming("answers")),
    Case("conductor", "conductor.c1.work: say what is kept", *OF_THE_STORE["pending"]),
    Case("conductor", "do what is due", *OF_THE_STORE["transaction"]),
    Case("conductor", "swap claims", *asking(SwapClaim), stir=a_swap),
    Case(
        "conductor",
        "say what was decided",
        {**publishing(CELL, EVENTS), **unroutable(CELL)},
        None,
        stir=a_silent_host,
        mended_by="conductor.c1.work: say what is kept",
    ),
    consumer("compute", "compute.c1.work"),
    consumer("conductor", "conductor.c1.questions"),
    Case("conductor", "heartbeats", publishing(EVENTS), None),
    Case("compute", "answers", *consuming("answers")),
    Case("compute", "end attempts that are due", *OF_THE_STORE["due"], stir=a_spawn),
    Case("compute", "tell of ended attempts", {**publishing(CELL), **unroutable(CELL)}, None, stir=a_spawn),
    Case("compute", "tell of changed hosts", *OF_THE_STORE["changed"]),
    Case("compute", "tell of changed hosts", publishing(EVENTS), None, from_start=True),
    Case("compute", "heartbeats", publishing(EVENTS), None),
    Case("compute", "list the attempts of hosts", *OF_THE_STORE["transaction"], from_start=True),
    Case("compute", "ask placement to take reports", *asking(ReportInventory), from_start=True),
)


@pytest.mark.parametrize(
    ("case", "way"),
    [pytest.param(case, way, id=f"{case.role}: {case.part}: {way}") for case in CASES for way in case.ways],
)
def test_a_failing_server_is_counted_and_survived_and_the_part_works_again(case: Case, way: str) -> None:
    async def scenario() -> None:
        worker_setup = WorkerSetup(case.role)
        if case.from_start:
            case.ways[way](worker_setup.faults)
        async with worker_setup.running() as running:
            if not case.from_start:
                await until(
                    lambda: not worker_setup.health.awaits(),
                    running,
                    lambda: str(worker_setup.health.awaits()),
                )
                case.ways[way](worker_setup.faults)
            before = worker_setup.failures(case.part)
            await case.stir(worker_setup)
            await until(
                lambda: worker_setup.failures(case.part) > before, running, lambda: f"{case.part} fails"
            )
            assert worker_setup.health.is_well

            worker_setup.faults.mend()

            mended = worker_setup.statuses(case.mended_by or case.part)
            runs = sum(each.runs for each in mended) if case.mended_by else -1
            await until(
                lambda: (
                    all(each.state is PartState.WELL for each in mended)
                    and sum(each.runs for each in mended) > runs
                ),
                running,
                lambda: f"{case.part} works again",
            )
            await until(
                lambda: not worker_setup.health.awaits(), running, lambda: str(worker_setup.health.awaits())
            )

    run_simulated(scenario())


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case.role}: {case.part}") for case in CASES if case.bug is not None]
)
def test_a_bug_ends_the_process(case: Case) -> None:
    async def scenario() -> None:
        worker_setup = WorkerSetup(case.role)
        bug = case.bug
        assert bug is not None, "those without one are not asked"
        if case.from_start:
            bug(worker_setup.faults)
        async with worker_setup.running() as running:
            if not case.from_start:
                await until(
                    lambda: not worker_setup.health.awaits(),
                    running,
                    lambda: str(worker_setup.health.awaits()),
                )
                bug(worker_setup.faults)
            await case.stir(worker_setup)
            await asyncio.wait((running,), timeout=PATIENCE_S)
            assert running.done(), f"{case.part} goes on although it has a bug"
            problem = running.exception()
            assert problem is not None, "it ended without a word"
            assert "planted" in [str(each) for each in leaves(problem)]

    run_simulated(scenario())


def test_an_item_that_cannot_be_dead_lettered_yet_blocks_nothing_and_is_dead_lettered_later() -> None:
    async def scenario() -> None:
        worker_setup = WorkerSetup("placement")

        async def refuse(*_: object) -> Sequence[Said]:
            raise Poison("never")

        worker = worker_setup.station.worker(
            "placement.work", {ReportInventory: refuse}, MemoryPlacementStore()
        )
        worker_setup.parts = (worker,)
        async with worker_setup.running() as running:
            worker_setup.faults.unroutable.add("moor.dead")
            await a_report(worker_setup)
            await until(
                lambda: worker_setup.failures("placement.work: bury") > 1, running, lambda: "it fails"
            )
            connection = await worker_setup.memory.as_user().connect()
            assert await connection.depth("dead") == 0

            worker_setup.faults.mend()

            (burying,) = worker_setup.statuses("placement.work: bury")
            await until(lambda: burying.state is PartState.WELL, running, lambda: "it is buried")
            assert await connection.depth("dead") == 1
            assert worker.intake.in_hand == 0
            await connection.close()

    run_simulated(scenario())


def leaves(problem: BaseException) -> list[BaseException]:
    if isinstance(problem, BaseExceptionGroup):
        return [leaf for each in problem.exceptions for leaf in leaves(each)]
    return [problem]


async def until(holds: Callable[[], bool], running: "asyncio.Task[None]", what: Callable[[], str]) -> None:
    by_s = asyncio.get_running_loop().time() + PATIENCE_S
    while not holds():
        if running.done():
            running.result()
            raise AssertionError(f"the process has ended; waited for: {what()}")
        assert asyncio.get_running_loop().time() < by_s, f"waited in vain for: {what()}"
        await asyncio.sleep(0.1)
