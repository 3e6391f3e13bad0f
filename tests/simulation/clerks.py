"""Those who write into placement's books by name: some over the bus, and one where HTTP requests are served, with its own
way to the database, and a view of it that reads are answered from.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from bus.broker import Broker
from bus.errors import Failure, Transient
from bus.message import ConsumerId, Message, ProviderId
from bus.messages.administration import (
    AskConsumer,
    AskHolders,
    AskNames,
    AskUsages,
    ConsumerFound,
    ConsumerState,
    HoldersFound,
    NamesFound,
    UsagesFound,
    Write,
    WriteAnswered,
    WriteVerdict,
)
from bus.messages.candidates import (
    AskCandidates,
    AskMoreCandidates,
    CandidatesFound,
    RequestGroup,
    StartAgain,
)
from bus.messages.placement import AskSnapshot, ProviderState, SnapshotPage
from bus.station import Station
from placement_worker.desk import Desk
from placement_worker.replica import Replica
from placement_worker.view import View
from placement_worker.wiring import STANDARD
from tests.simulation.errands import Clerk, Hand
from tests.simulation.estate import GROUPS
from tests.simulation.findings import Findings
from tests.simulation.loop import until_s
from tests.simulation.plan import Errand, Plan
from tests.simulation.process import SimProcess
from tests.simulation.register import OpenBooks
from tests.simulation.store_of_books import PlacementDoor
from tests.simulation.stores import Commits
from tests.simulation.viewing import as_the_books, looked_into
from tests.simulation.workers import BUS

A = TypeVar("A", bound=Message)
T = TypeVar("T")
PAGE = 20
NOBODYS = UUID(int=0)


class Clerks:
    def __init__(self, plan: Plan, findings: Findings, books: OpenBooks, commits: Commits) -> None:
        self._plan = plan
        self._findings = findings
        self._books = books
        self._commits = commits
        # Of the latest life of whoever serves HTTP, to be compared with the books at the end.
        self.view: View | None = None

    async def run(self, process: SimProcess, broker: Broker) -> None:
        if process.name.startswith("desk"):
            await self._serve(process)
            return
        station = Station(
            broker, process.name, settings=BUS, asks=True, clock=process.clock, chance=process.chance
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(station.run())
            tasks.create_task(self._work(process, OverTheBus(station)))

    async def _serve(self, process: SimProcess) -> None:
        door = PlacementDoor(self._books, process, self._commits)
        view = self.view = View(door, PAGE)
        desk = Desk(door, STANDARD, process.clock)
        await self._work(process, AtTheDesk(desk, view, door, self._books, self._findings))

    async def _work(self, process: SimProcess, hand: Hand) -> None:
        """All errands of this name; of another life only those that are still to come."""
        clerk = Clerk(hand, asyncio.sleep)
        now_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            for errand in self._plan.errands:
                if errand.clerk == process.name and errand.at_s >= now_s:
                    tasks.create_task(self._do(clerk, errand))

    async def _do(self, clerk: Clerk, errand: Errand) -> None:
        await until_s(errand.at_s)
        self._findings.tell(errand.clerk, "is to {}", errand.deed)
        await clerk.do(errand.deed, random.Random(errand.lot))


class OverTheBus:
    """Asked again until it is answered: what is written may be written several times."""

    def __init__(self, station: Station) -> None:
        self._station = station

    async def write(self, write: Write) -> WriteVerdict:
        return (await self._ask(write, WriteAnswered)).verdict

    async def providers(self) -> Mapping[ProviderId, ProviderState]:
        known: dict[ProviderId, ProviderState] = {}
        after: int | None = 0
        while after is not None:
            page = await self._ask(AskSnapshot(after=after, limit=PAGE), SnapshotPage)
            known |= {state.id: state for state in page.providers}
            after = page.next
        return known

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        return (await self._ask(AskConsumer(consumer=consumer), ConsumerFound)).consumer

    async def holders_of(self, provider: ProviderId) -> Sequence[ConsumerState]:
        holders: list[ConsumerState] = []
        after: ConsumerId | None = None
        while True:
            page = await self._ask(AskHolders(provider=provider, after=after, limit=PAGE), HoldersFound)
            holders += page.holders
            after = page.next
            if after is None:
                return holders

    async def inquire(self) -> None:
        await self._ask(AskUsages(project="estate"), UsagesFound)
        await self._ask(AskNames(of="traits", limit=1), NamesFound)
        cpus = RequestGroup(resources={"VCPU": 1}, member_of=(GROUPS,))
        await self._ask(AskCandidates(groups=(cpus,)), CandidatesFound)
        more = await self._ask(AskMoreCandidates(answer=NOBODYS, page=1), CandidatesFound)
        assert isinstance(more.verdict, StartAgain), f"nobody has asked for this, and it is {more.verdict!r}"

    async def _ask(self, question: Message, kind: type[A]) -> A:
        while True:
            try:
                answer = await self._station.ask(question)
            except Failure:
                await asyncio.sleep(1)
                continue
            assert isinstance(answer, kind), f"{question!r} was answered by {answer!r}"
            return answer


class AtTheDesk:
    """As an HTTP server does it: writes by the desk, reads by the view, and of consumers by the database."""

    def __init__(
        self, desk: Desk, view: View, door: PlacementDoor, books: OpenBooks, findings: Findings
    ) -> None:
        self._desk = desk
        self._view = view
        self._door = door
        self._books = books
        self._findings = findings

    async def write(self, write: Write) -> WriteVerdict:
        return await _served(lambda: self._desk.ask(write))

    async def providers(self) -> Mapping[ProviderId, ProviderState]:
        replica = await self._looked_into()
        return {state.id: state for state in replica}

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        return await _served(lambda: self._door.consumer(consumer))

    async def holders_of(self, provider: ProviderId) -> Sequence[ConsumerState]:
        return await _served(lambda: self._door.holders_of(provider, None, 1_000))

    async def inquire(self) -> None:
        """Whatever is found in the view is found in the books."""
        as_the_books(await self._looked_into(), self._books, self._findings)

    async def _looked_into(self) -> Replica:
        return await _served(lambda: looked_into(self._view, self._books, self._findings))


async def _served(request: Callable[[], Awaitable[T]]) -> T:
    """As a client does it who is told that the service is unavailable: it asks again."""
    while True:
        try:
            return await request()
        except Transient:
            await asyncio.sleep(0.5)
