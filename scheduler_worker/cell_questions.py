"""Passes questions for the consoles of guests on to the cells of the instances, and what is told back to the askers.

A client has no user on a cell's broker, so a scheduler asks the cell's compute for it. A cell may not send answers, so it
publishes what it has as an event. Every scheduler hears this event, and the one that asked answers the client. A cell may
be slow or away, so no batch waits for its question. Each question is a task of its own, which ends with the cell's
event, or when its time is up.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import structs

from bus.messages.cell import AskConsole, ConsoleFound, ConsoleTold, TellConsole
from bus.messages.cloud import AskCells, CellsFound, CellState, InstanceCount
from bus.topology import CELL0
from bus.workers.handling import Answer, Handlers, ReadOnly, Received, Said
from bus.workers.publisher import Outgoing
from bus.workers.station import Station
from engine.inventories import CellName
from kit.errors import Operational
from kit.parts import Background, mark_seen
from scheduler_worker.core.instances.rows import UNANSWERED
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.registry import CellRegistry
from scheduler_worker.store import InstanceQuery
from scheduler_worker.store_sql import SchedulerStore

# So many questions may wait for cells at once.
WAITING_MAX = 200
# A user waits for the answer: a cell that is slower than this is called silent.
ANSWER_S = 5.0
_FULL = f"{WAITING_MAX} questions wait for cells already: ask again later"
NONE_MAX = 255


class ConsoleRelay:
    """Passes clients' questions on to the compute of the instance's cell."""

    def __init__(
        self,
        station: Station,
        stations_of_cells: Mapping[str, Station],
        store: SchedulerStore,
        *,
        clock: Callable[[], datetime],
        answer_s: float = ANSWER_S,
    ) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        # Open questions, by their names: the cell, and the future that its answer ends.
        self._asked: dict[str, tuple[CellName, asyncio.Future[ConsoleTold]]] = {}
        self._station = station
        self._stations = stations_of_cells
        self._store = store
        self._answer_s = answer_s
        self._background = Background()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        async with self._background:
            await self._stopping.wait()
            self._background.cancel_all()

    async def stop(self) -> None:
        self._stopping.set()

    def question_handlers(self) -> Handlers:
        return {AskConsole: ReadOnly(self._on_console)}

    async def _on_console(self, asks: Sequence[Received[AskConsole]]) -> list[Said]:
        said: list[Said] = []
        for ask in asks:
            # A client repeats its question while the cell is slow.
            if (ask.sender, ask.id) in self._background:
                continue
            if len(self._background) >= WAITING_MAX:
                said.append(Answer(ask, ConsoleFound(none=_FULL)))
            else:
                self._background.start(self._relay(ask), (ask.sender, ask.id))
        return said

    async def _relay(self, ask: Received[AskConsole]) -> None:
        answer = Outgoing(await self._found(ask.message), ask.id, ask.trace, to=ask.reply_to)
        # If it cannot be sent, the asker asks again.
        self._station.publisher.send_all((answer,)).add_done_callback(mark_seen)

    async def _found(self, question: AskConsole) -> ConsoleFound:
        query = InstanceQuery(instances=(question.instance,), project=question.project, limit=1)
        rows = await self._store.instances(query)
        if not rows:
            return ConsoleFound(none=f"there is no instance {question.instance}")
        state = rows[0].told
        if not state.cell:
            return ConsoleFound(none=f"the instance is {state.state} and in no cell: it has no console")
        order = TellConsole(
            cell=state.cell,
            question=f"{self._station.name}-{next(self._numbers)}",
            asked_at=self._clock(),
            instance=question.instance,
            start=question.start,
            limit=question.limit,
        )
        try:
            told = await self._told(order)
        except TimeoutError:
            return _silent(order.cell, f"no compute has told it within {self._answer_s:g} s")
        except Operational as problem:
            return _silent(order.cell, str(problem))
        return ConsoleFound(
            text=told.text,
            start=told.start,
            next=told.next,
            size=told.size,
            attempt=told.attempt,
            none=told.none,
        )

    def hear(self, told: ConsoleTold) -> None:
        cell, waiting = self._asked.get(told.question, ("", None))
        if waiting is not None and cell == told.cell and not waiting.done():
            waiting.set_result(told)

    async def _told(self, order: TellConsole) -> ConsoleTold:
        waiting: asyncio.Future[ConsoleTold] = asyncio.get_running_loop().create_future()
        self._asked[order.question] = order.cell, waiting
        publisher = self._stations.get(order.cell, self._station).publisher
        sent = publisher.send(order)
        sent.add_done_callback(mark_seen)
        try:
            async with asyncio.timeout(self._answer_s):
                await sent
                return await waiting
        finally:
            del self._asked[order.question]
            publisher.withdraw(sent)


def _silent(cell: CellName, why: str) -> ConsoleFound:
    return ConsoleFound(none=f"cell {cell}: {why}"[:NONE_MAX])


# Answers questions about cells: which are up, their conductors, and how many hosts and instances each has.


def cell_questions(store: SchedulerStore, cells: CellRegistry, hosts: HostRegistry) -> Handlers:
    async def on_ask_cells(asks: Sequence[Received[AskCells]]) -> list[Said]:
        everywhere = cell_states(await store.instance_counts(), cells, hosts)
        return [
            Answer(
                ask,
                CellsFound(cells=tuple([each for each in everywhere if ask.message.name in ("", each.cell)])),
            )
            for ask in asks
        ]

    return {AskCells: ReadOnly(on_ask_cells)}


def cell_states(counts: Iterable[InstanceCount], cells: CellRegistry, hosts: HostRegistry) -> list[CellState]:
    instances, unanswered = Counter[str](), Counter[str]()
    for each in counts:
        if each.cell not in ("", CELL0):
            instances[each.cell] += each.count
            unanswered[each.cell] += each.count if each.state in UNANSWERED else 0
    known, up = hosts.count_by_cell()
    return [
        CellState(
            **structs.asdict(cells.heard(name)),
            conductors=cells.conductors_of(name),
            hosts=known[name],
            hosts_up=up[name],
            instances=instances[name],
            waiting=unanswered[name],
        )
        for name in sorted({*cells.names, *known, *instances})
    ]
