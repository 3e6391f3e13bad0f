"""Passes questions about what a cell itself has on to the cell, and what it tells back to the asker.

A client has no user on a cell's broker, so a scheduler asks the cell for it. A cell may not send answers, so it
publishes what it has as an event. Every scheduler hears this event, and the one that asked answers the client. A cell may
be slow or away, so no batch waits for its question. Each question is a task of its own, which ends with the cell's
event, or when its time is up.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from bus.errors import Operational
from bus.message import Message
from bus.messages.cells import AskLive, LiveFound, LiveTold, TellLive
from bus.messages.consoles import AskConsole, ConsoleFound, ConsoleTold, TellConsole
from bus.parts import Background, mark_seen
from bus.workers.handling import Answer, Handlers, ReadOnly, Received, Said
from bus.workers.publisher import Outgoing
from bus.workers.station import Station
from scheduler_worker.cells.registry import CellRegistry
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.store import InstanceQuery, SchedulerStore

# So many questions may wait for cells at once.
WAITING_MAX = 200
_FULL = f"{WAITING_MAX} questions wait for cells already: ask again later"

Told = LiveTold | ConsoleTold
NONE_MAX = 255

T = TypeVar("T", LiveTold, ConsoleTold)
M = TypeVar("M", AskLive, AskConsole)


class NotTold(Exception):  # noqa: N818 - the cell is silent, which is no error here
    """The cell has not told it; the text says why."""


class CellRelay:
    """Passes clients' questions on to the workers of a cell: for its rows to its conductors, for a console to its compute."""

    def __init__(
        self,
        station: Station,
        stations_of_cells: Mapping[str, Station],
        cells: CellRegistry,
        hosts: HostRegistry,
        store: SchedulerStore,
        *,
        clock: Callable[[], datetime],
        answer_s: float,
    ) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        # Open questions, by their names: the cell, and the future that its answer ends.
        self._asked: dict[str, tuple[str, asyncio.Future[Told]]] = {}
        self._station = station
        self._stations = stations_of_cells
        self._cells = cells
        self._hosts = hosts
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
        return {AskLive: ReadOnly(self._on_live), AskConsole: ReadOnly(self._on_console)}

    async def _on_live(self, asks: Sequence[Received[AskLive]]) -> list[Said]:
        said: list[Said] = []
        for ask in self._new(asks):
            if refused := self._why_not_asked(ask.message.in_cell):
                said.append(Answer(ask, LiveFound(cell=ask.message.in_cell, silent=refused)))
            else:
                self._start(ask, self._live)
        return said

    async def _on_console(self, asks: Sequence[Received[AskConsole]]) -> list[Said]:
        said: list[Said] = []
        for ask in self._new(asks):
            if self._is_full:
                said.append(Answer(ask, ConsoleFound(none=_FULL)))
            else:
                self._start(ask, self._console)
        return said

    def _new(self, asks: Sequence[Received[M]]) -> list[Received[M]]:
        """Those that do not wait already: a client repeats its question while the cell is slow."""
        return [ask for ask in asks if (ask.sender, ask.id) not in self._background]

    @property
    def _is_full(self) -> bool:
        return len(self._background) >= WAITING_MAX

    def _why_not_asked(self, cell: str) -> str:
        if self._is_full:
            return _FULL
        if cell in self._cells.names or cell in self._stations:
            return ""
        known, _ = self._hosts.count_by_cell()
        return "" if cell in known else f"there is no cell {cell!r} as far as this scheduler knows"

    def _start(self, ask: Received[M], found: Callable[[M], Awaitable[Message]]) -> None:
        self._background.start(self._relay(ask, found), (ask.sender, ask.id))

    async def _relay(self, ask: Received[M], found: Callable[[M], Awaitable[Message]]) -> None:
        answer = Outgoing(await found(ask.message), ask.id, ask.trace, to=ask.reply_to)
        # If it cannot be sent, the asker asks again.
        self._station.publisher.send_all((answer,)).add_done_callback(mark_seen)

    async def _live(self, question: AskLive) -> LiveFound:
        order = TellLive(
            cell=question.in_cell,
            question=self._next_name(),
            asked_at=self._clock(),
            instances=question.instances,
            after=question.after,
            limit=question.limit,
            project=question.project,
        )
        try:
            told = await self._told(order, LiveTold, "conductor")
        except NotTold as silent:
            return LiveFound(cell=order.cell, silent=str(silent))
        return LiveFound(cell=order.cell, instances=told.instances, next=told.next)

    async def _console(self, question: AskConsole) -> ConsoleFound:
        query = InstanceQuery(instances=(question.instance,), project=question.project, limit=1)
        rows = await self._store.instances(query)
        if not rows:
            return ConsoleFound(none=f"there is no instance {question.instance}")
        state = rows[0].told
        if not state.cell:
            return ConsoleFound(none=f"the instance is {state.state} and in no cell: it has no console")
        order = TellConsole(
            cell=state.cell,
            question=self._next_name(),
            asked_at=self._clock(),
            instance=question.instance,
            start=question.start,
            limit=question.limit,
        )
        try:
            told = await self._told(order, ConsoleTold, "compute")
        except NotTold as silent:
            return ConsoleFound(none=f"cell {state.cell}: {silent}"[:NONE_MAX])
        return ConsoleFound(
            text=told.text,
            start=told.start,
            next=told.next,
            size=told.size,
            attempt=told.attempt,
            none=told.none,
        )

    def hear(self, told: Told) -> None:
        cell, waiting = self._asked.get(told.question, ("", None))
        if waiting is not None and cell == told.cell and not waiting.done():
            waiting.set_result(told)

    def _next_name(self) -> str:
        return f"{self._station.name}-{next(self._numbers)}"

    async def _told(self, order: TellLive | TellConsole, kind: type[T], teller: str) -> T:
        waiting: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._asked[order.question] = order.cell, waiting
        publisher = self._stations.get(order.cell, self._station).publisher
        sent = publisher.send(order)
        sent.add_done_callback(mark_seen)
        try:
            async with asyncio.timeout(self._answer_s):
                await sent
                told = await waiting
        except TimeoutError:
            raise NotTold(f"no {teller} has told it within {self._answer_s:g} s") from None
        except Operational as problem:
            raise NotTold(str(problem)) from problem
        finally:
            del self._asked[order.question]
            publisher.withdraw(sent)
        if not isinstance(told, kind):
            raise NotTold(f"the cell has told a {type(told).__name__} instead")
        return told
