"""The way down to cells that have a broker of their own.

A batch is acknowledged to the broker that it came from, and must not wait for another: one cell's broker that is away
would hold up the requests of all cells. What is said down is on its instance's row already, so it is handed over after
the commit and not waited for. Each has a note of its own, which goes with the next batch's write when it is confirmed;
what was not, a sweep says again. Only so many are under way to one broker: the others stay where they are, on their rows,
and are read from there, a page at a time, when there is room again.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta

from bus.handling import Handler, Handlers, Kept, Reading, Received, Said, Tell
from bus.message import Message
from bus.parts import Periodic
from bus.publisher import Outgoing, Publisher
from bus.station import Station
from bus.topology import CELL, address_of, in_cell
from scheduler_worker.core.instances.lifecycle import InstanceRow
from scheduler_worker.outbox.lazy_transaction import LateTransaction, LateTransactions, Names, said_by
from scheduler_worker.store import Noted, SchedulerStore

log = logging.getLogger(__name__)

# What is kept by one name, whichever way it goes: it is confirmed when all of it is.
Row = tuple[Kept, Sequence[Outgoing]]


class WayDown(Periodic):
    """What is under way to the broker of some cells, and what they have confirmed. A part: it sweeps."""

    def __init__(
        self,
        cells: Collection[str],
        station: Station,
        api: Publisher,
        rows: LateTransactions,
        *,
        under_way_max: int,
    ) -> None:
        super().__init__(
            "say what is kept for cells",
            self._say_what_is_left,
            self._sweep_again_s,
            is_cut_short=True,
            chance=station.chance,
        )
        self.cells = frozenset(cells)
        self._exchanges = frozenset(in_cell(CELL, cell) for cell in cells)
        self._station = station
        self._api = api
        self._rows = rows
        self._under_way_max = under_way_max
        self._under_way: set[Kept] = set()
        self._confirmed: set[Kept] = set()
        # Rows were left alone since the last sweep, for want of room.
        self._is_behind = False
        self._has_room = asyncio.Event()
        self._has_room.set()

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def say(self, rows: Iterable[Row]) -> None:
        """What is kept by these names, as far as there is room; what is under way is said already."""
        taken: list[Kept] = []
        down: list[Outgoing] = []
        others: list[Outgoing] = []
        for kept, said in rows:
            if kept in self._under_way or kept in self._confirmed:
                continue
            if len(self._under_way) >= self._under_way_max:
                self._is_behind = True
                self._has_room.clear()
                break
            self._under_way.add(kept)
            taken.append(kept)
            for each in said:
                is_down = address_of(each.message).exchange in self._exchanges
                (down if is_down else others).append(each)
        if taken:
            both = asyncio.gather(self._station.publisher.send_all(down), self._api.send_all(others))
            both.add_done_callback(lambda confirmed: self._heard(taken, confirmed))

    # What is confirmed, and still noted

    @property
    def confirmed(self) -> tuple[Kept, ...]:
        return tuple(self._confirmed)

    def cleared(self, kept: Sequence[Kept]) -> None:
        self._confirmed.difference_update(kept)

    def _heard(self, taken: Sequence[Kept], confirmed: "asyncio.Future[tuple[None, None]]") -> None:
        self._under_way.difference_update(taken)
        self._has_room.set()
        if confirmed.cancelled():
            return
        if problem := confirmed.exception():
            log.warning("%d orders stay on their rows, to be said again: %s", len(taken), problem)
        else:
            self._confirmed.update(taken)

    # What stayed on its row

    def _sweep_again_s(self) -> float:
        return self._rows.unsaid_after.total_seconds() if self._is_behind else self._station.settings.sweep_s

    async def _say_what_is_left(self) -> None:
        self._is_behind = False
        await self._clear()
        async for note in self._rows.unsaid():
            if all(row.told.cell in self.cells for row in note.rows):
                while len(self._under_way) >= self._under_way_max:
                    self._has_room.clear()
                    await self._has_room.wait()
                self.say([(note.kept, [Outgoing(message) for message in said_by(note)])])

    async def _clear(self) -> None:
        if clearing := self.confirmed:
            async with self._rows.transaction() as late:
                await self._rows.clear(late, clearing)
            self.cleared(clearing)


class PartedTransaction(LateTransaction):
    """With what is to be said down once it is committed."""

    def __init__(self, store: SchedulerStore, stack: AsyncExitStack, apart: Collection[str]) -> None:
        super().__init__(store, stack)
        self.leaving: dict[WayDown, list[Tell]] = {}
        self._apart = apart

    async def note(self, rows: Iterable[InstanceRow]) -> Names:
        """What goes down is noted one by one: so many may be under way, and each is confirmed by itself."""
        if not self._apart:
            return await super().note(rows)
        here: list[InstanceRow] = []
        apart: list[InstanceRow] = []
        for row in rows:
            if row.has_to_say:
                (apart if row.told.cell in self._apart else here).append(row)
        groups = [*([here] if here else []), *[[row] for row in apart]]
        if not groups:
            return Names()
        kept = list(await (await self.begun()).note(groups))
        common = kept.pop(0) if here else None
        return Names(common, {row.id.int: each for row, each in zip(apart, kept, strict=True)})


class Parting(LateTransactions):
    """A store's transactions and outbox, for who speaks to cells on this broker and to cells on brokers of their own."""

    def __init__(
        self,
        store: SchedulerStore,
        unsaid_after: timedelta,
        clock: Callable[[], datetime],
        ways: Sequence[WayDown],
    ) -> None:
        super().__init__(store, unsaid_after, clock)
        self._ways = {cell: way for way in ways for cell in way.cells}

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PartedTransaction]:
        confirmed = {way: way.confirmed for way in self._ways.values()}
        async with AsyncExitStack() as stack:
            parted = PartedTransaction(self._store, stack, self._ways.keys())
            yield parted
            if clearing := [kept for some in confirmed.values() for kept in some]:
                await self.clear(parted, clearing)
        parted.committed()
        for way, cleared in confirmed.items():
            way.cleared(cleared)
        for way, said in parted.leaving.items():
            way.say(_by_row((each.kept, _outgoing(each)) for each in said if each.kept))

    async def pages(self, behind: Kept | None = None) -> AsyncIterator[Sequence[Noted]]:
        """What goes by this broker alone: each way down has a sweep of its own. Rows that are noted together, and whose
        ways have parted since, are noted anew.
        """
        async for page in super().pages(behind):
            ours: list[Noted] = []
            for note in page:
                ways = {self._ways.get(row.told.cell) for row in note.rows}
                if ways == {None}:
                    ours.append(note)
                elif len(ways) > 1:
                    await self._note_anew(note)
            yield ours

    async def _note_anew(self, note: Noted) -> None:
        async with self.transaction() as parted:
            await parted.note(note.rows)
            await (await parted.begun()).drop_notes([note.kept])

    def parted(self, handlers: Handlers) -> Handlers:
        """The same, without what goes another way: that leaves after the commit."""
        if not self._ways:
            return handlers
        return {
            kind: handler if isinstance(handler, Reading) else self._part(handler)
            for kind, handler in handlers.items()
        }

    def _part(self, handler: Handler) -> Handler:
        async def handle(asks: Sequence[Received[Message]], parted: PartedTransaction) -> Sequence[Said]:
            said = await handler(asks, parted)
            staying: list[Said] = []
            leaving: defaultdict[WayDown, list[Tell]] = defaultdict(list)
            for each in said:
                way = self._ways.get(_cell_of(each))
                if way is not None and isinstance(each, Tell):
                    leaving[way].append(each)
                else:
                    staying.append(each)
            parted.leaving = leaving
            return staying

        return handle


def _cell_of(said: Said) -> str:
    """The cell that it is said of, if a row keeps it; else it goes by the broker that it came from."""
    return getattr(said.message, "cell", "") if isinstance(said, Tell) and said.kept else ""


def _outgoing(tell: Tell) -> Outgoing:
    cause = tell.cause
    return Outgoing(tell.message, cause.id, cause.trace) if cause else Outgoing(tell.message)


def _by_row(said: Iterable[tuple[Kept, Outgoing]]) -> Sequence[Row]:
    rows: defaultdict[Kept, list[Outgoing]] = defaultdict(list)
    for kept, outgoing in said:
        rows[kept].append(outgoing)
    return list(rows.items())
