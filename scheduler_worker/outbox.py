"""The outbox: how a message that a row has to send reaches its broker at least once.

1. A handler writes rows, and calls `transaction.note(rows)`: the same transaction stores a note that names them.
2. `transaction.tells` turns a noted row into its messages. Messages for a cell on the API level's broker are returned
   by the handler, and the worker loop publishes them after the commit. Messages for a cell that has a broker of its own
   are sent by that cell's dispatch (`CellDispatch`), also after the commit; the batch does not wait for them.
3. A confirmed note is deleted in the transaction of a later batch. For notes of the API level's broker, the worker loop
   calls `clear`; for those of a cell's dispatch, `Outbox.transaction` does.
4. A note may stay, after a crash or a lost confirm. A sweep, which runs at an interval, reads it again: `pending` for
   the API level's broker, and each dispatch for its own.

Messages follow from rows (scheduler_worker/core/instances/rows.py), so nothing else is stored.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from uuid import UUID

from bus.message import Message
from bus.messages.build import BuildInstance, BuildRejected
from bus.topology import CELL, destination_of, in_cell
from bus.workers.connections import Station
from bus.workers.handlers import OutboxKey, Received, Said, Tell
from bus.workers.publisher import Outgoing, Publisher
from bus.workers.set_aside import FailedRows, RowWork
from engine.choosing.explaining import in_words
from engine.flavors import InstanceId
from kit.logs import InstanceLine, InstanceLog
from kit.parts import Periodic, RowByRow
from scheduler_worker.core.instances.history import with_history
from scheduler_worker.core.instances.lifecycle import given_up
from scheduler_worker.core.instances.rows import InstanceRow, messages_of
from scheduler_worker.store_sql import OutboxNote, SchedulerStore, SchedulerTransaction

# The rows of instances at which parts of a scheduler have met a bug (bus/workers/set_aside.py).


class FailedInstances:
    def __init__(self, failed: FailedRows, clock: Callable[[], datetime]) -> None:
        self.rows = failed
        self._clock = clock

    def of(self, part: str, again: Callable[[InstanceId], Awaitable[object]]) -> RowByRow:
        """Keeps the part of this name going, which does `again` to one instance what it does."""
        return self.rows.of(part, RowWork(lambda row: again(InstanceId(UUID(row))), self._end))

    async def _end(self, row: str, why: str, transaction: "OutboxTransaction") -> Sequence[Said]:
        store = await transaction.begun()
        known = (await store.lock([InstanceId(UUID(row))])).values()
        ended = [(before, given_up(before, self._clock(), why)) for before in known]
        after = [with_history(before, row, "") for before, row in ended if row is not None]
        await store.save(after)
        return await transaction.say(after)


# The notes of rows whose messages may not have reached the broker, read a page at a time.


# How many rows are read at once: those of as few notes as have so many.
NOTES_PAGE = 500


class OutboxNotes:
    def __init__(
        self,
        store: SchedulerStore,
        repeated_after: timedelta,
        clock: Callable[[], datetime],
        failed: FailedInstances,
    ) -> None:
        self._store = store
        self._rows = failed.of("say what is kept", self._look_at)
        # Messages of younger notes are still on their way.
        self.repeated_after = repeated_after
        self._clock = clock

    async def pages(self, after: OutboxKey | None = None) -> AsyncIterator[Sequence[OutboxNote]]:
        """Pages of the outbox notes behind `after` that still have messages to send."""
        before = self._clock() - self.repeated_after
        while page := await self._store.unconfirmed(before, after, NOTES_PAGE):
            # Cells have reported all of these rows, or later notes name them.
            await self.confirm([note.kept for note in page if not note.rows])
            yield [note for note in page if note.rows]
            after = page[-1].kept

    async def confirm(self, said: Sequence[OutboxKey]) -> None:
        if said:
            async with self._store.transaction() as transaction:
                await transaction.confirm(said)

    async def messages_of(self, note: OutboxNote) -> list[Message]:
        """The messages of this note. None if a row of it has met a bug: then each row gets a note of its own, and the others go on."""
        found: list[Message] = []
        for row in note.rows:
            if not self._rows.rests(row.id):
                async with self._rows.trying(row.id):
                    found += messages_of(row)
                    continue
            if len(note.rows) > 1:
                log.debug("a row of a note rests: each row gets a note of its own")
                async with self._store.transaction() as transaction:
                    await transaction.note([[each] for each in note.rows])
                    await transaction.drop_notes([note.kept])
            return []
        return found

    async def _look_at(self, instance: InstanceId) -> None:
        """Meet the bug again, if the instance's messages have one."""
        for row in (await self._store.rows_of([instance])).values():
            messages_of(row)


