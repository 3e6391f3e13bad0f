"""The batching publisher: callers send single messages, and it publishes parcels.

A parcel costs client and broker as much as seven messages in it, so messages for one destination share parcels.
A message alone on an idle bus leaves at once; while parcels are under way, messages wait a millisecond or two for
others. Confirms are not awaited one by one: a window of parcels may be unconfirmed, and a message's future is done when
its parcel is confirmed.

A broker with an alarm takes nothing for minutes. Meanwhile messages wait here as messages, not as parcels: those for
one destination still fill one parcel, and the caller may withdraw them. Their number is limited. A caller that awaits
its future is slowed down by that; for others, sending fails at the limit (`Overfull`).
"""

import asyncio
import itertools
import logging
import random
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from bus.broker import Receipt
from bus.message import Envelope, Kind, Message, Parcel
from bus.settings import BusSettings
from bus.workers.metrics import CONFIRMED
from bus.workers.sending import (
    Bucket,
    CopyOf,
    Key,
    Link,
    Outgoing,
    ParcelSender,
    Waiter,
    destination,
    key_of,
    with_copies,
)
from kit.clock import now
from kit.errors import ConnectionLost, NotTaken, Refusal, Unavailable, Undeliverable
from kit.metrics import Histogram, Readings
from kit.parts import Chance

__all__ = ["Outgoing", "Overfull", "Publisher"]

log = logging.getLogger(__name__)


_FINAL = (Receipt.CONFIRMED, Receipt.UNROUTABLE)


class Overfull(Unavailable):
    """Too many messages of this process wait for the broker. Those of this call were not accepted."""


