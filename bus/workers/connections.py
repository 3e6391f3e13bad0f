"""A process's connections to one broker (`Station`), and what it does there beside work on queues: it sends, asks, and hears feeds.

Consuming and publishing have a connection each (bus/workers/sending.py says why). A process that serves several brokers has a
station on each: a placement worker, for example, answers every cell on the cell's own broker.

The asker repeats a question until it is answered or its time is up. Answers arrive in one exclusive queue of this process. The
queue is deleted with its connection. The next queue has another name, and the asker sends its open questions again from there. An
answer is matched by the id of its question; a process that did not receive the question cannot guess that id. The answer counts
only if it has the type that answers this question and comes from a user that may answer it.

A broker with an alarm takes no questions, and it would not help if they piled up here. So at most one copy of a question is on its
way. The asker does not repeat a question that has not left yet, or while the broker takes nothing, and it withdraws a question when
the caller gives up.
"""

import asyncio
import itertools
import logging
import os
import random
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import partial

from msgspec import Struct, structs

from bus.addresses import Addresses, broker_at
from bus.broker import Broker, Delivery, Origin
from bus.codec import CODEC, Codec, known_messages
from bus.message import Envelope, Message, type_of
from bus.queues import Grant, answers_queue, feed_queue
from bus.settings import BusSettings
from bus.workers.authority import (
    BrokerFacts,
    all_count,
    broker_facts_of,
    judge,
    judge_answer,
    judge_parcel,
    origin_of,
)
from bus.workers.consuming import consumer, open_own
from bus.workers.handlers import Received, all_received
from bus.workers.metrics import (
    ANSWERS_DROPPED,
    ASKED,
    ASKED_AGAIN,
    CONNECTIONS,
    FED,
    HELD_BACK,
    SENT,
    WAITING,
)
from bus.workers.publisher import Outgoing, Publisher
from bus.workers.sending import Link, pauses_of
from kit import logs
from kit.clock import now
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
    if logs.tracer() is None:
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
    """Asks questions for the process of a station."""

    def __init__(self, station: "Station", secret: str) -> None:
        self._station = station
        self._publisher = station.publisher
        settings = self._settings = station.settings
        self._pauses_s = [times * settings.ask_again_ms / 1000 for times in ASK_AGAIN_TIMES]
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
        self._took = Histogram(ASKED)
        self.readings: Readings = (self._took,)
        pauses = pauses_of(settings)
        self.taking_answers = Supervised(
            "answers", self._take_answers, is_needed=True, pauses=pauses, chance=station.chance
        )

    async def _take_answers(self) -> None:
        link, codec = self._station.consuming, self._station.codec
        queue = answers_queue(link.broker.user or ANYONE, f"{self._station.name}-{next(self._queues)}")
        opens = partial(open_own, queue=queue, prefetch=self._settings.prefetch)
        try:
            async with consumer(link, self.taking_answers.status, opens) as consuming:
                self._reply_to = queue.name
                self._refused = None
                self._open.set()
                # Copies that have not left yet name the old queue. To ask again withdraws them first.
                for batch in dict.fromkeys(self._asked.values()):
                    self._ask(batch)
                while True:
                    deliveries = await consuming.receive()
                    for delivery in deliveries:
                        origin = origin_of(delivery, link.facts)
                        for envelope in known_messages(delivery.parcel, codec):
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
            log.debug("questions are given up: no answer came in time")
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
                log.debug("questions without an answer are asked again")
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
            log.debug("an answer is ignored: the question has one, or was given up")
            return
        refused = judge_answer(
            type(batch.questions[envelope.cause]),
            type(envelope.message),
            origin.exchange,
            origin.sender,
            self._station.consuming.facts,
        )
        if refused is not None:
            log.warning("answer ignored: %s", refused.reason)
            return
        del self._asked[envelope.cause]
        batch.answers[envelope.cause] = envelope.message
        if len(batch.answers) == len(batch.questions) and not batch.done.done():
            batch.done.set_result(None)


# Reads events from a feed queue of this process.
#
# A feed drops its oldest messages when its reader is slow, and misses events while the queue does not exist. A reader
# that must not miss any watches the positions in the events and catches up when they jump.