# The dispatch of messages to cells that have a broker of their own.
#
# A batch is acknowledged to the broker that it came from, and must not wait for another one: a cell's broker that is away
# would hold up the requests of all cells. The messages are on their rows already, so the batch commits and leaves
# them here. Each row has its own note, which is deleted with a later batch's write once it is confirmed; a sweep sends
# again what was not confirmed. Only a limited number is under way to one broker: other rows wait in the database, and are
# read from there a page at a time when there is room again.


log = logging.getLogger(__name__)


class CellDispatch(Periodic):
    """Sends the messages of noted rows, for the cells on one broker, and remembers which notes are confirmed.

    At an interval, a sweep deletes the confirmed notes, and sends the messages of the others again.
    """

    def __init__(
        self,
        cells: Collection[str],
        station: Station,
        api: Publisher,
        notes: OutboxNotes,
        *,
        under_way_max: int,
    ) -> None:
        super().__init__(
            "say what is kept for cells",
            self._sweep,
            self._sweep_again_s,
            is_cut_short=True,
            chance=station.chance,
        )
        self.cells = frozenset(cells)
        self._exchanges = frozenset(in_cell(CELL, cell) for cell in cells)
        self._station = station
        # Some messages of a row are events for the API level.
        self._api = api
        self._notes = notes
        self._under_way_max = under_way_max
        self._under_way: set[OutboxKey] = set()
        self._confirmed: set[OutboxKey] = set()
        # Rows were left in the database since the last sweep, for want of room.
        self._is_behind = False
        self._has_room = asyncio.Event()
        self._has_room.set()

    def send(self, rows: Iterable[tuple[OutboxKey, Sequence[Outgoing]]]) -> None:
        """Send the messages of these noted rows, as long as there is room; skip rows that are under way or confirmed."""
        taken: list[OutboxKey] = []
        down: list[Outgoing] = []
        others: list[Outgoing] = []
        for kept, messages in rows:
            if kept in self._under_way or kept in self._confirmed:
                continue
            if len(self._under_way) >= self._under_way_max:
                log.debug("rows wait in the database: too many are under way to their cell")
                self._is_behind = True
                self._has_room.clear()
                break
            self._under_way.add(kept)
            taken.append(kept)
            for each in messages:
                is_down = destination_of(each.message).exchange in self._exchanges
                (down if is_down else others).append(each)
        if taken:
            both = asyncio.gather(self._station.publisher.send_all(down), self._api.send_all(others))
            both.add_done_callback(lambda sent: self._sent(taken, sent))

    @property
    def confirmed(self) -> tuple[OutboxKey, ...]:
        """The keys of the outbox notes whose messages are confirmed, and which are not deleted yet."""
        return tuple(self._confirmed)

    def cleared(self, kept: Sequence[OutboxKey]) -> None:
        self._confirmed.difference_update(kept)

    def _sent(self, taken: Sequence[OutboxKey], sent: "asyncio.Future[tuple[None, None]]") -> None:
        self._under_way.difference_update(taken)
        self._has_room.set()
        if sent.cancelled():
            return
        if problem := sent.exception():
            log.warning("%d orders stay on their rows, to be sent again: %s", len(taken), problem)
        else:
            self._confirmed.update(taken)

    def _sweep_again_s(self) -> float:
        return (
            self._notes.repeated_after.total_seconds() if self._is_behind else self._station.settings.SWEEP_S
        )

    async def _sweep(self) -> None:
        self._is_behind = False
        clearing = self.confirmed
        await self._notes.confirm(clearing)
        self.cleared(clearing)
        async for page in self._notes.pages():
            for note in page:
                if all(row.told.cell in self.cells for row in note.rows):
                    while len(self._under_way) >= self._under_way_max:
                        self._has_room.clear()
                        await self._has_room.wait()
                    if messages := await self._notes.messages_of(note):
                        self.send([(note.kept, [*map(Outgoing, messages)])])


