"""Receives parcels for a worker and splits them into messages. A parcel is acknowledged when all its messages are done.

A parcel comes back if the worker that had it died or lost its connection. Mostly a worker was stopped, and no message is to
blame. So the first time it is handled like any other, at full speed. Then it is taken apart: each message returns to the queue by
itself, is handled alone, and is settled before the next. After each further return the order is another one. So if a message kills
its workers, it has other messages before it at each death, these are soon handled, and it alone reaches its limit of attempts.
"""

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from msgspec import Struct, structs

from bus.broker import PREFETCH_MAX, Connection, Consuming, Delivery, Origin, Pace
from bus.codec import NewerVersion, lines_of
from bus.message import Envelope, Message, Parcel, type_of
from bus.queues import QueueKind
from bus.topology import broker_user_of, kind_of, project_of_key
from bus.unreadable import Unreadable
from bus.workers.authority import Refused, all_count, judge, judge_parcel, origin_of, speaks_for
from bus.workers.connections import Station
from bus.workers.consuming import Subscription, consumer
from bus.workers.dead_letters import Parked, dead_letter_parcel, parked_of, retry_parcel
from bus.workers.handlers import Received, all_received
from bus.workers.metrics import TOOK, WAITED
from bus.workers.sending import pauses_of
from kit.errors import Interrupted, NotTaken
from kit.metrics import Histogram, Readings
from kit.parts import Status, Supervised, drawn, wait_at_most

log = logging.getLogger(__name__)


class OpenParcel(Struct, eq=False):
    """A parcel that is not acknowledged yet, and how many of its messages are not done."""

    consuming: Consuming
    delivery: Delivery
    origin: Origin
    parked: Parked
    # The only cell that its sender may speak for; None for any cell.
    cell: str | None
    # When it was opened, by the event loop's clock, and with how many messages.
    opened_s: float
    items: int = 1
    not_done: int = 1

    @property
    def tag(self) -> int:
        return self.delivery.tag

    @property
    def attempts(self) -> int:
        """How often its messages were tried before: as was counted when they were parked, and by each delivery since. If they met a bug,
        the first return is no try: their process has passed them on.
        """
        return self.parked.attempts + max(self.delivery.returns - bool(self.parked.failed_in), 0)


class Item(Struct, frozen=True, eq=False):
    """One received message, its line, and its parcel."""

    line: bytes
    parcel: OpenParcel
    received: Received[Any]


# A message that was tried so often is handled alone.
TRIED_ALONE_FROM = 2
# A message that has used up its attempts is decoded this many more times, to release what was claimed for it.
SPENT_READS_MAX = 3

# Stands for a message that could not be read.
NOTHING_READ: Received[Any] = Received(message=None, id="", trace="", sender="", reply_to="", attempts=0)