async def _heard(
    station: "Station", grants: Iterable[Grant], status: Status
) -> AsyncGenerator[Sequence[Received[Message]], None]:
    """Yields batches of events over one connection, until it breaks. The first batch is empty, and no other."""
    link = station.consuming
    queue = feed_queue(link.broker.user or ANYONE, station.name, grants)
    opens = partial(open_own, queue=queue, prefetch=station.settings.prefetch)
    async with consumer(link, status, opens) as consuming:
        yield ()
        while True:
            deliveries = await consuming.receive()
            # A batch without messages would tell of an interruption.
            if believed := [
                each for delivery in deliveries for each in _believed(delivery, station.codec, link.facts)
            ]:
                yield believed
            await consuming.acknowledge(deliveries[-1].tag, multiple=True)


async def listen(
    station: "Station", grants: Sequence[Grant]
) -> AsyncGenerator[Sequence[Received[Message]], None]:
    """Yields batches of the events whose routing keys `grants` allow, until the caller stops.

    The first batch is empty: it says that the queue exists, and that later events will arrive. So is the first one
    after each interruption, and no other. Messages that do not count (bus/workers/authority.py) are left out.

    This is for a caller that is no part of a worker (`FeedListener`): it begins again by itself. A refusal is raised.
    """
    status = Status("feed", pauses=pauses_of(station.settings))
    while True:
        try:
            async with aclosing(_heard(station, grants, status)) as batches:
                async for batch in batches:
                    yield batch
        except Interrupted as interrupted:
            await asyncio.sleep(status.failed(interrupted))


def _believed(delivery: Delivery, codec: Codec, facts: BrokerFacts) -> list[Received[Message]]:
    origin = origin_of(delivery, facts)
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


# For a station on a cell's broker. A message that is unconfirmed there at the end is kept on a row or comes again from
# a queue, so a broker that is down need not delay the end.
DRAIN_BELOW_MS_MAX = 2_000.0


class Station:
    """Sends orders, events and questions for a process. While `run` runs, it receives the answers. Close it last."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        *,
        settings: BusSettings | None = None,
        codec: Codec = CODEC,
        asks: bool = False,
        clock: Callable[[], datetime] = now,
        chance: random.Random | None = None,
        cells: Iterable[str] | None = None,
    ) -> None:
        """`cells` are the cells served by a cell's own broker; None for the API level's broker."""
        self.name = name
        self.settings = settings or BusSettings()
        self.codec = codec
        self.chance = chance or random.Random(secrets.randbits(64))
        self.clock = clock
        facts = broker_facts_of(broker.user, cells)
        self.consuming = Link(
            broker, self.settings, facts, name="connection for consuming", chance=self.chance
        )
        self._publishing = Link(broker, self.settings, name="connection for publishing", chance=self.chance)
        # A simulation draws these pauses apart: a try more or less moves no other draw.
        apart = random.Random(name) if chance else self.chance
        self.publisher = Publisher(self._publishing, self.settings, name, clock, apart)
        self._asker = (
            Asker(self, f"{(chance or secrets.SystemRandom()).getrandbits(128):032x}") if asks else None
        )
        self._stopping = asyncio.Event()

    def raise_refusals(self) -> None:
        """Let questions that the broker refuses fail with its refusal, and not be asked again until their time is up."""
        if self._asker is not None:
            self._asker.raises_refusals = True

    @property
    def trouble(self) -> str:
        """Why this process has no connection to the broker now. Empty if it has what it needed so far."""
        return self.consuming.trouble or self._publishing.trouble

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        if self._asker is None:
            raise TypeError(f"{self.name} cannot ask questions: create it by Station(..., asks=True)")
        return await self._asker.ask_all(questions)

    async def ask(self, question: Message) -> Message:
        return (await self.ask_all((question,)))[0]

    async def send(self, message: Message) -> None:
        """Publish an order or an event. Returns when the broker has it."""
        await self.publisher.send(message)

    @property
    def asked_again(self) -> int:
        return self._asker.asked_again if self._asker else 0

    async def run(self) -> None:
        """Receive the answers to this process's questions until stopped. A station that asks none only waits."""
        await (self._asker.taking_answers.run() if self._asker else self._stopping.wait())

    async def stop(self) -> None:
        self._stopping.set()
        if self._asker:
            await self._asker.taking_answers.stop()

    @property
    def readings(self) -> Readings:
        return (*self.publisher.readings, *(self._asker.readings if self._asker else ()))

    @property
    def watched_readings(self) -> Readings:
        sender = self.publisher.sender
        numbers = {
            CONNECTIONS: self.connections_made,
            SENT: sender.parcels_sent,
            HELD_BACK: sender.held_back,
            ANSWERS_DROPPED: self.publisher.answers_dropped,
            ASKED_AGAIN: self.asked_again,
            WAITING: self.publisher.waiting,
        }
        return [metric.numbers({(): number}) for metric, number in numbers.items()]

    @property
    def parts(self) -> Sequence[object]:
        """The parts whose status health and metrics show (kit/parts.py)."""
        asking = (self._asker.taking_answers,) if self._asker else ()
        return (self.consuming, self._publishing, *asking)

    @property
    def connections_made(self) -> int:
        return self.consuming.connections_made + self._publishing.connections_made

    async def close(self) -> None:
        """Send what is left, then close the connections."""
        await self.publisher.close()
        await self.consuming.close()
        await self._publishing.close()


