"""Asks questions over the bus and waits for the answers. The asker repeats a question until it is answered or
its time is up.

Answers arrive in one exclusive queue of this process. The queue is deleted with its connection. The next
queue has another name, and the asker sends its open questions again from there. An answer is matched by the
id of its question; a process that did not receive the question cannot guess that id. The answer counts only
if it has the type that answers this question and comes from a user that may answer it.

A broker with an alarm takes no questions, and it would not help if they piled up here. So at most one copy of
a question is on its way. The asker does not repeat a question that has not left yet, or while the broker
takes nothing, and it withdraws a question when the caller gives up.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

from msgspec import Struct

from bus.broker import Delivery, Origin, origin_of
from bus.codec import Codec, known_messages
from bus.message import Envelope, Message, type_of
from bus.queues import Grant, Objects, answers_queue, feed_queue
from bus.settings import BusSettings
from bus.workers import handling
from bus.workers.authority import BrokerFacts, all_count, judge, judge_answer, judge_parcel
from bus.workers.handling import Received, all_received
from bus.workers.publisher import Outgoing, Publisher
from bus.workers.sending import Link, pauses_of
from kit import logs
from kit.errors import Interrupted, Refusal, Unavailable
from kit.metrics import Histogram, Readings
from kit.parts import Status, Supervised

log = logging.getLogger(__name__)

ANYONE = "anyone"
# The pauses before a question is asked again, in times of the first: more questions do not help a slow worker.
ASK_AGAIN_TIMES = (1, 2, 4, 8)


# The traces of the questions that are asked in this context, in their order.
_traces: ContextVar[Sequence[str]] = ContextVar("traces of questions", default=())


@contextmanager
def asking_for(traces: Sequence[str]) -> Iterator[None]:
    """A context in which questions are asked, each as a part of its trace."""
    if logs.tracer() is None or not any(traces):
        yield
        return
    before = _traces.set(traces)
    try:
        yield
    finally:
        _traces.reset(before)


class NoAnswer(Unavailable):
    """The question was asked repeatedly, and no answer came in time."""


class _Batch(Struct, eq=False):
    """Questions asked in one call, and the answers so far, by the ids of the questions."""

    questions: dict[str, Message]
    answers: dict[str, Message]
    done: asyncio.Future[None]
    traces: Mapping[str, str] = {}
    # The future of the last copy, done when the broker has it, and when that was.
    sent: asyncio.Future[None] | None = None
    left_at_s: float | None = None


class Asker:
    """Asks questions for one process, over one broker."""

    def __init__(
        self,
        link: Link,
        publisher: Publisher,
        *,
        settings: BusSettings,
        codec: Codec,
        name: str,
        secret: str,
        chance: random.Random | None = None,
    ) -> None:
        self._link = link
        self._publisher = publisher
        self._settings = settings
        self._pauses_s = [times * settings.ask_again_ms / 1000 for times in ASK_AGAIN_TIMES]
        self._codec = codec
        self._name = name
        self._secret = secret
        self._ids = itertools.count(1)
        self._queues = itertools.count(1)
        self._reply_to = ""
        self._open = asyncio.Event()
        # By the ids of the questions that have no answer yet.
        self._asked: dict[str, _Batch] = {}
        # If set, `ask_all` raises when the broker refuses its questions, or the queue for the answers. A worker goes on
        # asking until it has the right to; people and their programs must not wait that long.
        self.raises_refusals = False
        # Why there is no queue for the answers; None if it was not refused.
        self._refused: Refusal | None = None
        self.asked_again = 0
        self._took = Histogram(handling.ASKED)
        self.readings: Readings = (self._took,)
        self.taking_answers = Supervised(
            "answers", self._take_answers, is_needed=True, pauses=pauses_of(settings), chance=chance
        )

    async def _take_answers(self) -> None:
        queue = answers_queue(self._link.broker.user or ANYONE, f"{self._name}-{next(self._queues)}")
        try:
            async with self._link.opened() as connection:
                await connection.declare(Objects(queues=(queue,)))
                consuming = await connection.open_consuming(queue.name, self._settings.prefetch)
                self._reply_to = queue.name
                self._refused = None
                self._open.set()
                self.taking_answers.status.well()
                # Copies that have not left yet name the old queue. To ask again withdraws them first.
                for batch in dict.fromkeys(self._asked.values()):
                    self._ask(batch)
                while True:
                    deliveries = await consuming.receive()
                    for delivery in deliveries:
                        origin = origin_of(delivery)
                        for envelope in known_messages(delivery.parcel, self._codec):
                            self._take(envelope, origin)
                    await consuming.acknowledge(deliveries[-1].tag, multiple=True)
        except Refusal as refused:
            self._refused = refused
            for batch in dict.fromkeys(self._asked.values()):
                self._fail(batch, refused)
            raise
        finally:
            self._open.clear()

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        """The answers, in the order of the questions. Raises `NoAnswer` if one is missing when the time is up."""
        if not questions:
            return []
        if self._refused is not None and self.raises_refusals:
            raise self._refused
        by_id = {f"{self._secret}-{next(self._ids)}": question for question in questions}
        of_traces = dict(zip(by_id, _traces.get(), strict=False))
        batch = _Batch(by_id, {}, asyncio.get_running_loop().create_future(), of_traces)
        self._asked |= dict.fromkeys(by_id, batch)
        clock_s = asyncio.get_running_loop().time
        began_s = clock_s()
        try:
            async with asyncio.timeout(self._settings.answer_timeout_ms / 1000):
                await self._until_answered(batch)
            self._took.observe(clock_s() - began_s, len(questions), (type_of(questions[0]),))
        except TimeoutError:
            raise NoAnswer(
                f"{len(by_id) - len(batch.answers)} of {len(by_id)} questions unanswered after "
                f"{self._settings.answer_timeout_ms:.0f} ms"
            ) from None
        finally:
            for id_ in by_id:
                self._asked.pop(id_, None)
            self._withdraw(batch)
            if not (batch.done.cancel() or batch.done.cancelled()):
                # Otherwise asyncio would log a refusal that came when the time was up.
                batch.done.exception()
        return [batch.answers[id_] for id_ in by_id]

    async def _until_answered(self, batch: _Batch) -> None:
        if self._open.is_set():
            self._ask(batch)  # otherwise it is asked when the queue opens
        tries = 0
        wait_s = pause_s = self._pauses_s[tries]
        while not (await asyncio.wait((batch.done,), timeout=wait_s))[0]:
            wait_s = self._due_in_s(batch, pause_s)
            if wait_s <= 0:
                self.asked_again += len(batch.questions) - len(batch.answers)
                self._ask(batch)
                tries += 1
                wait_s = pause_s = self._pauses_s[min(tries, len(self._pauses_s) - 1)]
        # Raises the broker's refusal, if there was one.
        batch.done.result()

    def _due_in_s(self, batch: _Batch, pause_s: float) -> float:
        """Seconds until the questions of a batch are asked again, if the pause after their last copy is so long.

        If their last copy has not left this process yet, it is the time until this is checked again.
        """
        if batch.left_at_s is None or self._publisher.is_held or not self._open.is_set():
            return pause_s
        # No worker could answer before the alarm ended.
        since_s = max(batch.left_at_s, self._publisher.free_since_s)
        return since_s + pause_s - asyncio.get_running_loop().time()

    def _ask(self, batch: _Batch) -> None:
        """Publish the questions of this batch that have no answer yet, and withdraw earlier copies that have not left."""
        self._withdraw(batch)
        questions = [
            Outgoing(question, trace=batch.traces.get(id_, ""), id=id_, reply_to=self._reply_to)
            for id_, question in batch.questions.items()
            if id_ not in batch.answers
        ]
        # The answer shows whether the question arrived. The confirm only says that it has left.
        batch.sent = self._publisher.send_all(questions)
        batch.sent.add_done_callback(partial(self._left, batch))

    def _withdraw(self, batch: _Batch) -> None:
        sent, batch.sent, batch.left_at_s = batch.sent, None, None
        if sent is not None:
            self._publisher.withdraw(sent)

    def _left(self, batch: _Batch, confirmed: "asyncio.Future[None]") -> None:
        if batch.sent is confirmed:
            batch.left_at_s = asyncio.get_running_loop().time()
        problem = None if confirmed.cancelled() else confirmed.exception()
        if problem is None or (isinstance(problem, Refusal) and self._fail(batch, problem)):
            return
        log.warning("a question was not delivered, it will be asked again: %s", problem)

    def _fail(self, batch: _Batch, refused: Refusal) -> bool:
        """Let the caller of these questions raise the broker's refusal. False if this asker raises none."""
        if self.raises_refusals and not batch.done.done():
            batch.done.set_exception(refused)
        return self.raises_refusals

    def _take(self, envelope: Envelope[Message], origin: Origin) -> None:
        batch = self._asked.get(envelope.cause)
        if batch is None:
            return  # already answered: the question was asked twice
        refused = judge_answer(batch.questions[envelope.cause], envelope.message, origin, self._link.facts)
        if refused is not None:
            log.warning("answer ignored: %s", refused.reason)
            return
        del self._asked[envelope.cause]
        batch.answers[envelope.cause] = envelope.message
        if len(batch.answers) == len(batch.questions) and not batch.done.done():
            batch.done.set_result(None)


