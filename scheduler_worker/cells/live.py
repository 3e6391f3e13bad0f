"""Passes a question about a cell's own rows on to its conductors, and their answer back to the asker.

A client has no user on a cell's broker, so a scheduler asks the cell for it. A cell may not send answers, so it
publishes its rows as an event. Every scheduler hears this event, and the one that asked answers the client. A cell may
be slow or away, so no batch waits for its question. Each question is a task of its own, which ends with the cell's
event, or when its time is up.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from bus.errors import Operational
from bus.messages.cells import AskLive, LiveFound, LiveTold, TellLive
from bus.parts import Background, mark_seen
from bus.workers.handling import Answer, Handlers, ReadOnly, Received, Said
from bus.workers.publisher import Outgoing
from bus.workers.station import Station
from scheduler_worker.cells.registry import CellRegistry
from scheduler_worker.hosts.registry import HostRegistry

# So many questions may wait for cells at once.
WAITING_MAX = 200


class LiveRelay:
    """Passes clients' questions about a cell's own rows on to its conductors, and the answers back."""

    def __init__(
        self,
        station: Station,
        stations_of_cells: Mapping[str, Station],
        cells: CellRegistry,
        hosts: HostRegistry,
        *,
        clock: Callable[[], datetime],
        answer_s: float,
    ) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        # Open questions, by their names: the cell, and the future that its answer ends.
        self._asked: dict[str, tuple[str, asyncio.Future[LiveTold]]] = {}
        self._station = station
        self._stations = stations_of_cells
        self._cells = cells
        self._hosts = hosts
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
        return {AskLive: ReadOnly(self._on_ask)}

    async def _on_ask(self, asks: Sequence[Received[AskLive]]) -> list[Said]:
        said: list[Said] = []
        for ask in asks:
            # A client repeats its question while the cell is slow.
            if (ask.sender, ask.id) in self._background:
                continue
            if refused := self._why_not_asked(ask.message.in_cell):
                said.append(Answer(ask, LiveFound(cell=ask.message.in_cell, silent=refused)))
            else:
                self._background.start(self._relay(ask), (ask.sender, ask.id))
        return said

    def _why_not_asked(self, cell: str) -> str:
        if len(self._background) >= WAITING_MAX:
            return f"{WAITING_MAX} questions wait for cells already: ask again later"
        if cell in self._cells.names or cell in self._stations:
            return ""
        known, _ = self._hosts.count_by_cell()
        return "" if cell in known else f"there is no cell {cell!r} as far as this scheduler knows"

    async def _relay(self, ask: Received[AskLive]) -> None:
        answer = Outgoing(await self._found(ask.message), ask.id, ask.trace, to=ask.reply_to)
        # If it cannot be sent, the asker asks again.
        self._station.publisher.send_all((answer,)).add_done_callback(mark_seen)

    def hear(self, told: LiveTold) -> None:
        cell, waiting = self._asked.get(told.question, ("", None))
        if waiting is not None and cell == told.cell and not waiting.done():
            waiting.set_result(told)

    async def _found(self, question: AskLive) -> LiveFound:
        cell = question.in_cell
        name = f"{self._station.name}-{next(self._numbers)}"
        waiting: asyncio.Future[LiveTold] = asyncio.get_running_loop().create_future()
        self._asked[name] = cell, waiting
        publisher = self._stations.get(cell, self._station).publisher
        order = TellLive(
            cell=cell,
            question=name,
            asked_at=self._clock(),
            instances=question.instances,
            after=question.after,
            limit=question.limit,
            project=question.project,
        )
        sent = publisher.send(order)
        sent.add_done_callback(mark_seen)
        try:
            async with asyncio.timeout(self._answer_s):
                await sent
                told = await waiting
        except TimeoutError:
            return LiveFound(cell=cell, silent=f"no conductor has told it within {self._answer_s:g} s")
        except Operational as problem:
            return LiveFound(cell=cell, silent=str(problem))
        finally:
            del self._asked[name]
            publisher.withdraw(sent)
        return LiveFound(cell=cell, instances=told.instances, next=told.next)