class FeedListener(Supervised):
    """A part that calls `hear` with batches of the events whose routing keys `grants` allow.

    The first batch, and the first one after each interruption, is `()`: events before it may be missing.
    """

    def __init__(
        self,
        name: str,
        station: Station,
        grants: Sequence[Grant],
        hear: Callable[[Sequence[Received[Message]]], None],
        *,
        is_needed: bool = False,
    ) -> None:
        pauses = pauses_of(station.settings)
        super().__init__(name, self._listen, is_needed=is_needed, pauses=pauses, chance=station.chance)
        self._station = station
        self._grants = grants
        self._hear = hear
        self._fed = Histogram(FED)
        self._labels = (name,)
        self.readings: Readings = (self._fed,)

    async def _listen(self) -> None:
        async with aclosing(_heard(self._station, self._grants, self.status)) as batches:
            async for batch in batches:
                if batch and (sent_at := batch[0].sent_at) is not None:
                    age_s = (self._station.clock() - sent_at).total_seconds()
                    self._fed.observe(age_s, len(batch), self._labels)
                self._hear(batch)


def stations_at(
    addresses: Addresses, role: str, *, asks: bool = False, settings: BusSettings | None = None
) -> tuple[Station, dict[str, Station]]:
    """A station on the API level's broker, and one on each other broker that has cells. A cell that is not in the
    mapping is on the API level's broker.
    """
    name = process_name(role)
    api = Station(broker_at(addresses.bus_url), name, asks=asks, settings=settings)
    drain_ms_max = min(api.settings.drain_ms_max, DRAIN_BELOW_MS_MAX)
    below = structs.replace(api.settings, drain_ms_max=drain_ms_max)
    at = {addresses.bus_url: api}
    for url in addresses.cell_bus_urls.values():
        if url not in at:
            cells = [cell for cell, theirs in addresses.cell_bus_urls.items() if theirs == url]
            at[url] = Station(broker_at(url), name, settings=below, cells=cells)
    return api, {cell: at[url] for cell, url in addresses.cell_bus_urls.items() if at[url] is not api}


async def close_all(stations: Iterable[Station]) -> None:
    """Close all these connections to the bus at once: a broker that is down does not delay the others."""
    await asyncio.gather(*[station.close() for station in dict.fromkeys(stations)])


def by_station(cells: Mapping[str, Station]) -> dict[Station, tuple[str, ...]]:
    """Group these cells by their stations, since several cells may share a broker.

    Raises ValueError unless each station was created with exactly those cells that `cells` gives to it.
    """
    found = {
        station: tuple(cell for cell, there in cells.items() if there is station)
        for station in dict.fromkeys(cells.values())
    }
    for station, here in found.items():
        if station.consuming.facts.cells != frozenset(here):
            raise ValueError(
                f"the station {station.name} serves the cells {here}: create it with cells={here}"
            )
    return found


def process_name(role: str) -> str:
    """The name of this process in logs, message ids and dead letters: role, host name, process id and a random suffix."""
    return f"{role}-{socket.gethostname().replace('.', '-')}-{os.getpid()}-{secrets.token_hex(2)}"