class Publisher:
    """Publishes for one process, on its own channel. It reconnects, repeats what was not confirmed, and slows its
    callers down when the broker is slow. A message accepted by `send` is kept until the publisher is closed or the
    caller withdraws it.
    """

    def __init__(
        self,
        link: Link,
        settings: BusSettings,
        name: str,
        clock: Callable[[], datetime] = now,
        chance: Chance = random,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._name = name
        self._ids = itertools.count(1)
        self._buckets: dict[Key, Bucket] = {}
        self._full: deque[Bucket] = deque()
        # The number of messages in buckets, not yet in parcels.
        self.waiting = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        # The task of each parcel under way, and the callers that wait for it.
        self.under_way: dict[asyncio.Task[None], Mapping[Waiter, int]] = {}
        self._timer: asyncio.Handle | None = None
        # Messages have waited for their linger time, but no parcel may start.
        self._is_late = False
        # Messages that waited for the channel leave in the loop turn after it opened.
        self.sender = ParcelSender(
            link, settings, chance, lambda: asyncio.get_running_loop().call_soon(self._flush)
        )
        self._alarm: asyncio.Task[None] | None = None
        self._is_closed = False
        # Keys of messages that callers keep on rows until the broker has them, by the future of their call.
        self._kept: dict[asyncio.Future[None], Sequence[Hashable]] = {}
        # When the last alarm ended, by the event loop's clock.
        self.free_since_s = 0.0
        # If it is set, events are repeated on the feed of the project that it returns.
        self.copy_of: CopyOf | None = None
        self.answers_dropped = 0
        self._confirmed = Histogram(CONFIRMED)
        self.readings: Readings = (self._confirmed,)

    def send(self, message: Message, cause: str = "") -> asyncio.Future[None]:
        """Send one message. The future is done when the broker has it, or raises `Undeliverable`."""
        return self.send_all((Outgoing(message, cause),))

    def send_all(self, outgoing: Sequence[Outgoing], kept: Sequence[Hashable] = ()) -> asyncio.Future[None]:
        """Send many messages. The future that is returned is done when the broker has all of them.

        `kept` are the outbox keys of the messages. Until the future is done, `on_the_way` returns them.
        """
        if self.copy_of is not None:
            outgoing = with_copies(outgoing, self.copy_of)
        waiter = Waiter(len(outgoing), asyncio.get_running_loop().create_future())
        if not outgoing:
            waiter.done.set_result(None)
            return waiter.done
        if problem := self._why_not_taken(len(outgoing)):
            waiter.done.set_exception(problem)
            return waiter.done
        groups: dict[Key, list[Outgoing]] = {}
        for each in outgoing:
            key = key_of(each)
            if (group := groups.get(key)) is None:
                group = groups[key] = []
            group.append(each)
        if kept:
            self._kept[waiter.done] = kept
            waiter.done.add_done_callback(self._kept.pop)
        self.waiting += len(outgoing)
        sent_at = self._clock()
        for key, group in groups.items():
            self._add(key, group, sent_at, waiter)
        self._schedule()
        return waiter.done

    async def offer(self, parcel: Parcel) -> None:
        """Send one finished parcel by itself, to a retry exchange or to the dead letters.

        Raises `NotTaken` if a queue is full. To wait here until the queue has room would hold up all other parcels.
        """
        receipt = await self.sender.publish_until_told(parcel, lambda: False, (*_FINAL, Receipt.REFUSED))
        if receipt is Receipt.REFUSED:
            log.debug("a single parcel is refused: another channel is tried")
            receipt = await self.sender.publish_on_another_channel(parcel)
        if receipt is Receipt.UNROUTABLE:
            raise _undeliverable(parcel, 1)
        if receipt not in _FINAL:
            raise NotTaken(
                f"a queue for {parcel.routing_key!r} on {parcel.exchange!r} is full and rejected a parcel"
            )

    async def send_within(self, seconds: float, messages: Sequence[Message]) -> bool:
        """Send these messages, and withdraw those that have not left when the time is up. Were all of them confirmed?"""
        sent = self.send_all([Outgoing(message) for message in messages])
        try:
            await asyncio.wait((sent,), timeout=seconds)
        finally:
            self.withdraw(sent)
        if sent.cancelled():
            return False
        sent.result()
        return True

    def withdraw(self, sent: asyncio.Future[None]) -> None:
        """Withdraw the messages of the call that returned this future, if they have not left yet, and cancel the
        future.
        """
        if sent.done():
            return
        for bucket in self._buckets_in_order():
            self.waiting -= bucket.drop(sent)
        self._full = deque(bucket for bucket in self._full if bucket.envelopes)
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if bucket.envelopes}
        self._tell_of_room()
        for task, waiting in [*self.under_way.items()]:
            for waiter in waiting:
                waiter.is_withdrawn |= waiter.done is sent
            if self.sender.connection is None and _is_withdrawn(waiting):
                # No channel is open: the task waits for one, or for its next try.
                task.cancel()
        sent.cancel()

    @property
    def is_held(self) -> bool:
        """True while the broker has an alarm and accepts nothing from publishers."""
        connection = self.sender.connection
        return connection is not None and bool(connection.blocked)

    def on_the_way(self) -> set[Hashable]:
        """The outbox keys of all messages that were passed to this publisher and are not confirmed yet."""
        return {each for kept in self._kept.values() for each in kept}

    async def until_room(self) -> None:
        """Wait until at most half as many messages wait to be sent as `messages_waiting_max` allows."""
        while self.waiting > self._settings.messages_waiting_max // 2 and not self._is_closed:
            self._has_room.clear()
            await self._has_room.wait()

    async def close(self) -> None:
        """Send what the broker accepts within the drain time. Callers that still wait get `ConnectionLost`."""
        self._flush()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_ms_max / 1000):
                while working := [*self.under_way] or [*filter(None, (self._alarm,))]:
                    await asyncio.wait(working)
        self._is_closed = True
        self._has_room.set()
        working = [*self.under_way, *filter(None, (self._alarm,))]
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        self._tell_those_left()
        await self.sender.close()

    # Building parcels

    def _why_not_taken(self, count: int) -> Exception | None:
        if self._is_closed:
            return ConnectionLost("this publisher was closed")
        if self.waiting >= self._settings.messages_waiting_max:
            log.debug("messages are refused: too many wait for the broker")
            return Overfull(
                f"{self.waiting} messages wait for the broker, at most {self._settings.messages_waiting_max} may: "
                f"{count} more were not accepted; try again later"
            )
        return None

    def _add(self, key: Key, group: Sequence[Outgoing], sent_at: datetime, waiter: Waiter) -> None:
        """Add the messages of one call to the bucket of their destination. As many as fill a parcel leave it at once."""
        bucket, most = self._buckets.get(key), self._settings.PARCEL_ITEMS_MAX
        if bucket is None:
            bucket = self._buckets[key] = Bucket(key, destination(group[0]))
        name, ids = self._name, self._ids
        bucket.envelopes += [
            Envelope(
                message=(message := each.message),
                id=each.id or f"{name}-{next(ids)}",
                version=message.VERSION,
                sent_at=sent_at,
                cause=each.cause,
                trace=each.trace,
            )
            for each in group
        ]
        bucket.calls[waiter] = len(group)
        while len(bucket.envelopes) >= most:
            self._full.append(bucket.cut(most))
        if not bucket.envelopes:
            del self._buckets[key]

    def _schedule(self) -> None:
        """Publish full parcels now, and set the timer for other messages: the end of this loop turn, or a short wait."""
        while self._full and self._may_start():
            self._dispatch(self._full.popleft())
        if self._timer is None and not self._is_late and (self._buckets or self._full):
            loop = asyncio.get_running_loop()
            if self.under_way:
                self._timer = loop.call_later(self._settings.LINGER_MS / 1000, self._flush)
            else:
                self._timer = loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Publish all messages that may leave now, as parcels. The others go on waiting, and more can join their
        parcels.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (self._full or self._buckets) and self._may_start():
            first = self._full.popleft() if self._full else self._buckets.pop(next(iter(self._buckets)))
            self._dispatch(first)
        self._is_late = bool(self._full or self._buckets)

    def _may_start(self) -> bool:
        if self.sender.connection is None:
            # One parcel is enough to open the channel; the other messages can still be withdrawn.
            return not (self.under_way or self._is_closed)
        if len(self.under_way) >= self._settings.PARCELS_UNCONFIRMED_MAX:
            return False
        if self.is_held:
            self._wait_for_end_of_alarm()
            return False
        return not self._is_closed

    def _wait_for_end_of_alarm(self) -> None:
        connection = self.sender.connection
        if self._alarm is None and connection is not None:
            self.sender.held_back += 1
            log.warning("the broker accepts nothing: %s; messages wait here", connection.blocked)
            self._alarm = asyncio.get_running_loop().create_task(connection.until_unblocked())
            self._alarm.add_done_callback(self._alarm_ended)

    def _alarm_ended(self, waiting: asyncio.Task[None]) -> None:
        self._alarm = None
        if not waiting.cancelled():
            waiting.result()
            self.free_since_s = asyncio.get_running_loop().time()
            self._flush()

    def _buckets_in_order(self) -> Sequence[Bucket]:
        return (*self._full, *self._buckets.values())

    def _tell_of_room(self) -> None:
        if self.waiting <= self._settings.messages_waiting_max // 2:
            self._has_room.set()

    def _tell_those_left(self) -> None:
        for bucket in self._buckets_in_order():
            bucket.fail(ConnectionLost("closed before it was sent"))
        self._full.clear()
        self._buckets.clear()
        self.waiting = 0

    def _dispatch(self, bucket: Bucket) -> None:
        self.waiting -= len(bucket.envelopes)
        self._tell_of_room()
        try:
            parcels = [*bucket.parcels(self._settings.PARCEL_BYTES_MAX)]
        except Exception as problem:  # noqa: BLE001 - what has no bytes cannot leave, and who said it must know
            bucket.fail(problem)
            return
        for parcel, waiting in parcels:
            self._start(parcel, waiting, bucket.destination.kind)

    # Sending

    def _start(self, parcel: Parcel, waiting: Mapping[Waiter, int], kind: Kind) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(parcel, waiting, kind))
        self.under_way[task] = waiting
        task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        del self.under_way[task]
        if self._is_late:
            self._flush()
        elif self._full:
            self._schedule()

    async def _deliver(self, parcel: Parcel, waiting: Mapping[Waiter, int], kind: Kind) -> None:
        """Publish one parcel until its outcome is known, and tell the waiting callers."""
        problem: Exception | None = ConnectionLost("closed before the broker confirmed")
        clock_s = asyncio.get_running_loop().time
        began_s = clock_s()
        try:
            receipt = await self.sender.publish_until_told(parcel, lambda: _is_withdrawn(waiting), _FINAL)
            problem = None
            self._confirmed.observe(clock_s() - began_s)
            if receipt is Receipt.UNROUTABLE:
                count = sum(waiting.values())
                if kind is Kind.ANSWER:
                    log.debug("an answer is dropped: nobody waits for it any more")
                    self.answers_dropped += count
                else:
                    problem = _undeliverable(parcel, count)
        except Refusal as refusal:
            problem = refusal
        finally:
            for waiter, count in waiting.items():
                waiter.settle(count, problem)


def _is_withdrawn(waiting: Mapping[Waiter, int]) -> bool:
    return all(waiter.is_withdrawn for waiter in waiting)


def _undeliverable(parcel: Parcel, count: int) -> Undeliverable:
    return Undeliverable(
        f"no queue takes {parcel.routing_key!r} on {parcel.exchange!r} ({count} messages): is the topology declared "
        "there, and does the cell exist?"
    )
