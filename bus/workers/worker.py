"""The worker loop: gives a queue's messages in batches to handlers, and publishes their results, without losing any.

For each batch it opens a transaction, lets the handler decide and save, commits, publishes the results, waits for the
confirms, and only then acknowledges the messages. A crash at any point replays the batch. Handlers prevent double
effects: they find their earlier work in their rows, and publish the same results again.

Batches adapt to the load: a batch takes what has arrived, up to a few hundred messages, and a single message on an idle
system is handled at once. While one batch waits for its confirms, the next is already handled.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic

from msgspec import structs

from bus.broker import chunks
from bus.message import Message, type_of
from bus.unreadable import Unreadable
from bus.workers.connections import Station
from bus.workers.consuming import Subscription
from bus.workers.handlers import (
    Bury,
    GiveUp,
    Handler,
    OneByOne,
    OutboxKey,
    PutBack,
    ReadOnly,
    Received,
    Said,
    Tell,
    Tx,
    Weighed,
    after_failure,
    backoff_ms,
    runs,
)
from bus.workers.intake import TRIED_ALONE_FROM, Intake, Item
from bus.workers.metrics import (
    BATCHES,
    BURIALS_WAITING,
    BURIED,
    HANDLED,
    IN_HAND,
    INTERRUPTIONS,
    PUT_BACK,
    REDELIVERED,
)
from bus.workers.publisher import Outgoing
from bus.workers.sending import pauses_of
from kit import logs
from kit.errors import Locked, TookTooLong, Transient, Unavailable
from kit.logs import MessageTracer, OpenSpan
from kit.metrics import Readings
from kit.parts import Periodic, drawn, operational

log = logging.getLogger(__name__)


class Worker(Generic[Tx]):
    """The loop that handles the messages of one queue. A process runs one for each queue that its role reads."""

    def __init__(self, station: Station, subscription: Subscription[Tx]) -> None:
        self.subscription = subscription
        # Returned and buried messages stay on the station's own broker.
        self._publisher = subscription.says_by or station.publisher
        self._name = station.name
        self._settings = station.settings
        self._chance = station.chance
        self.intake = Intake(station, subscription, self._give_back)
        self.readings = self.intake.readings
        # Confirmed, but still on their rows: cleared with the next batch's transaction.
        self._confirmed: list[OutboxKey] = []
        self._unconfirmed: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._bug: BaseException | None = None
        sweep = Periodic(
            f"{subscription.queue}: say what is kept",
            self._say_what_is_kept,
            self._settings.SWEEP_S,
            pauses=pauses_of(self._settings),
            chance=self._chance,
        )
        sweeping = (sweep,) if subscription.outbox and subscription.sweeps else ()
        self._beside = (self.intake.receiving, *sweeping)
        self.parts = (*self._beside, self.intake.burying, self.intake.putting_back)
        self.handled = 0
        self.batches = 0
        # The number of batches when a statement last took too long.
        self._batches_when_slow = 0

    @property
    def watched_readings(self) -> Readings:
        intake = self.intake
        numbers = {
            HANDLED: self.handled,
            BATCHES: self.batches,
            PUT_BACK: intake.put_back,
            BURIED: intake.buried,
            REDELIVERED: intake.redelivered,
            INTERRUPTIONS: intake.interruptions,
            IN_HAND: intake.in_hand,
            BURIALS_WAITING: intake.burials_waiting,
        }
        return [metric.numbers({(intake.queue,): number}) for metric, number in numbers.items()]

    async def run(self) -> None:
        """Handle messages until `stop` is called. Then finish the current work and return all other messages to the queue."""
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(part.run()) for part in self._beside]
            try:
                async with asyncio.TaskGroup() as handling:
                    for _ in range(self.subscription.batches_in_flight):
                        handling.create_task(self._handle_batches())
                await self._until_unconfirmed_below(1)
            finally:
                await self.intake.drain()
                # Unacknowledged messages return to the queue when the consumer closes.
                for task in beside:
                    task.cancel()
        if self._bug is not None:
            raise self._bug

    async def _handle_batches(self) -> None:
        while batch := await self.intake.batch():
            await self._publisher.until_room()
            await self._take(batch)
            # A message that is handled alone is settled before the next is handled: the next one may kill the worker.
            is_alone = len(batch) == 1 and batch[0].received.attempts >= TRIED_ALONE_FROM
            most = self._settings.BATCHES_UNSAID_MAX * self.subscription.batches_in_flight
            await self._until_unconfirmed_below(1 if is_alone else most)

    async def stop(self) -> None:
        self._stopping = True
        self.intake.stop()

    async def say(self, outgoing: Sequence[Outgoing], kept: Sequence[OutboxKey]) -> None:
        """Publish these messages. When the broker has confirmed them, the outbox is cleared of these keys with the next batch."""
        await self._publisher.send_all(outgoing, kept)
        self._confirmed.extend(kept)

    async def _take(self, batch: Sequence[Item]) -> None:
        """Give messages with the same handler to it together."""
        messages = [item.received.message for item in batch]
        for handler, items in runs(batch, messages, self.subscription.handlers):
            if handler is None:
                for item in items:
                    message = item.received.message
                    unread = message.reason if isinstance(message, Unreadable) else ""
                    self.intake.bury(
                        item, unread or f"no handler for {type_of(message)!r} on {self.intake.queue}"
                    )
            elif isinstance(handler, Weighed):
                weights = [handler.weight_of(item.received.message) for item in items]
                for portion in chunks(weights, handler.weight_max):
                    await self._handle(handler.handle, items[portion])
            else:
                await self._handle(handler, items)

    async def _handle(self, handler: Handler | ReadOnly, items: Sequence[Item]) -> None:
        """Run the handler on a batch and save the result. Publishing and settling continue beside the next batch."""
        spans: Sequence[OpenSpan] = ()
        if (tracer := logs.tracer()) is not None:
            items, spans = _traced(items, self.intake.queue, tracer)
        try:
            said = await self._in_tries(
                partial(self._decide_and_save, handler, [item.received for item in items])
            )
        except Exception as problem:  # noqa: BLE001 - the only place that handles failures of handlers
            _end(spans, problem)
            await self._failed(handler, items, problem)
            return
        self.batches += 1
        self.handled += len(items)
        leaving = _Leaving(said)
        confirmed = self._publisher.send_all(leaving.outgoing, leaving.kept)
        task = asyncio.get_running_loop().create_task(self._settle(handler, items, leaving, confirmed))
        self._unconfirmed.add(task)
        task.add_done_callback(self._settled)
        if spans:
            task.add_done_callback(lambda _: _end(spans))

    async def _in_tries(self, work: Callable[[], Awaitable[Sequence[Said]]]) -> Sequence[Said]:
        """Run this work, and again after a pause whenever it fails transiently.

        The error is raised after `TRIES_IN_PLACE_MAX` tries, or once the worker is stopping. While a server is down,
        the number of tries has no limit.
        """
        tries = 0
        while True:
            tries += 1
            try:
                return await work()
            except Transient as problem:
                if self._gives_up(problem, tries):
                    raise
            log.debug("a batch has failed for the moment, and is handled again")
            await asyncio.sleep(drawn(backoff_ms(tries, self._settings), self._chance) / 1000)

    async def _decide_and_save(
        self, handler: Handler | ReadOnly, messages: Sequence[Received[Any]]
    ) -> Sequence[Said]:
        if isinstance(handler, ReadOnly):
            return await handler.handle(messages)
        clearing, self._confirmed = self._confirmed, []
        try:
            async with self.subscription.store.transaction() as tx:
                said = await handler(messages, tx)
                if clearing and self.subscription.outbox is not None:
                    await self.subscription.outbox.clear(tx, clearing)
        except BaseException:
            self._confirmed += clearing
            raise
        self.subscription.committed()
        return said

    async def _settle(
        self,
        handler: Handler | ReadOnly,
        items: Sequence[Item],
        leaving: "_Leaving",
        confirmed: "asyncio.Future[None]",
    ) -> None:
        try:
            await confirmed
        except Exception as problem:  # noqa: BLE001 - as in _handle: the next try publishes the saved results again
            await self._failed(handler, items, problem)
            return
        self._confirmed.extend(leaving.kept)
        buried = leaving.buried
        for item in items if buried else ():
            if (reason := buried.get(id(item.received))) is not None:
                self.intake.bury(item, reason)
        await self.intake.done(
            [item.parcel for item in items if not buried or id(item.received) not in buried]
        )

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._unconfirmed.discard(task)
        if task.cancelled() or (problem := task.exception()) is None:
            return
        # It is unacknowledged and so not lost: the broker delivers it again when this consumer closes.
        log.error("a batch could not be settled, and stays unacknowledged: %s", problem, exc_info=problem)
        if operational(problem) is None:
            self._bug = problem
            self.intake.stop()

    async def _until_unconfirmed_below(self, limit: int) -> None:
        while len(self._unconfirmed) >= limit:
            await asyncio.wait(self._unconfirmed, return_when=asyncio.FIRST_COMPLETED)

    async def _failed(self, handler: Handler | ReadOnly, items: Sequence[Item], problem: Exception) -> None:
        attempts = items[0].received.attempts
        verdict = after_failure(
            problem,
            items=len(items),
            attempts=attempts,
            settings=self._settings,
            others_succeed=self.batches > self._batches_when_slow,
            failed_elsewhere=items[0].parcel.parked.failed_in not in ("", self._name),
        )
        if isinstance(problem, TookTooLong):
            self._batches_when_slow = self.batches
        log.warning(
            "%d from %s failed: %s",
            len(items),
            self.intake.queue,
            problem,
            exc_info=problem,
            extra={"attempts": attempts},
        )
        match verdict:
            case OneByOne():
                log.debug("a batch has failed: its messages are handled one by one")
                for item in items:
                    await self._handle(handler, [item])
            case PutBack(delay_ms, counts, is_bug):
                log.debug("a message has failed, and returns to its queue")
                failed_in = self._name if is_bug else ""
                self.intake.put_back_later(items[0], delay_ms, counts=counts, failed_in=failed_in)
            case GiveUp(reason):
                self.intake.bury(items[0], reason)

    async def _give_back(self, buried: Received[Any]) -> None:
        """Release what was claimed for a message that will be dead-lettered, and answer it.

        The handlers that the subscription has for its type are tried in turn, until one succeeds.
        """
        before = self.subscription.before_burial
        for handler in before.get(type(buried.message), before.get(Message, ())):
            try:
                leaving = _Leaving(await self._in_tries(partial(self._decide_and_save, handler, (buried,))))
            except (Unavailable, Locked):
                raise
            except Exception:
                # The handler may fail for the same reason as the message itself.
                log.exception("%s: nothing was released for a message that is buried", self.intake.queue)
                continue
            await self.say(leaving.outgoing, leaving.kept)
            return

    def _gives_up(self, problem: Transient, tries: int) -> bool:
        if self._stopping or not isinstance(problem, Unavailable):
            return self._stopping or tries >= self._settings.TRIES_IN_PLACE_MAX
        log.warning("waiting for a server: %s", problem, extra={"tries": tries})
        return False

    async def _say_what_is_kept(self) -> None:
        """Publish the messages again that the outbox still has unconfirmed. Runs at the start and at intervals."""
        outbox = self.subscription.outbox
        assert outbox is not None, "only a worker with an outbox sweeps"
        # One page at a time, confirmed before the next is read. Messages already on their way are skipped.
        after: OutboxKey | None = None
        while page := await outbox.pending(after):
            said_already = self._publisher.on_the_way().union(self._confirmed)
            kept = [each for each in page if each[0] not in said_already]
            await self.say([Outgoing(message) for _, message in kept], [key for key, _ in kept])
            after = page[-1][0]


def _traced(
    items: Sequence[Item], queue: str, tracer: MessageTracer
) -> tuple[Sequence[Item], Sequence[OpenSpan]]:
    """These messages, each in its span as far as it is in a trace; so what follows from them names the span as its parent."""
    spans: list[OpenSpan] = []
    found: list[Item] = []
    for item in items:
        read = item.received
        span = tracer.begin(read.message, queue, read.trace, read.sent_at)
        if span is not None:
            spans.append(span)
            item = structs.replace(item, received=structs.replace(read, trace=span.context))  # noqa: PLW2901
        found.append(item)
    return found, spans


def _end(spans: Sequence[OpenSpan], problem: Exception | None = None) -> None:
    for span in spans:
        span.end("" if problem is None else str(problem))


class _Leaving:
    """A handler's results, sorted into messages to publish and messages to dead-letter with their reasons.

    Of the messages to publish, some are also stored until the broker confirms them: `kept` has the numbers under which
    they are stored. Answers without a reply address are dropped.
    """

    __slots__ = ("buried", "kept", "outgoing")

    def __init__(self, said: Sequence[Said]) -> None:
        outgoing: list[Outgoing] = []
        self.outgoing = outgoing
        self.kept: list[OutboxKey] = []
        self.buried: dict[int, str] = {}
        for each in said:
            if isinstance(each, Tell):
                cause = each.cause
                if cause is None:
                    outgoing.append(Outgoing(each.message, feed=each.feed))
                else:
                    outgoing.append(Outgoing(each.message, cause.id, cause.trace, feed=each.feed))
                # Messages with the same key mostly follow each other.
                kept = each.kept
                if kept is not None and not (self.kept and self.kept[-1] == kept):
                    self.kept.append(kept)
            elif isinstance(each, Bury):
                self.buried[id(each.item)] = each.reason
            elif (question := each.question).reply_to:
                outgoing.append(Outgoing(each.message, question.id, question.trace, to=question.reply_to))
