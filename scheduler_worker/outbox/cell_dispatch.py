"""The dispatch of messages to cells that have a broker of their own.

A batch is acknowledged to the broker that it came from, and must not wait for another one: a cell's broker that is away
would hold up the requests of all cells. The messages are on their rows already, so the batch commits and leaves
them here. Each row has its own note, which is deleted with a later batch's write once it is confirmed; a sweep sends
again what was not confirmed. Only a limited number is under way to one broker: other rows wait in the database, and are
read from there a page at a time when there is room again.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from bus.parts import Periodic
from bus.topology import CELL, destination_of, in_cell
from bus.workers.handling import OutboxKey
from bus.workers.publisher import Outgoing, Publisher
from bus.workers.station import Station
from scheduler_worker.core.instances.messages import messages_of
from scheduler_worker.outbox.notes import OutboxNotes

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
        return self._notes.unsaid_after.total_seconds() if self._is_behind else self._station.settings.sweep_s

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
                    messages = [Outgoing(message) for row in note.rows for message in messages_of(row)]
                    self.send([(note.kept, messages)])