# Reads events from a feed queue of this process, and reconnects when the connection breaks.
#
# A feed drops its oldest messages when its reader is slow, and misses events while the queue does not exist. A reader
# that must not miss any watches the positions in the events and catches up when they jump.


async def listen(
    link: Link,
    grants: Iterable[Grant],
    *,
    process: str,
    settings: BusSettings,
    codec: Codec,
    status: Status | None = None,
) -> AsyncGenerator[Sequence[Received[Message]], None]:
    """Yields batches of the events whose routing keys `grants` allow, until the caller stops.

    The first batch is empty: it says that the queue exists, and that later events will arrive. So is the first one
    after each interruption, and no other. Messages that do not count (bus/workers/authority.py) are left out. `status` is the status
    of the listening part and counts interruptions.
    """
    queue = feed_queue(link.broker.user or "anyone", process, grants)
    status = status or Status(f"feed {queue.name}", pauses=pauses_of(settings))
    # A generator cannot be the work of a part, so it retries by itself.
    while True:
        try:
            async with link.opened() as connection:
                await connection.declare(Objects(queues=(queue,)))
                consuming = await connection.open_consuming(queue.name, settings.prefetch)
                try:
                    status.well()
                    yield ()
                    while True:
                        deliveries = await consuming.receive()
                        # A batch without messages would tell of an interruption.
                        if believed := [
                            each for delivery in deliveries for each in _believed(delivery, codec, link.facts)
                        ]:
                            yield believed
                        await consuming.acknowledge(deliveries[-1].tag, multiple=True)
                finally:
                    await consuming.close()
        except Interrupted as interrupted:
            await asyncio.sleep(status.failed(interrupted))


def _believed(delivery: Delivery, codec: Codec, facts: BrokerFacts) -> list[Received[Message]]:
    origin = origin_of(delivery)
    if (refused := judge_parcel(origin, facts)) is not None:
        log.warning("parcel ignored, key %s: %s", origin.key, refused.reason)
        return []
    known = known_messages(delivery.parcel, codec)
    if not all_count([each.message for each in known], origin, facts):
        known = [each for each in known if _counts(each.message, origin, facts)]
    return all_received(known, origin, delivery.returns)


def _counts(message: Message, origin: Origin, facts: BrokerFacts) -> bool:
    refused = judge(message, origin, facts)
    if refused is not None:
        log.warning("message ignored: %s", refused.reason)
    return refused is None
