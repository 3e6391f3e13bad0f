"""Helpers for contracts of what is built on a broker: stations, workers, example orders, and a handler that remembers."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from operator import not_
from uuid import UUID

from bus.broker import Broker, Origin, Receipt
from bus.codec import CODEC, Codec, encode
from bus.message import LINES, Envelope, Message, Parcel
from bus.messages.placement import ReleaseClaim
from bus.settings import BusSettings
from bus.topology import EVENTS, PLACEMENT, Grant, objects_of
from bus.workers.connections import Station, listen
from bus.workers.consuming import OutboxStore, Subscription
from bus.workers.dead_letters import DeadLetter, Parked, open_dead_letters, retry_parcel
from bus.workers.handlers import Handler, Handlers, Received, Said
from bus.workers.worker import Worker
from engine.inventories import ConsumerId
from kit.clock import now
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.running import closing, running
from tests.varied import varied
from tests.waiting import until

WORK = "placement.work"
CELLS = ("c1", "c2")
SETTINGS = varied(
    BusSettings(),
    RETRY_DELAY_MS_FIRST=2,
    RETRY_DELAY_MS_MAX=20,
    NEWER_DELAY_MS=20,
    CONNECT_DELAY_MS_FIRST=5,
    CONNECT_DELAY_MS_MAX=100,
    ask_again_ms=100,
    answer_timeout_ms=20_000,
    # A busy machine makes no host silent.
    host_down_s=1_000.0,
)


def order(number: int, cell: str = "c1") -> ReleaseClaim:
    """An order, recognised by its number."""
    return ReleaseClaim(
        cell=cell,
        consumer=ConsumerId(UUID(int=number)),
        attempt=1,
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def number_of(message: Message) -> int:
    assert isinstance(message, ReleaseClaim)
    return message.consumer.int


def line(message: Message, *, version: int | None = None) -> bytes:
    return encode(Envelope(message=message, id="a-test", version=version or message.VERSION))


def parcel(*lines: bytes, routing_key: str = "release.c1") -> Parcel:
    """A parcel as a client with its own AMQP library sends it."""
    return Parcel(PLACEMENT, routing_key, b"\n".join(lines), content_type=LINES, mandatory=True)


def tried(line: bytes, attempts: int, sender: str = "") -> Parcel:
    """A message as a worker parks it that has tried it so often."""
    return retry_parcel(line, WORK, Origin(sender, "", PLACEMENT, "release.c1"), Parked(attempts))


class Remembering:
    """Handlers that remember what they handled, and a store without contents. `trouble` is called with each number, and may
    raise. With a `gate`, nothing is handled before it opens.
    """

    def __init__(
        self, trouble: Callable[[int], None] | None = None, gate: asyncio.Event | None = None
    ) -> None:
        self.handled: list[int] = []
        self.batches: list[list[int]] = []
        self.attempts: list[int] = []
        self._trouble = trouble
        self._gate = gate

    async def on_release(self, orders: Sequence[Received[ReleaseClaim]], _: None) -> Sequence[Said]:
        numbers = [number_of(each.message) for each in orders]
        self.batches.append(numbers)
        if self._gate is not None:
            await self._gate.wait()
        for number in numbers:
            if self._trouble is not None:
                self._trouble(number)
        self.handled += numbers
        self.attempts += [each.attempts for each in orders]
        return ()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    @property
    def handlers(self) -> Handlers:
        return {ReleaseClaim: self.on_release}


def failing(error: BaseException, *at: int) -> Remembering:
    """Handlers that raise this at these numbers, or at all."""

    def trouble(number: int) -> None:
        if number in at or not at:
            raise type(error)(*error.args)

    return Remembering(trouble)


async def declared(under_test: BrokerUnderTest) -> Broker:
    """A broker on which the whole topology is declared."""
    await under_test.declare(objects_of(CELLS))
    return under_test.broker()


@asynccontextmanager
async def station(
    broker: Broker,
    name: str = "someone",
    *,
    asks: bool = False,
    settings: BusSettings = SETTINGS,
    clock: Callable[[], datetime] = now,
) -> AsyncIterator[Station]:
    here = Station(broker, name, settings=settings, asks=asks, clock=clock)
    async with running((here,), here):
        yield here


@asynccontextmanager
async def working(
    broker: Broker,
    memory: Remembering,
    *,
    name: str = "a-worker",
    settings: BusSettings = SETTINGS,
    codec: Codec = CODEC,
    outbox: OutboxStore[None] | None = None,
    queue: str = WORK,
    before_burial: Mapping[type[Message], Sequence[Handler]] | None = None,
    singly: bool = False,
    handlers: Handlers | None = None,
    chance: random.Random | None = None,
) -> AsyncIterator[Worker[None]]:
    """A worker on a queue (placement's orders, unless another one is given) until the block ends; then it drains."""
    here = Station(broker, name, settings=settings, codec=codec, chance=chance or random.Random(7))
    worker = Worker(
        here,
        Subscription(
            queue,
            {**memory.handlers, **(handlers or {})},
            memory,
            outbox=outbox,
            before_burial=before_burial or {},
            singly=singly,
        ),
    )
    async with running((worker,), here):
        yield worker


@asynccontextmanager
async def listening(
    broker: Broker, *keys: str, exchange: str = EVENTS, name: str = "ears"
) -> AsyncIterator[list[Message]]:
    """The list of messages with these keys; it grows as they arrive."""
    heard: list[Message] = []

    async def hear(feed: AsyncGenerator[Sequence[Received[Message]], None]) -> None:
        async for batch in feed:
            heard.extend(each.message for each in batch)

    async with (
        closing(Station(broker, name, settings=SETTINGS)) as (ears,),
        aclosing(listen(ears, [Grant(exchange, keys)])) as feed,
    ):
        await anext(feed)
        hearing = asyncio.create_task(hear(feed))
        try:
            yield heard
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)


async def send(broker: Broker, *parcels: Parcel) -> None:
    """Publish raw parcels, and wait for the confirm of each."""
    async with closing(await broker.connect()) as (connection,):
        publishing = await connection.open_publishing()
        for each in parcels:
            assert await publishing.publish(each) is Receipt.CONFIRMED


async def until_empty(broker: Broker, queue: str = WORK) -> None:
    """Wait until the queue is empty."""
    async with closing(await broker.connect()) as (connection,):
        await until(lambda: connection.depth(queue), f"{queue} is empty", not_)


async def dead_letters(broker: Broker, count: int) -> list[DeadLetter]:
    """Wait for this many dead letters."""
    connection = await broker.connect()

    async def letters() -> list[DeadLetter]:
        async with open_dead_letters(connection, letters_max=1000) as opened:
            return [opened.letters[tag] for tag in sorted(opened.letters)]

    await until(lambda: connection.depth("dead"), f"{count} dead letters", lambda found: found >= count)
    # A broker that stands still delivers a part of them in a reader's time.
    found = await until(letters, f"{count} dead letters are read", lambda each: len(each) >= count)
    await connection.close()
    return found
