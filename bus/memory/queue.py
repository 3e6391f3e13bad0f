"""A queue: the properties of its kind, its parcels, and the order of its consumers.

It knows nothing of connections. It gives parcels to consumers in turn, as long as they have room, and takes back what
they return.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from bus.broker import ConsumerCancelled, Parcel
from bus.memory.journal import Journal
from bus.memory.journal_file import JournaledParcel
from bus.topology import QueueProperties

if TYPE_CHECKING:
    from bus.memory.channels import MemoryConsuming


class QueuedParcel(Struct, eq=False):
    """One parcel in one queue."""

    parcel: Parcel
    sender: str
    position: int
    # Its row number in the journal; 0 if it is not there.
    row: int = 0
    returns: int = 0
    held_since: float = 0.0


class MemoryQueue:
    def __init__(
        self,
        name: str,
        properties: QueueProperties,
        owner: object | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.name = name
        self.properties = properties
        self.owner = owner
        self._journal = journal if properties.durable else None
        # Parcels that came back too often and are not in the dead-letter queue yet. They count against the length, as
        # in RabbitMQ: a queue whose dead letters go nowhere fills up instead of losing them.
        self.discarded: deque[QueuedParcel] = deque()
        # The size of the ready parcels, if it is limited.
        self._bytes = 0
        self._ready: deque[QueuedParcel] = deque()
        self._consumers: dict[MemoryConsuming, None] = {}
        # Consumers with room, the next one first. While there is one, no parcel is ready.
        self._waiting: deque[MemoryConsuming] = deque()
        self._position = 0
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def depth(self) -> int:
        return len(self._ready)

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    def offer(self, parcel: Parcel, sender: str) -> bool:
        """Store the parcel in this queue, or deliver it at once. Returns False if the queue is full."""
        drops, length_max = self.properties.drops_oldest, self.properties.length_max
        if not drops and length_max is not None and len(self._ready) + len(self.discarded) >= length_max:
            return False
        self._position += 1
        row = (
            self._journal.arrived(self.name, parcel, sender)
            if self._journal is not None and parcel.persistent
            else 0
        )
        stored = QueuedParcel(parcel, sender, self._position, row)
        self._ready.append(stored)
        self._bytes += self._size_of((stored,))
        self._serve()
        if drops:
            self._drop_down_to_limits()
        return True

    def attach(self, consumer: "MemoryConsuming") -> None:
        self._consumers[consumer] = None
        self._stop_expiry()
        self.has_room(consumer)

    def detach(self, consumer: "MemoryConsuming") -> None:
        self._consumers.pop(consumer, None)
        if consumer in self._waiting:
            self._waiting.remove(consumer)

    def has_room(self, consumer: "MemoryConsuming") -> None:
        """Note that this consumer can take parcels, and deliver some if any are ready. It is new, or was full before."""
        self._waiting.append(consumer)
        self._serve()

    def take_back(self, returned: Iterable[QueuedParcel]) -> None:
        """Put unacknowledged parcels back at their old positions, and count that each was returned once more."""
        kept = []
        for stored in returned:
            stored.returns = stored.returns + 1 if self.properties.counts_returns else 1
            if self._came_back_too_often(stored):
                self.discarded.append(stored)
            else:
                kept.append(stored)
        self._put_in_order(kept)
        self._serve()

    def done_with(self, done: Iterable[QueuedParcel]) -> None:
        """Delete these parcels from the journal: they were acknowledged, dropped or dead-lettered."""
        if self._journal is not None:
            for stored in done:
                if stored.row:
                    self._journal.done(stored.row)

    def restore(self, kept: JournaledParcel) -> None:
        """Put a parcel from the journal into this queue, behind those restored before."""
        self._position += 1
        returns = kept.returns if self.properties.counts_returns else min(kept.returns, 1)
        stored = QueuedParcel(kept.parcel, kept.sender, self._position, kept.row, returns)
        if self._came_back_too_often(stored):
            self.discarded.append(stored)
        else:
            self._ready.append(stored)
            self._bytes += self._size_of((stored,))

    def forget_transient(self) -> None:
        """After a restart: keep persistent parcels only."""
        self._ready = deque(stored for stored in self._ready if stored.parcel.persistent)
        self.discarded = deque(stored for stored in self.discarded if stored.parcel.persistent)
        self._bytes = self._size_of(self._ready)

    def delete(self) -> None:
        self._stop_expiry()
        self._ready.clear()
        self.discarded.clear()
        if self._journal is not None:
            self._journal.deleted(self.name)
        for consumer in [*self._consumers]:
            consumer.finish(ConsumerCancelled(f"queue {self.name!r} was deleted while it was consumed"))

    def expire_unless_used(self, expired: Callable[["MemoryQueue"], None]) -> None:
        """Start the timer that deletes a queue without consumers, if this queue has such a timer and no consumers."""
        if self.properties.expires_ms is None or self._consumers:
            return
        self._stop_expiry()
        self._expiry = asyncio.get_running_loop().call_later(self.properties.expires_ms / 1000, expired, self)

    def _drop_down_to_limits(self) -> None:
        length_max, bytes_max = self.properties.length_max, self.properties.bytes_max
        while (length_max is not None and len(self._ready) > length_max) or (
            bytes_max is not None and self._bytes > bytes_max
        ):
            self.done_with((self._next_ready(),))

    def _next_ready(self) -> QueuedParcel:
        stored = self._ready.popleft()
        self._bytes -= self._size_of((stored,))
        return stored

    def _size_of(self, parcels: Iterable[QueuedParcel]) -> int:
        """How many bytes these parcels have. 0 if this queue has no limit of them: parcels may have no bytes yet."""
        if self.properties.bytes_max is None:
            return 0
        return sum(len(stored.parcel.body) for stored in parcels)

    def _serve(self) -> None:
        ready, waiting = self._ready, self._waiting
        while ready and waiting:
            consumer, stored = waiting.popleft(), self._next_ready()
            if stored.row and self._journal is not None:
                self._journal.delivered(self.name, stored.row, stored.returns)
            if consumer.take(stored):
                waiting.append(consumer)

    def _came_back_too_often(self, stored: QueuedParcel) -> bool:
        return self.properties.deliveries_max is not None and stored.returns > self.properties.deliveries_max

    def _put_in_order(self, returned: list[QueuedParcel]) -> None:
        """Insert returned parcels by position: before later parcels, behind earlier ones that were requeued already."""
        if not returned:
            return
        self._bytes += self._size_of(returned)
        last = max(stored.position for stored in returned)
        while self._ready and self._ready[0].position < last:
            returned.append(self._ready.popleft())
        self._ready.extendleft(sorted(returned, key=attrgetter("position"), reverse=True))

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
