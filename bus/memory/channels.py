"""The two kinds of channel on a memory connection: for publishing and for consuming.

No answer and no delivery comes within the call that caused it. A confirm comes in a later turn of the event loop. So
there is a moment in which the parcel is stored, its publisher does not know, and the connection can be cut. A consumer
yields to the loop even while deliveries wait, so that it cannot starve others.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import takewhile

from bus.arrivals import Arrivals
from bus.broker import AccessRefused, ConsumerCancelled, Delivery, Interrupted, Parcel, Receipt, Refusal
from bus.memory.queue import MemoryQueue, QueuedParcel
from bus.memory.wire import MemoryWire
from bus.permissions import Rights


class MemoryPublishing:
    def __init__(self, wire: MemoryWire, user: str, rights: Rights) -> None:
        self._wire = wire
        self._user = user
        # A look at the rights costs 5 µs.
        self._may_publish = lru_cache(maxsize=10_000)(rights.may_publish)
        self._over = ""

    async def publish(self, parcel: Parcel) -> Receipt:
        receipt = await self._wire.tell(partial(self._store, parcel), publishing=True)
        # The moment between storing and confirming the parcel.
        journal = self._wire.host.journal
        if journal is not None and parcel.persistent:
            await journal.written()
        await asyncio.sleep(0)
        self._wire.check()
        return receipt

    async def close(self) -> None:
        self._over = self._over or "closed by its user"

    def _store(self, parcel: Parcel) -> Receipt:
        if self._over:
            raise Interrupted(f"the channel is closed: {self._over}")
        try:
            if not self._may_publish(parcel.exchange, parcel.routing_key):
                raise AccessRefused(
                    f"user {self._user!r} may not publish to exchange {parcel.exchange or 'amq.default'!r} "
                    f"with key {parcel.routing_key!r}"
                )
            return self._wire.host.store(parcel, self._user)
        except Refusal as refusal:
            # As in AMQP, an error closes the channel, not the connection.
            self._over = str(refusal)
            raise


class MemoryConsuming:
    def __init__(
        self,
        wire: MemoryWire,
        queue: MemoryQueue,
        prefetch: int,
        finished: Callable[["MemoryConsuming"], object],
    ) -> None:
        self.queue = queue
        self._wire = wire
        self._prefetch = prefetch
        self._finished = finished
        self._loop = asyncio.get_running_loop()
        self._timeout_s = wire.host.consumer_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._tag = 0
        # Unacknowledged deliveries by tag, in order.
        self._held: dict[int, QueuedParcel] = {}
        self._arrivals = Arrivals()

    async def receive(self) -> Sequence[Delivery]:
        await asyncio.sleep(0)
        return await self._arrivals.take()

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        await self._wire.tell(partial(self._settle, tag, self.queue.done_with, multiple=multiple))

    async def give_back(self, tag: int) -> None:
        give_back = partial(self._wire.host.take_back, self.queue)
        await self._wire.tell(partial(self._settle, tag, give_back))

    async def close(self) -> None:
        if self._arrivals.why_over is None:
            self.finish(ConsumerCancelled("closed by its user"))

    # Called by the queue

    def take(self, stored: QueuedParcel) -> bool:
        self._tag += 1
        tag = self._tag
        self._held[tag] = stored
        stored.held_since = self._loop.time()
        self._arrivals.put(Delivery(tag, self.queue.name, stored.parcel, stored.returns, stored.sender))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look_at_the_clock)
        return len(self._held) < self._prefetch

    # Ending

    def finish(self, why: Interrupted) -> None:
        """End the deliveries of this consumer, and put its unacknowledged parcels back into the queue."""
        returned = self.let_go(why)
        self._wire.host.take_back(self.queue, returned)
        self._wire.host.left(self.queue)
        self._finished(self)

    def let_go(self, why: Interrupted) -> list[QueuedParcel]:
        """Stop this consumer, and return its unacknowledged parcels. The caller puts them back into their queue.

        When several consumers end at once, all of them stop first. So none receives parcels that another one had.
        """
        self._arrivals.drop(why)
        self.queue.detach(self)
        if self._timer is not None:
            self._timer.cancel()
        returned = [*self._held.values()]
        self._held.clear()
        return returned

    def _settle(
        self, tag: int, settle: Callable[[list[QueuedParcel]], None], *, multiple: bool = False
    ) -> None:
        self._require(tag)
        was_full = len(self._held) >= self._prefetch
        tags = [*takewhile(tag.__ge__, self._held)] if multiple else [tag]
        settle([self._held.pop(each) for each in tags])
        if was_full:
            self.queue.has_room(self)

    def _require(self, tag: int) -> None:
        self._arrivals.check()
        if tag not in self._held:
            problem = (
                f"delivery {tag} of queue {self.queue.name!r} is not held: settled before, or never delivered"
            )
            self.finish(ConsumerCancelled(problem))
            raise Refusal(problem)

    def _look_at_the_clock(self) -> None:
        """Cancel the consumer if it has held its oldest delivery for too long.

        Otherwise set a timer for the time when it will have. One timer is enough for all deliveries, since the oldest
        one is due first.
        """
        self._timer = None
        oldest = next(iter(self._held.values()), None)
        if oldest is None:
            return
        due = oldest.held_since + self._timeout_s
        if due <= self._loop.time():
            self.finish(
                ConsumerCancelled(
                    f"a delivery of queue {self.queue.name!r} was held longer than {self._timeout_s:g} s"
                )
            )
        else:
            self._timer = self._loop.call_at(due, self._look_at_the_clock)
