"""Contract of the outbox: an entity's messages stay on its row until the broker has them, so a crash loses none."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from bus.message import Message
from bus.messages.placement import InventoryRefused, ReleaseClaim
from bus.topology import EVENTS, Grant
from bus.workers.consuming import Subscription
from bus.workers.handling import OutboxKey, Received, Said, Tell
from bus.workers.publisher import Outgoing
from bus.workers.station import Station, listen
from bus.workers.worker import Worker
from engine.inventories import ProviderId
from engine.refusals import NotAllowed
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.stage import SETTINGS, WORK, declared, line, number_of, order, parcel, send, until_empty
from tests.varied import varied
from tests.waiting import until

pytestmark = pytest.mark.asyncio

# Page size of the sweep.
PAGE = 3


class Lamps:
    """Lamps that each order switches once: one row for each lamp, with its unconfirmed messages."""

    def __init__(self) -> None:
        self.sequence: dict[int, int] = {}
        self.kept: dict[OutboxKey, Message] = {}
        self.transactions = 0
        self.clearings = 0
        self.pages_read = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Lamps"]:
        self.transactions += 1
        yield self

    async def clear(self, tx: "Lamps", said: Sequence[OutboxKey]) -> None:
        self.clearings += 1
        for each in said:
            del tx.kept[each]

    async def pending(self, after: OutboxKey | None = None) -> Sequence[tuple[OutboxKey, Message]]:
        self.pages_read += 1
        kept = sorted(self.kept.items(), key=lambda each: each[0])
        return [each for each in kept if after is None or each[0] > after][:PAGE]


async def switch(orders: Sequence[Received[ReleaseClaim]], lamps: Lamps) -> Sequence[Said]:
    said: list[Said] = []
    for each in orders:
        number = number_of(each.message)
        kept = OutboxKey(number)
        if number not in lamps.sequence:
            lamps.sequence[number] = 1
            lamps.kept[kept] = shining(number)
        if kept in lamps.kept:
            said.append(Tell(lamps.kept[kept], each, kept))
    return said


def shining(number: int) -> InventoryRefused:
    """An event, recognised by its number."""
    return InventoryRefused(
        cell="c1", root=ProviderId(UUID(int=number)), verdict=NotAllowed(field="lamp", reason="shines")
    )


async def test_what_was_saved_and_not_said_is_said_after_a_crash(under_test: BrokerUnderTest) -> None:
    broker = await declared(under_test)
    lamps = Lamps()
    heard: list[int] = []
    ears = Station(broker, "ears", settings=SETTINGS)
    feed = listen(ears, [Grant(EVENTS, ("#",))])
    await anext(feed)
    await send(broker, parcel(*(line(order(n)) for n in range(5))))

    await under_test.set_alarm(on=True)  # saved, but the broker takes nothing
    mortal = Station(broker, "mortal", settings=SETTINGS)
    worker = Worker(mortal, Subscription(WORK, {ReleaseClaim: switch}, lamps, outbox=lamps))
    running = asyncio.create_task(worker.run())
    await until(lambda: len(lamps.kept) == 5)
    running.cancel()
    await asyncio.wait((running,))
    await mortal.consuming.close()
    await under_test.set_alarm(on=False)

    heir = Station(broker, "heir", settings=SETTINGS)
    worker = Worker(heir, Subscription(WORK, {ReleaseClaim: switch}, lamps, outbox=lamps))
    running = asyncio.create_task(worker.run())
    while set(heard) != set(range(5)):
        heard += [
            each.message.root.int for each in await anext(feed) if isinstance(each.message, InventoryRefused)
        ]
    await until_empty(broker)
    await worker.stop()
    await running
    await heir.close()
    await feed.aclose()
    await ears.close()
    await mortal.close()

    assert lamps.sequence == dict.fromkeys(range(5), 1)


async def test_a_sweep_under_an_alarm_says_nothing_twice_and_a_page_at_a_time(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)
    lamps = Lamps()
    lamps.kept |= {OutboxKey(1 + n): shining(n) for n in range(7)}
    ears = Station(broker, "ears", settings=SETTINGS)
    feed = listen(ears, [Grant(EVENTS, ("#",))])
    await anext(feed)
    here = Station(broker, "here", settings=varied(SETTINGS, SWEEP_S=0.01))
    await under_test.set_alarm(on=True)
    # A message that another part of the process is sending is on its row as well.
    own = OutboxKey(0)
    lamps.kept[own] = shining(8)
    saying = here.publisher.send_all([Outgoing(shining(8))], [own])
    saying.add_done_callback(lambda _: lamps.kept.pop(own))
    worker = Worker(here, Subscription(WORK, {ReleaseClaim: switch}, lamps, outbox=lamps))
    running = asyncio.create_task(worker.run())
    await until(lambda: lamps.pages_read == 1)
    await asyncio.wait((saying,), timeout=0.3)
    assert lamps.pages_read == 1
    assert here.publisher.waiting + len(here.publisher.under_way) <= PAGE + 1
    await under_test.set_alarm(on=False)
    heard: list[int] = []
    await until(lambda: lamps.pages_read > 20)
    while len(heard) < 8:
        heard += [
            each.message.root.int for each in await anext(feed) if isinstance(each.message, InventoryRefused)
        ]
    await worker.stop()
    await running
    await here.close()
    await feed.aclose()
    await ears.close()

    assert [n for n in heard if n != 8] == [*range(7)]
    assert heard.count(8) == 1