# The lines of a scheduler's log: requests, and decisions on instances.


def line_of(row: InstanceRow, trace: str) -> InstanceLine:
    """A decision of the API level: the state of the row that it wrote, or the move that it ordered."""
    told, order = row.told, row.order
    if order is not None and told.state == "placed":
        return InstanceLine(
            "placed",
            told.id,
            told.request_id,
            order.chosen.name,
            told.cell,
            trace,
            told.project,
            told.name,
            row.by,
        )
    reason = told.reason
    if told.no_valid_host is not None:
        reason = f"{reason}: {in_words(told.no_valid_host)}"
    move = told.move
    if move is not None and told.state == "moving":
        host = f"{move.source} to {move.destination or 'the best host'}"
        return InstanceLine(f"{move.kind} ordered", told.id, move.request_id, host, told.cell, trace)
    return InstanceLine(
        told.state, told.id, told.request_id, told.host, told.cell, trace, reason=reason, by=row.by
    )


def request_line(ask: Received[BuildInstance], count: int) -> InstanceLine:
    build = ask.message
    return InstanceLine(
        "accepted",
        None,
        build.request_id,
        trace=ask.trace,
        project=build.project,
        name=build.name,
        by=ask.sender,
        count=str(count),
    )


def rejected_line(ask: Received[BuildInstance], why: BuildRejected) -> InstanceLine:
    return InstanceLine(
        "rejected",
        None,
        why.request_id,
        trace=ask.trace,
        project=ask.message.project,
        by=ask.sender,
        reason=f"{why.field} {why.value}: {why.reason}",
    )


Dispatches = Mapping[str, CellDispatch]
LOG = InstanceLog("moor.instances")


class OutboxTransaction:
    """The transaction of a handler. It begins when the handler first asks for it (`begun`).

    A request waits for placement's verdict between its acceptance and its end. A transaction that was open all that time
    would hold up every other one, and SQLite has only one.
    """

    def __init__(self, store: SchedulerStore, stack: AsyncExitStack, dispatches: Dispatches) -> None:
        self._store = store
        self._stack = stack
        self._transaction: SchedulerTransaction | None = None
        self._when_committed: list[Callable[[], None]] = []
        self._dispatches = dispatches
        # The note of each row that is noted, by the id of its instance.
        self._kept: dict[int, OutboxKey] = {}
        # Written to the log after the commit, if that is on.
        self.is_logged = LOG.is_on
        self.lines: list[InstanceLine] = []
        self.leaving: defaultdict[CellDispatch, list[tuple[OutboxKey, Sequence[Outgoing]]]] = defaultdict(
            list
        )

    async def begun(self) -> SchedulerTransaction:
        if self._transaction is None:
            self._transaction = await self._stack.enter_async_context(self._store.transaction())
        return self._transaction

    def when_committed(self, do: Callable[[], None]) -> None:
        """Add a function that is called after the commit, and never if the transaction is rolled back."""
        self._when_committed.append(do)

    def committed(self) -> None:
        for do in self._when_committed:
            do()
        LOG.write(self.lines)

    async def note(self, rows: Iterable[InstanceRow]) -> None:
        """Write notes for those of these rows that have messages to send. Rows whose cell has its own broker get one
        note each, since the cell's dispatch confirms each row by itself; the others share one note.
        """
        together: list[InstanceRow] = []
        groups: list[list[InstanceRow]] = []
        for row in rows:
            if row.has_to_say:
                if row.told.cell in self._dispatches:
                    groups.append([row])
                else:
                    together.append(row)
        if together:
            groups.append(together)
        if groups:
            keys = await (await self.begun()).note(groups)
            for key, group in zip(keys, groups, strict=True):
                self._kept.update(dict.fromkeys([row.id.int for row in group], key))

    async def say(self, rows: Collection[InstanceRow], cause: Received[Message] | None = None) -> list[Tell]:
        """Write the outbox notes of these rows, and return their messages (see `tells`)."""
        await self.note(rows)
        return [tell for row in rows for tell in self.tells(row, cause)]

    def tells(self, row: InstanceRow, cause: Received[Message] | None = None) -> Sequence[Tell]:
        """The messages of a noted row, if they go to the API level's broker. Messages for a cell with its own broker
        are left to that cell's dispatch, and nothing is returned.
        """
        messages = messages_of(row)
        if not messages:
            return ()
        if self.is_logged:
            self.lines.append(line_of(row, "" if cause is None else cause.trace))
        kept = self._kept[row.id.int]
        if (dispatch := self._dispatches.get(row.told.cell)) is None:
            return [Tell(message, cause, kept) for message in messages]
        why = ("", "") if cause is None else (cause.id, cause.trace)
        self.leaving[dispatch].append((kept, [Outgoing(message, *why) for message in messages]))
        return ()


