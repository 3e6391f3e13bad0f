"""The outbox: how a message that a row has to send reaches its broker at least once.

1. A handler writes rows, and calls `transaction.note(rows)`: the same transaction stores a note that names them.
2. `transaction.tells` turns a noted row into its messages. Messages for a cell on the API level's broker are returned
   by the handler, and the worker loop publishes them after the commit. Messages for a cell that has a broker of its own
   are sent by that cell's dispatch (cell_dispatch.py), also after the commit; the batch does not wait for them.
3. A confirmed note is deleted in the transaction of a later batch. For notes of the API level's broker, the worker loop
   calls `clear`; for those of a cell's dispatch, `Outbox.transaction` does.
4. A note may stay, after a crash or a lost confirm. A sweep, which runs at an interval, reads it again: `pending` for
   the API level's broker, and each dispatch for its own.

Messages follow from rows (core/instances/messages.py), so nothing else is stored.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from bus.logs import InstanceLine, InstanceLog
from bus.message import Message
from bus.workers.handling import OutboxKey, Received, Tell
from bus.workers.publisher import Outgoing, Publisher
from scheduler_worker.core.instances.messages import messages_of
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.outbox.cell_dispatch import CellDispatch
from scheduler_worker.outbox.log_lines import line_of
from scheduler_worker.outbox.notes import OutboxNotes
from scheduler_worker.store import OutboxNote, SchedulerStore, SchedulerTransaction

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
        self, store: SchedulerStore, notes: OutboxNotes, dispatches: Sequence[CellDispatch] = ()
    ) -> None:
        self._store = store
        self._notes = notes
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

    async def publish(self, told: Sequence[Tell], publisher: Publisher) -> None:
        """Publish the messages of rows that were written outside of a worker's message loop, and delete their notes
        when the broker has confirmed them.
        """
        notes = list(dict.fromkeys(tell.kept for tell in told if tell.kept is not None))
        await publisher.send_all([Outgoing(tell.message) for tell in told], notes)
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
                    found += [(note.kept, message) for row in note.rows for message in messages_of(row)]
                elif len(ways) > 1:
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