class Intake:
    """Receives the messages of one subscription for one worker."""

    def __init__(
        self,
        station: Station,
        subscription: Subscription[Any],
        before_burial: Callable[[Received[Any]], Awaitable[None]],
    ) -> None:
        """`before_burial` is awaited before a message is buried, if the subscription says how to release what was claimed for it."""
        self.queue = subscription.queue
        settings = self._settings = station.settings
        ahead = max(settings.prefetch, settings.BATCH_ITEMS_MAX) if subscription.singly else settings.prefetch
        self._prefetch = min(ahead * subscription.batches_in_flight, PREFETCH_MAX)
        # The broker reports that a parcel came back to this queue, but not how often.
        self._is_uncounted = kind_of(self.queue) is QueueKind.QUESTIONS
        self._before_burial = before_burial if subscription.before_burial else None
        self._station = station
        self._facts = station.consuming.facts
        self._chance = station.chance
        # Parcels as received. They are decoded when a batch needs them, since thousands of waiting messages cost more
        # memory than their bytes.
        self._unopened: deque[tuple[Consuming, Delivery]] = deque()
        self._ready: deque[Item] = deque()
        # Parcels of one message that is handled alone, by its turn and its tag. It is decoded when it is handled, since decoding may be
        # what kills the worker.
        self._alone: list[tuple[bytes, int, bytes, OpenParcel]] = []
        self._arrived = asyncio.Event()
        self._stopping = asyncio.Event()
        # Unacknowledged parcels by tag, in the order in which they were opened.
        self._open: dict[int, OpenParcel] = {}
        self._pending: set[asyncio.Task[None]] = set()
        # Those that are handled alone and other messages take turns.
        self._was_alone = False
        self._pace = Pace()
        pauses = pauses_of(settings)
        self.receiving = Supervised(
            f"{self.queue}: consume", self._receive, is_needed=True, pauses=pauses, chance=self._chance
        )
        # These fail while the dead-letter queue or the worker's own queue accepts nothing, because it is full or
        # missing.
        self.burying = Status(f"{self.queue}: bury", pauses=pauses, chance=self._chance)
        self.putting_back = Status(f"{self.queue}: put back", pauses=pauses, chance=self._chance)
        self.burials_waiting = 0
        self.put_back = 0
        self.buried = 0
        self.interruptions = 0
        self.redelivered = 0
        self._waited = Histogram(WAITED)
        self._took = Histogram(TOOK)
        self._labels = (self.queue,)
        self.readings: Readings = (self._waited, self._took)

    @property
    def in_hand(self) -> int:
        """The number of received parcels that are not acknowledged yet."""
        return len(self._open) + len(self._unopened)

    async def batch(self) -> Sequence[Item]:
        """Wait for messages, and return the next ones to handle together. Empty when the worker stops."""
        while not self._stopping.is_set():
            self._open_some()
            if self._alone and not (self._was_alone and self._ready):
                self._was_alone = True
                # Others that came back with it may still arrive, and have their turn before it.
                await asyncio.sleep(self._settings.LINGER_MS / 1000)
                self._open_some()
                if (item := self._next_alone()) is None:
                    continue
                log.debug("a message that has come back often is handled alone")
                self._measure_wait((item,))
                return (item,)
            if self._ready:
                now_s = asyncio.get_running_loop().time()
                if wait_s := self._pace.wait_s(now_s, len(self._ready), self._settings.GATHER_MS / 1000):
                    await asyncio.sleep(wait_s)
                    continue
                self._pace.begun(now_s)
                self._was_alone = False
                items = min(len(self._ready), self._settings.BATCH_ITEMS_MAX)
                batch = [self._ready.popleft() for _ in range(items)]
                self._measure_wait(batch)
                return batch
            if not (self._alone or self._unopened):
                self._arrived.clear()
                await self._arrived.wait()
        return ()

    def _next_alone(self) -> Item | None:
        """The next message that is handled alone. None if it cannot be handled."""
        if not self._alone:
            return None
        _, _, line, held = heapq.heappop(self._alone)
        read = self._read(line, held)
        return None if read is None else Item(line, held, read)

    async def done(self, parcels: Sequence[OpenParcel]) -> None:
        """Note that one more message of each of these parcels is done, and acknowledge the parcels that are complete.

        Those that were delivered before all others in hand are acknowledged at once, the others one by one.
        """
        complete: dict[int, OpenParcel] = {}
        for held in parcels:
            held.not_done -= 1
            if held.not_done == 0 and self._open.get(held.tag) is held:
                complete[held.tag] = held
        for tag in complete:
            del self._open[tag]
        if complete:
            # All as long as the first one: they were handled together.
            took_s = asyncio.get_running_loop().time() - next(iter(complete.values())).opened_s
            self._took.observe(took_s, sum([held.items for held in complete.values()]), self._labels)
        before = next(iter(self._open), None)
        first = [tag for tag in complete if before is None or tag < before]
        up_to = complete[max(first)] if first else None
        single = [held for tag, held in complete.items() if up_to is None or tag > up_to.tag]
        # If an acknowledgement is lost with its connection, the message is delivered again, which handlers expect.
        with suppress(Interrupted):
            if up_to is not None:
                await up_to.consuming.acknowledge(up_to.tag, multiple=True)
            for held in single:
                await held.consuming.acknowledge(held.tag)

    def put_back_later(
        self, item: Item, delay_ms: float, *, counts: bool = True, failed_in: str = ""
    ) -> None:
        """Return one message to its queue after a pause, with one more attempt if `counts` is set, and with the process in which it met
        a bug.

        The other messages of its parcel do not wait for that.
        """
        self.put_back += 1
        parked = item.parcel.parked
        if counts:
            parked = structs.replace(
                parked, attempts=parked.attempts + 1, failed_in=failed_in or parked.failed_in
            )
        self._start(self._send_back(item.parcel, delay_ms, item.line, parked))

    def bury(self, item: Item, reason: str) -> None:
        """Dead-letter one message. It counts as done when the dead-letter queue has accepted it.

        The other messages of its parcel do not wait for that.
        """
        self._start(self._bury(item, reason))

    def stop(self) -> None:
        """Return no more batches, and end the pauses before messages are put back."""
        self._stopping.set()
        self._arrived.set()

    async def drain(self) -> None:
        """Finish the background work. Its messages are acknowledged, so the queue must still be consumed."""
        if self._pending:
            await asyncio.wait(self._pending, timeout=self._settings.drain_ms_max / 1000)
        for task in tuple(self._pending):
            task.cancel()

    # Receiving

    async def _receive(self) -> None:
        """Consume the queue over one connection, until the connection breaks or the broker refuses."""
        async with consumer(self._station.consuming, self.receiving.status, self._opened) as consuming:
            try:
                while True:
                    for delivery in await consuming.receive():
                        self._unopened.append((consuming, delivery))
                        self._pace.arrived(asyncio.get_running_loop().time())
                    self._arrived.set()
            except Interrupted:
                # The broker delivers everything unacknowledged again, to this worker or another.
                self.interruptions += 1
                for forgotten in (self._open, self._unopened, self._ready, self._alone):
                    forgotten.clear()
                raise

    async def _opened(self, connection: Connection) -> Consuming:
        return await connection.open_consuming(self.queue, self._prefetch)

    def _open_some(self) -> None:
        """Decode waiting parcels until there are enough messages for one batch. Others wait as bytes, which cost little."""
        while self._unopened and len(self._ready) < self._settings.BATCH_ITEMS_MAX:
            self._take(*self._unopened.popleft())

    def _take(self, consuming: Consuming, delivery: Delivery) -> None:
        held = self._hold(consuming, delivery)
        self.redelivered += bool(delivery.returns)
        if held.parked.failed_in == self._station.name and not (delivery.returns or self._is_uncounted):
            log.debug("a message has met a bug in this process: it is passed on to another")
            self._start(self._pass_on(held))
            return
        lines = self._lines_of(held)
        if isinstance(lines, Unreadable):
            self.bury(Item(lines.line, held, NOTHING_READ), lines.reason)
            return
        is_apart = held.attempts >= TRIED_ALONE_FROM
        if (is_apart and len(lines) > 1) or (delivery.returns and self._is_uncounted):
            log.debug("a parcel has come back: each of its messages returns to the queue by itself")
            self._start(self._take_apart(held, lines))
        elif is_apart:
            # Another order after each return.
            turn = blake2b(b"%d " % held.attempts + lines[0], digest_size=8).digest()
            heapq.heappush(self._alone, (turn, held.tag, lines[0], held))
        else:
            held.not_done = held.items = len(lines)
            read = self._plain(lines, held) or [self._read(line, held) for line in lines]
            self._ready.extend(
                [Item(line, held, each) for line, each in zip(lines, read, strict=True) if each is not None]
            )

    def _plain(self, lines: Sequence[bytes], held: OpenParcel) -> Sequence[Received[Any] | None]:
        """The messages of a parcel, if none of them needs a closer look: none was tried before, all can be read, and count.

        Otherwise this is empty: then they are looked at one by one.
        """
        if held.attempts:
            return ()
        found = [each for each in map(self._station.codec.decode, lines) if isinstance(each, Envelope)]
        if len(found) < len(lines) or not all_count(
            [each.message for each in found], held.origin, self._facts
        ):
            return ()
        return all_received(found, held.origin, 0, held.cell)

    def _lines_of(self, held: OpenParcel) -> Sequence[bytes] | Unreadable:
        """The messages of a parcel, still encoded. Or the reason why the parcel as a whole is refused."""
        parcel, refused = held.delivery.parcel, judge_parcel(held.origin, self._facts)
        if refused is not None:
            log.debug("a whole parcel is refused: its sender may not send it")
            return Unreadable(parcel.body, refused.reason)
        return lines_of(parcel) or Unreadable(parcel.body, "empty: there is no message in it")

    def _hold(self, consuming: Consuming, delivery: Delivery) -> OpenParcel:
        """Note that a parcel is in hand. It counts as one message until it is known how many it has."""
        origin = origin_of(delivery, self._facts)
        cell = speaks_for(origin.sender, self._facts)
        opened_s = asyncio.get_running_loop().time()
        held = self._open[delivery.tag] = OpenParcel(
            consuming, delivery, origin, parked_of(delivery.parcel), cell, opened_s
        )
        return held

    def _measure_wait(self, batch: Sequence[Item]) -> None:
        """Note how long the messages of a batch have waited, all as long as its first one: parcels are many, and small."""
        if (sent_at := batch[0].received.sent_at) is not None:
            self._waited.observe((self._station.clock() - sent_at).total_seconds(), len(batch), self._labels)

    def _judged(self, line: bytes, envelope: Envelope[Message], held: OpenParcel) -> Received[Any] | None:
        """The message as a handler gets it, if it counts (bus/workers/authority.py).

        If it does not count and its sender may be told why, the handler gets a stand-in with the reason. Otherwise the
        message is dead-lettered here, and the result is None.
        """
        refused = judge(envelope.message, held.origin, self._facts)
        if refused is not None:
            if not refused.is_told:
                log.debug("a message is refused, and becomes a dead letter")
                self.bury(Item(line, held, NOTHING_READ), refused.reason)
                return None
            log.debug("a message is refused, and its sender is told why")
            told = _told(envelope.message, refused, envelope.id, held.origin.key)
            envelope = structs.replace(envelope, message=told)
        return all_received((envelope,), held.origin, held.attempts, held.cell)[0]

    def _read(self, line: bytes, held: OpenParcel) -> Received[Any] | None:
        """Decode one message of a parcel as a handler gets it.

        A message that cannot be read becomes a stand-in with the reason. The result is None if the message was left
        to a newer worker, or has come back too often. That is checked before decoding, since decoding may be what
        kills the worker.
        """
        if held.attempts >= self._settings.ATTEMPTS_MAX:
            self._bury_spent(line, held)
            return None
        read = self._station.codec.decode(line)
        if isinstance(read, NewerVersion):
            self._leave_for_newer(read, held)
            return None
        if isinstance(read, Unreadable):
            read = structs.replace(read, project=project_of_key(held.origin.key))
            unread = Envelope[Message](message=read, id=read.id)
            return all_received((unread,), held.origin, held.attempts, held.cell)[0]
        return self._judged(line, read, held)

    def _bury_spent(self, line: bytes, held: OpenParcel) -> None:
        """Dead-letter a message that has used up its attempts.

        Decoding it may be what kills the worker. So it is decoded only in workers that release what was claimed for a
        message before they bury it: they must read what that was. Decoding is tried a few times, since the cause may be
        something else. Then the message is dead-lettered without being decoded.
        """
        attempts = held.attempts
        why = f"came back {attempts} times: the worker that had it died or lost its connection"
        is_read = self._before_burial is not None and attempts < self._settings.ATTEMPTS_MAX + SPENT_READS_MAX
        read = self._station.codec.decode(line) if is_read else None
        if isinstance(read, Envelope):
            judged = self._judged(line, read, held)
            if judged is not None:
                self.bury(Item(line, held, judged), why)
        else:
            log.debug("a message without an attempt left is buried unread")
            self.bury(Item(line, held, NOTHING_READ), why)

    def _leave_for_newer(self, newer: NewerVersion, held: OpenParcel) -> None:
        """Return a message of a newer version to its queue: a worker of a later release will read it.

        Only messages from workers wait so, and not for ever. Messages of other senders are dead-lettered.
        """
        what = f"version {newer.version} of {newer.type!r} is newer than what this worker reads"
        waits = held.parked.waits
        if waits >= self._settings.NEWER_WAITS_MAX:
            log.debug("a message of a newer version has waited for a newer worker in vain")
            what = f"{what}; it was returned {waits} times to wait for a newer one, and none came"
        elif self._is_from_a_worker(held.origin.sender):
            log.error("%s: left for a newer worker on %s", what, self.queue)
            parked = structs.replace(held.parked, waits=waits + 1)
            self._start(self._send_back(held, self._settings.NEWER_DELAY_MS, newer.line, parked))
            return
        self.bury(Item(newer.line, held, NOTHING_READ), what)

    def _is_from_a_worker(self, sender: str) -> bool:
        """Whether this user may belong to a worker. On a broker without users of the topology, our own user counts too."""
        speaker = broker_user_of(sender)
        return sender == self._station.consuming.broker.user if speaker is None else speaker.is_worker

    # Settling single messages

    async def _pass_on(self, held: OpenParcel) -> None:
        """Give back what has met a bug in this process, for another one to try. It comes here again only if no other is free.

        The broker gives messages to processes in turn. So without this, two that take turns may each come to the process that failed at
        it, at every try.
        """
        if self._open.get(held.tag) is not held:
            return
        with suppress(Interrupted):
            await held.consuming.give_back(held.tag)
        # It is in hand until then: all before a later one may be acknowledged together.
        if self._open.get(held.tag) is held:
            del self._open[held.tag]

    async def _take_apart(self, held: OpenParcel, lines: Sequence[bytes]) -> None:
        """Return each message of a parcel to the queue by itself. The parcel is acknowledged when the queue has all of them."""
        # A queue that does not count says only that they came back: a larger number is of their sender.
        returns = min(held.delivery.returns, 1) if self._is_uncounted else held.delivery.returns
        parked = structs.replace(held.parked, attempts=held.parked.attempts + returns)
        sent = await asyncio.gather(*[self._to_queue(line, held, parked) for line in lines])
        if all(sent):
            await self.done([held])

    async def _send_back(self, held: OpenParcel, delay_ms: float, line: bytes, parked: Parked) -> None:
        await wait_at_most(self._stopping, drawn(delay_ms, self._chance) / 1000)
        if await self._to_queue(line, held, parked):
            await self.done([held])

    async def _to_queue(self, line: bytes, held: OpenParcel, parked: Parked) -> bool:
        parcel = retry_parcel(line, self.queue, held.origin, parked)
        return await self._until_done(lambda: self._station.publisher.offer(parcel), held, self.putting_back)

    async def _bury(self, item: Item, reason: str) -> None:
        give_back, held = self._before_burial, item.parcel
        if give_back is None or await self._until_done(lambda: give_back(item.received), held, self.burying):
            await self._bury_line(held, item.line, reason)

    async def _bury_line(self, held: OpenParcel, line: bytes, reason: str) -> None:
        self.buried += 1
        log.error("dead letter from %s: %s", self.queue, reason)
        letter = dead_letter_parcel(
            line,
            self.queue,
            held.origin,
            reason=reason,
            attempts=held.parked.attempts,
            where=self._station.name,
            letter=f"{self._station.name}-{self.buried}",
            at=self._station.clock(),
        )
        self.burials_waiting += 1
        try:
            is_taken = await self._until_done(lambda: self._offer_letter(letter, held), held, self.burying)
        finally:
            self.burials_waiting -= 1
        if is_taken:
            await self.done([held])

    async def _offer_letter(self, letter: Parcel, held: OpenParcel) -> None:
        """Send a message to the dead letters. If these are full, one from an application is dropped: an application that sends
        unreadable messages would else fill this worker's prefetch with them, and stop it for all others.
        """
        try:
            await self._station.publisher.offer(letter)
        except NotTaken as full:
            speaker = broker_user_of(held.origin.sender)
            if speaker is None or not speaker.application:
                raise
            log.warning("dropped a dead letter of %s: %s", held.origin.sender, full)

    async def _until_done(
        self, work: Callable[[], Awaitable[None]], held: OpenParcel, status: Status
    ) -> bool:
        """Retry this work for a parcel until it succeeds. Returns False if the broker will deliver the parcel again.

        That is the case if the connection broke, or if the worker stops.
        """
        while self._open.get(held.tag) is held:
            pause_s = await status.tried(work)
            if pause_s is None:
                status.well()
                return True
            if self._stopping.is_set():
                return False
            await wait_at_most(self._stopping, pause_s)
        return False

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._pending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._pending.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            # It is unacknowledged and so not lost: the broker delivers it again when this consumer closes.
            log.error("a message could not be put back or buried, and stays unacknowledged: %s", problem)


def _told(message: Message, refused: Refused, id_: str, key: str) -> Unreadable:
    return Unreadable(
        b"",
        refused.reason,
        kind=type_of(message),
        id=id_,
        request_id=getattr(message, "request_id", None),
        field=refused.field,
        value=refused.value,
        project=project_of_key(key),
    )
