"""The process of an embedded broker is killed repeatedly: what it confirmed is still there, and its clients continue."""

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bus.broker import Connection, Receipt
from bus.unix_socket.client import UnixBroker
from kit.errors import ConnectionLost, Interrupted
from tests.adversity.keeping_broker import serving
from tests.contracts.small_world import (
    WORK,
    bodies,
    connected,
    drain,
    parcel,
    publish_bodies,
    world,
)
from tests.waiting import until

pytestmark = pytest.mark.asyncio

KILLS = 5
IN_FLIGHT = 50
PREFETCH = 200
# The body of parcels that are not counted.
LANDMARK = 0


@pytest.fixture
def directory() -> Iterator[Path]:
    # Paths of sockets must be short, and a test's own directory is not.
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        yield Path(place)


def broker_in(directory: Path) -> UnixBroker:
    return UnixBroker(directory / "bus.sock")


class Books:
    """Records the messages sent to the broker and the confirms, as far as its clients know."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.confirmed: set[int] = set()
        self.acknowledged: set[int] = set()
        # Those of them that came before something that the broker confirmed.
        self.surely_acknowledged: set[int] = set()

    async def publish(self, connection: Connection) -> None:
        """Publish many at a time, in order, until the broker is killed."""
        publishing = await connection.open_publishing()

        async def publish_on() -> None:
            for number in self.numbers:
                if await publishing.publish(parcel(number)) is Receipt.CONFIRMED:
                    self.confirmed.add(number)

        publishers = [publish_on() for _ in range(IN_FLIGHT)]
        outcomes = await asyncio.gather(*publishers, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ConnectionLost}

    async def acknowledge_every_other(self, connection: Connection) -> None:
        consuming = await connection.open_consuming(WORK.name, prefetch=PREFETCH)
        held = 0
        with suppress(Interrupted):
            while True:
                for delivery in await consuming.receive():
                    number = int(delivery.parcel.body)
                    if number % 2 and held < PREFETCH // 2:
                        held += 1
                        continue
                    await consuming.acknowledge(delivery.tag)
                    self.acknowledged.add(number)
                so_far = {*self.acknowledged}
                # On the same connection: the broker reads the acknowledgements before it confirms this.
                await publish_bodies(connection, LANDMARK)
                self.surely_acknowledged |= so_far


async def test_whatever_was_confirmed_and_not_acknowledged_is_there_after_each_kill(directory: Path) -> None:
    books = Books()
    for kill in range(1, KILLS + 1):
        async with serving(directory):
            at_work = await publishing_and_acknowledging(books, directory)
            await until(at_least(kill * 1_000, books.confirmed), f"{kill},000 are confirmed")
        await asyncio.gather(*at_work)
    async with serving(directory), connected(broker_in(directory)) as connection:
        found = await all_waiting(connection)

    assert found == sorted({*found})
    assert books.confirmed - books.acknowledged <= {*found}
    assert len(books.surely_acknowledged) > KILLS
    assert not books.surely_acknowledged & {*found}


async def publishing_and_acknowledging(books: Books, directory: Path) -> list[asyncio.Task[None]]:
    """Publish and acknowledge until the broker is killed, on a connection each."""
    publisher, consumer = [await broker_in(directory).connect() for _ in range(2)]
    await publisher.declare(world())
    return [
        asyncio.create_task(books.publish(publisher)),
        asyncio.create_task(books.acknowledge_every_other(consumer)),
    ]


def at_least(count: int, numbers: set[int]) -> Callable[[], bool]:
    return lambda: len(numbers) >= count


async def all_waiting(connection: Connection) -> list[int]:
    """The numbers in the order of arrival; without landmarks, which arrive another way."""
    deliveries = await drain(connection, WORK.name, await connection.depth(WORK.name))
    return [number for number in bodies(deliveries) if number != LANDMARK]
