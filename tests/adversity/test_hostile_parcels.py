"""A reader survives any parcel. Good messages in it are handled once each. Messages that cannot be read become dead
letters with a reason, which can be shown and dropped.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from operator import not_
from uuid import UUID

import pytest
from msgspec import structs

from bus import message
from bus.broker import Broker, Connection, Receipt
from bus.codec import CODEC, encode, known_messages
from bus.memory import MemoryBroker
from bus.message import EVENTS, PLACEMENT, REPLY, Envelope, Parcel
from bus.messages.placement import AskSnapshot, InventoryRefused, LogPosition, SnapshotPage
from bus.queues import DEAD, DEAD_QUEUE, Grant, in_cell
from bus.topology import INBOXES, QUEUES, objects_of, retry_exchange_of
from bus.workers.dead_letters import ABOUT_ROW, DeadLetter, NotReplayed, open_dead_letters
from bus.workers.station import Station, listen
from bus.workers.worker import Worker
from engine.inventories import ProviderId
from engine.refusals import NotAllowed
from moor.options import printable
from tests.adversity.hostile import among, hostile_parcel
from tests.contracts.stage import SETTINGS, Remembering, line, order, station, working
from tests.varied import varied
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quiet")]

PARCELS = 100_000
A_FACT = InventoryRefused(
    cell="c1", root=ProviderId(UUID(int=1)), verdict=NotAllowed(field="cell", reason="no such cell")
)
A_PAGE = SnapshotPage(providers=(), published=LogPosition(term=1, position=2))
CHUNK = 1_000
# A good order counts wherever it is read, since it was sent to the proper place.
SAID = {message.SENDER: "", message.EXCHANGE: PLACEMENT, message.KEY: "release.c1"}
# One of this many parcels has good messages in it.
GOOD_EACH = 5
CELL = "c1"
# ironic_sync/events.py reads inboxes and does not decode the messages.
READ = tuple(
    in_cell(queue.name, CELL) for queue in QUEUES if queue.name != DEAD_QUEUE and queue.name not in INBOXES
)
HASTY = varied(SETTINGS, NEWER_DELAY_MS=1, NEWER_WAITS_MAX=3)


@asynccontextmanager
async def a_broker() -> AsyncIterator[tuple[Broker, Connection]]:
    broker = MemoryBroker().as_user()
    connection = await broker.connect()
    await connection.declare(objects_of((CELL,)))
    try:
        yield broker, connection
    finally:
        await connection.close()


async def publish(connection: Connection, parcels: Sequence[Parcel]) -> None:
    publishing = await connection.open_publishing()
    receipts = await asyncio.gather(*map(publishing.publish, parcels))
    assert set(receipts) == {Receipt.CONFIRMED}
    await publishing.close()


class Goods:
    """Good orders with a number each, and a handler that records them."""

    def __init__(self) -> None:
        self.memory = Remembering()
        self.said = 0

    def lines(self, count: int) -> list[bytes]:
        first, self.said = self.said, self.said + count
        return [line(order(number + 1)) for number in range(first, self.said)]

    def were_handled_once_each(self) -> bool:
        # A changed golden file may be a valid order; its number is far above.
        counted = Counter(number for number in self.memory.handled if number <= self.said)
        return len(counted) == self.said and set(counted.values()) <= {1}


async def until_read(connection: Connection, queue: str, worker: Worker[None]) -> None:
    async def left() -> int:
        # In this order: what it returns to the queue it has in hand before.
        return worker.intake.in_hand or await connection.depth(queue)

    await until(left, "all is read", not_)


async def look_and_drop(connection: Connection) -> list[DeadLetter]:
    """Show and drop the dead letters, as `moor dead` does."""
    letters: list[DeadLetter] = []
    while await connection.depth(DEAD_QUEUE):
        async with open_dead_letters(connection, letters_max=CHUNK) as opened:
            found = [*opened.letters.values()]
            # Letters of workers about one row share a handle.
            apart = [letter.handle for letter in found if letter.type != ABOUT_ROW]
            assert len(set(apart)) == len(apart)
            letters += found
            await opened.drop([*opened.letters])
    for letter in letters:
        assert letter.reason
        assert letter.document
        printable(letter.reason).encode()
    return letters


def drawn(chance: random.Random, queue: str, goods: Goods) -> list[Parcel]:
    """Hostile parcels, some sent by the queue's name, some as if they had been returned before."""
    parcels = []
    for number in range(CHUNK):
        exchange = retry_exchange_of(queue) if chance.random() < 0.2 else ""
        drawn_one = hostile_parcel(chance, exchange, queue)
        if number % GOOD_EACH == 0:
            put_back = structs.replace(drawn_one, exchange=retry_exchange_of(queue))
            drawn_one = among(chance, goods.lines(2), put_back, SAID)
        parcels.append(drawn_one)
    return parcels


