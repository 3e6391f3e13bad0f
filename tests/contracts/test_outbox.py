"""Contract of the outbox: an entity's messages stay on its row until the broker has them, so a crash loses none."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from bus.broker import Broker
from bus.message import Message
from bus.messages.placement import InventoryRefused, ReleaseClaim
from bus.workers.connections import Station
from bus.workers.consuming import Subscription
from bus.workers.handlers import OutboxKey, Received, Said, Tell
from bus.workers.publisher import Outgoing
from bus.workers.worker import Worker
from engine.inventories import ProviderId
from engine.refusals import NotAllowed
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.small_world import connected, until_depth
from tests.contracts.stage import (
    SETTINGS,
    WORK,
    line,
    listening,
    number_of,
    order,
    parcel,
    send,
    until_empty,
)
from tests.running import running
from tests.varied import varied
from tests.waiting import until

# Page size of the sweep.
PAGE = 3


class Lamps:
    """Lamps that each order switches once: one row for each lamp, with its unconfirmed messages."""

    def __init__(self) -> None:
        self.sequence: dict[int, int] = {}
        self.kept: dict[OutboxKey, Message] = {}
        self.pages_read = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Lamps"]:
        yield self

    async def clear(self, tx: "Lamps", said: Sequence[OutboxKey]) -> None:
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


def numbers_in(heard: Sequence[Message]) -> list[int]:
    return [each.root.int for each in heard if isinstance(each, InventoryRefused)]


def switching(here: Station, lamps: Lamps) -> Worker[Lamps]:
    return Worker(here, Subscription(WORK, {ReleaseClaim: switch}, lamps, outbox=lamps))


async def test_what_was_saved_and_not_said_is_said_after_a_crash(
    under_test: BrokerUnderTest, broker: Broker
) -> None:
    lamps = Lamps()
    async with listening(broker, "#") as heard:
        await send(broker, parcel(*(line(order(n)) for n in range(5))))
        await under_test.set_alarm(on=True)  # saved, but the broker takes nothing
        # In two batches: with the second one those of the first are cleared that are confirmed.
        settings = varied(SETTINGS, BATCH_ITEMS_MAX=3)
        mortal, heir = (Station(broker, name, settings=settings) for name in ("mortal", "heir"))
        async with running((switching(mortal, lamps),), killed=True):
            await until(lambda: len(lamps.sequence) == 5 and mortal.publisher.under_way)
        assert len(lamps.kept) == 5
        await mortal.consuming.close()
        async with connected(broker) as connection:
            await until_depth(connection, WORK, 1)
        await under_test.set_alarm(on=False)

        async with running((switching(heir, lamps),), heir, mortal):
            await until(lambda: {*numbers_in(heard)} == {*range(5)})
            await until_empty(broker)

    assert lamps.sequence == dict.fromkeys(range(5), 1)


async def test_a_sweep_under_an_alarm_says_nothing_twice_and_a_page_at_a_time(
    under_test: BrokerUnderTest, broker: Broker
) -> None:
    lamps = Lamps()
    lamps.kept |= {OutboxKey(1 + n): shining(n) for n in range(7)}
    async with listening(broker, "#") as heard:
        here = Station(broker, "here", settings=varied(SETTINGS, SWEEP_S=0.01))
        await under_test.set_alarm(on=True)
        # A message that another part of the process is sending is on its row as well.
        own = OutboxKey(0)
        lamps.kept[own] = shining(8)
        saying = here.publisher.send_all([Outgoing(shining(8))], [own])
        saying.add_done_callback(lambda _: lamps.kept.pop(own))
        async with running((switching(here, lamps),), here):
            await until(lambda: lamps.pages_read == 1)
            await asyncio.wait((saying,), timeout=0.3)
            assert lamps.pages_read == 1
            assert here.publisher.waiting + len(here.publisher.under_way) <= PAGE + 1
            await under_test.set_alarm(on=False)
            await until(lambda: lamps.pages_read > 20)
            await until(lambda: len(heard) >= 8)

    said = numbers_in(heard)
    assert [n for n in said if n != 8] == [*range(7)]
    assert said.count(8) == 1