class Outbox:
    """Opens the transactions of handlers. The messages of rows are noted in the same commit, sent after it, and read
    again by a sweep if their confirmation does not come.
    """

    def __init__(
        self,
        store: SchedulerStore,
        notes: OutboxNotes,
        publisher: Publisher,
        dispatches: Sequence[CellDispatch] = (),
    ) -> None:
        self._store = store
        self._notes = notes
        self._publisher = publisher
        self._all = dispatches
        self._dispatches = {cell: dispatch for dispatch in dispatches for cell in dispatch.cells}

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[OutboxTransaction]:
        confirmed = {dispatch: dispatch.confirmed for dispatch in self._all}
        async with AsyncExitStack() as stack:
            transaction = OutboxTransaction(self._store, stack, self._dispatches)
            yield transaction
            if clearing := [kept for some in confirmed.values() for kept in some]:
                await self.clear(transaction, clearing)
        transaction.committed()
        for dispatch, cleared in confirmed.items():
            dispatch.cleared(cleared)
        for dispatch, rows in transaction.leaving.items():
            dispatch.send(rows)

    async def publish(self, told: Sequence[Tell]) -> None:
        """Publish the messages of rows that were written outside of a worker's message loop, and delete their notes
        when the broker has confirmed them.
        """
        notes = list(dict.fromkeys(tell.kept for tell in told if tell.kept is not None))
        await self._publisher.send_all([Outgoing(tell.message) for tell in told], notes)
        await self._notes.confirm(notes)

    async def clear(self, transaction: OutboxTransaction, said: Sequence[OutboxKey]) -> None:
        await (await transaction.begun()).confirm(said)

    async def pending(self, after: OutboxKey | None = None) -> Sequence[tuple[OutboxKey, Message]]:
        """A page of the messages behind `after` that the API level's broker has not confirmed."""
        async for page in self._notes.pages(after):
            found: list[tuple[OutboxKey, Message]] = []
            for note in page:
                ways = {self._dispatches.get(row.told.cell) for row in note.rows}
                if ways == {None}:
                    found += [(note.kept, message) for message in await self._notes.messages_of(note)]
                elif len(ways) > 1:
                    log.debug("a note names rows of several brokers: it is replaced by one for each")
                    await self._note_anew(note)
            if found:
                return found
        return ()

    async def _note_anew(self, note: OutboxNote) -> None:
        """Replace this note, which names rows of several brokers, by notes of one broker each.

        The cell of some rows has got a broker of its own since the note was written.
        """
        async with self.transaction() as transaction:
            await transaction.note(note.rows)
            await (await transaction.begun()).drop_notes([note.kept])