@pytest.mark.parametrize("queue", READ)
async def test_whatever_comes_by_a_queue_its_worker_lives_and_good_neighbours_are_handled_once(
    queue: str,
) -> None:
    chance, goods = random.Random(f"hostile {queue}"), Goods()
    async with (
        a_broker() as (broker, connection),
        working(broker, goods.memory, settings=HASTY, queue=queue) as worker,
    ):
        for _ in range(PARCELS // len(READ) // CHUNK):
            await publish(connection, drawn(chance, queue, goods))
            await until_read(connection, queue, worker)
            assert goods.were_handled_once_each()
            assert {letter.queue for letter in await look_and_drop(connection)} == {queue}

    assert goods.said > 1_000


async def test_what_comes_back_is_counted_and_split_whatever_is_in_it() -> None:
    queue = "placement.work"
    chance, goods = random.Random("hostile and returned"), Goods()
    async with a_broker() as (broker, connection):
        await publish(connection, drawn(chance, queue, goods))
        consuming = await connection.open_consuming(queue, prefetch=CHUNK)
        while True:
            held = await consuming.receive()
            if len(held) == CHUNK:
                break
        await consuming.close()
        async with working(broker, goods.memory, settings=HASTY, queue=queue) as worker:
            await until_read(connection, queue, worker)
            assert goods.were_handled_once_each()
        await look_and_drop(connection)


async def test_whatever_lies_among_the_dead_letters_is_shown_told_apart_and_dropped() -> None:
    """As if written to the dead letters by hand, with any headers, and each twice."""
    chance = random.Random("hostile letters")
    async with a_broker() as (_, connection):
        for _ in range(5):
            parcels = [
                hostile_parcel(chance, DEAD, chance.choice((*READ, "x" * 255, ""))) for _ in range(500)
            ]
            await publish(connection, [*parcels, *parcels])

            letters = await look_and_drop(connection)

            assert len(letters) == 1_000


async def test_whatever_is_replayed_goes_where_it_came_from_or_stays() -> None:
    chance, goods = random.Random("hostile replays"), Goods()
    async with a_broker() as (broker, connection):
        await publish(connection, [hostile_parcel(chance, DEAD, "placement.work") for _ in range(300)])
        nowhere = hostile_parcel(chance, DEAD, "no.such.queue")
        await publish(connection, [nowhere])

        async with open_dead_letters(connection, letters_max=CHUNK) as opened:
            with pytest.raises(
                NotReplayed,
                match=r"no role reads the queue 'no\.such\.queue'; it and the letters after it stay here",
            ):
                await opened.replay(connection, [*opened.letters])

        assert await connection.depth(DEAD_QUEUE) == 1
        async with working(broker, goods.memory, settings=HASTY) as worker:
            await until_read(connection, "placement.work", worker)


async def test_whatever_is_said_on_a_feed_its_listener_hears_the_rest() -> None:
    chance = random.Random("hostile facts")
    async with a_broker() as (broker, connection):
        ears = Station(broker, "p1", settings=SETTINGS)
        feed = listen(ears, [Grant(EVENTS, ("#",))])
        assert await anext(feed) == ()
        heard = 0
        for _ in range(4):
            hostile = [hostile_parcel(chance, EVENTS, "inventory.refused.c1") for _ in range(CHUNK)]
            await publish(connection, [among(chance, [line(A_FACT)], each) for each in hostile])
            heard = 0
            while heard < CHUNK:
                batch = await anext(feed)
                heard += sum(each.message == A_FACT for each in batch)
            assert heard == CHUNK
        await feed.aclose()
        await ears.close()


async def test_whatever_comes_as_an_answer_its_asker_is_answered() -> None:
    """Only the asker reads its queue, so the answering side tells its name; hostile parcels come between the answers."""
    chance = random.Random("hostile answers")
    async with a_broker() as (broker, connection), station(broker, asks=True) as asking:
        consuming = await connection.open_consuming("placement.questions", prefetch=1)
        for _ in range(200):
            asked = asyncio.ensure_future(asking.ask(AskSnapshot()))
            (question,) = await consuming.receive()
            reply_to = question.parcel.reply_to
            (read,) = known_messages(question.parcel, CODEC)
            page = encode(Envelope(message=A_PAGE, cause=read.id))
            hostile = [hostile_parcel(chance, REPLY, reply_to) for _ in range(10)]
            await publish(connection, [*hostile, among(chance, [page], hostile[0])])
            await consuming.acknowledge(question.tag)
            assert await asked == A_PAGE
