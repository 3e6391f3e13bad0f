"""Short questions, asked and awaited: the asker repeats itself until it is answered or out of time.

Answers come to one exclusive queue of this process. It dies with its connection; the next has another name, and what is
still unanswered is asked again from there. An answer is matched by the id of its question, which nobody can guess who was
not asked, and counts only if it is of the question's type and from a user who may answer it.

A broker with an alarm takes no questions, and nobody is helped if they pile up here. So there is one copy of a question on
its way: one that has not left is not asked again, while the broker takes nothing none is, and one whose asker gave up is
withdrawn.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from bus.authority import judge_answer
from bus.broker import ConnectionLost, Refusal
from bus.codec import Codec, known_messages
from bus.errors import Unavailable
from bus.link import Link, pauses_of
from bus.message import Envelope, Message
from bus.origin import Origin, origin_of
from bus.parts import Supervised
from bus.publisher import Outgoing, Publisher
from bus.settings import BusSettings
from bus.topology import Objects, answers_queue

log = logging.getLogger(__name__)

ANYONE = "anyone"
ASK_AGAIN_DOUBLINGS_MAX = 3


class NoAnswer(Unavailable):
    """Asked again and again, and nobody answered in time."""


class _Batch(Struct, eq=False):
    """Questions that were asked together, their answers so far, and how many are missing."""

    answers: list[Message | None]
    missing: int
    done: asyncio.Future[None]
    # Their last copy: done when the broker has it, which it has since then.
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
        self._codec = codec
        self._name = name
        self._secret = secret
        self._ids = itertools.count(1)
        self._queues = itertools.count(1)
        self._reply_to = ""
        self._open = asyncio.Event()
        # Question id to its message, its batch, and its place there.
        self._asked: dict[str, tuple[Message, _Batch, int]] = {}
        self._on_refusal: Callable[[Refusal], None] | None = None
        self.asked_again = 0
        self.answers_refused = 0
        self.taking_answers = Supervised(
            "answers", self._take_answers, is_needed=True, pauses=pauses_of(settings), chance=chance
        )

    def on_refusal(self, tell: Callable[[Refusal], None]) -> None:
        """Tell this, for those who have no right to ask: a worker goes on asking until it is given one, a person does not."""
        self._on_refusal = tell

    async def run(self) -> None:
        """Take in answers, over as many connections as it needs, until cancelled."""
        await self.taking_answers.run()

    async def _take_answers(self) -> None:
        connection = await self._link.connection()
        try:
            queue = answers_queue(self._link.broker.user or ANYONE, f"{self._name}-{next(self._queues)}")
            await connection.declare(Objects(queues=(queue,)))
            consuming = await connection.open_consuming(queue.name, self._settings.prefetch)
            self._reply_to = queue.name
            self._open.set()
            self.taking_answers.status.well()
            self._ask_all_again()
            while True:
                deliveries = await consuming.receive()
                for delivery in deliveries:
                    origin = origin_of(delivery)
                    for envelope in known_messages(delivery.parcel, self._codec):
                        self._take(envelope, origin)
                await consuming.acknowledge(deliveries[-1].tag, multiple=True)
        except ConnectionLost:
            await self._link.broken(connection)
            raise
        except Refusal as refused:
            if self._on_refusal is not None:
                self._on_refusal(refused)
            raise
        finally:
            self._open.clear()

    async def ask(self, question: Message) -> Message:
        return (await self.ask_all((question,)))[0]

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        """The answers, in the order of the questions; `NoAnswer` if one of them is missing when time is up."""
        if not questions:
            return []
        batch = _Batch([None] * len(questions), len(questions), asyncio.get_running_loop().create_future())
        ids = [f"{self._secret}-{next(self._ids)}" for _ in questions]
        self._asked |= {
            id_: (question, batch, n) for n, (id_, question) in enumerate(zip(ids, questions, strict=True))
        }
        try:
            async with asyncio.timeout(self._settings.answer_timeout_ms / 1000):
                await self._until_answered(batch, ids)
        except TimeoutError:
            raise NoAnswer(
                f"{batch.missing} of {len(questions)} questions unanswered after {self._settings.answer_timeout_ms:.0f} ms"
            ) from None
        finally:
            for id_ in ids:
                self._asked.pop(id_, None)
            self._withdraw(batch)
        return [answer for answer in batch.answers if answer is not None]

    async def _until_answered(self, batch: _Batch, ids: Sequence[str]) -> None:
        if self._open.is_set():
            self._ask(batch, ids)  # else it is asked when the queue opens
        tries = 0
        wait_s = self._pause_s(tries)
        while not (await asyncio.wait((batch.done,), timeout=wait_s))[0]:
            wait_s = self._due_in_s(batch, tries)
            if wait_s <= 0:
                missing = [id_ for id_ in ids if id_ in self._asked]
                self.asked_again += len(missing)
                self._ask(batch, missing)
                tries += 1
                wait_s = self._pause_s(tries)

    def _pause_s(self, tries: int) -> float:
        """Longer each time: a worker that is slow to answer is not helped by more questions."""
        return self._settings.ask_again_ms * 2.0 ** min(tries, ASK_AGAIN_DOUBLINGS_MAX) / 1000

    def _due_in_s(self, batch: _Batch, tries: int) -> float:
        """When these are to be asked again; or to be looked at again, if their last copy is still here."""
        pause_s = self._pause_s(tries)
        if batch.left_at_s is None or self._publisher.is_held or not self._open.is_set():
            return pause_s
        # Workers could not answer before the alarm ended either.
        since_s = max(batch.left_at_s, self._publisher.free_since_s)
        return since_s + pause_s - asyncio.get_running_loop().time()

    def _ask_all_again(self) -> None:
        """From a new queue: a copy that has not left yet names the old one."""
        open_ids: dict[int, tuple[_Batch, list[str]]] = {}
        for id_, (_, batch, _) in self._asked.items():
            open_ids.setdefault(id(batch), (batch, []))[1].append(id_)
        for batch, ids in open_ids.values():
            self._ask(batch, ids)

    def _ask(self, batch: _Batch, ids: Sequence[str]) -> None:
        self._withdraw(batch)
        questions = [Outgoing(self._asked[id_][0], id=id_, reply_to=self._reply_to) for id_ in ids]
        # Whether a question arrived shows in its answer; its confirm only says that it has left.
        batch.sent = self._publisher.send_all(questions)
        batch.sent.add_done_callback(partial(self._left, batch))

    def _withdraw(self, batch: _Batch) -> None:
        sent, batch.sent, batch.left_at_s = batch.sent, None, None
        if sent is not None:
            self._publisher.withdraw(sent)

    def _left(self, batch: _Batch, confirmed: "asyncio.Future[None]") -> None:
        if batch.sent is confirmed:
            batch.left_at_s = asyncio.get_running_loop().time()
        self._confirmed(confirmed)

    def _confirmed(self, confirmed: "asyncio.Future[None]") -> None:
        if not confirmed.cancelled() and (problem := confirmed.exception()) is not None:
            if isinstance(problem, Refusal) and self._on_refusal is not None:
                self._on_refusal(problem)
            else:
                log.warning("a question did not reach anyone, it will be asked again: %s", problem)

    def _take(self, envelope: Envelope[Message], origin: Origin) -> None:
        asked = self._asked.get(envelope.cause)
        if asked is None:
            return  # answered before: the question was asked twice
        question, batch, place = asked
        answer = envelope.message
        refused = judge_answer(question, answer, origin, self._link.post)
        if refused is not None:
            self.answers_refused += 1
            log.warning("not believed: %s", refused.reason)
            return
        del self._asked[envelope.cause]
        batch.answers[place] = answer
        batch.missing -= 1
        if batch.missing == 0 and not batch.done.done():
            batch.done.set_result(None)
