"""A consumer is closed at every end, and the part that consumes begins again with a new one."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from bus.broker import Connection
from bus.memory.broker import MemoryBroker
from bus.workers.consuming import consumer
from bus.workers.sending import Link
from kit.errors import ConsumerCancelled, NotFound
from kit.parts import PartState, Pauses, Status, Supervised
from tests.contracts.stage import SETTINGS
from tests.simulation.loop import run_simulated


class Opened:
    """Consumers as they were opened in turn. Each ends as the next of `ends` says."""

    def __init__(self, *ends: BaseException) -> None:
        self.ends = [*ends]
        self.count = 0
        self.closed = 0

    async def __call__(self, _: Connection) -> "Opened":
        self.count += 1
        return self

    async def receive(self) -> None:
        raise self.ends.pop(0)

    async def close(self) -> None:
        self.closed += 1
        raise ConsumerCancelled("it has ended already")


@pytest.mark.parametrize(
    "end", [ConsumerCancelled("its queue was deleted"), ZeroDivisionError(), asyncio.CancelledError()]
)
def test_a_consumer_is_closed_however_it_ends(end: BaseException) -> None:
    opened = Opened(end)
    status = Status("reading")

    async def read(link: Link) -> None:
        async with consumer(link, status, opened) as consuming:
            assert status.state is PartState.WELL
            await consuming.receive()

    async def scenario() -> None:
        link = Link(MemoryBroker().as_user(), SETTINGS)
        with pytest.raises(type(end)):
            await read(link)
        await link.close()

    run_simulated(scenario())

    assert opened.closed == 1


def test_a_part_that_consumes_begins_again_with_a_new_consumer_on_the_same_connection() -> None:
    opened = Opened(ConsumerCancelled("its queue was deleted"), ConsumerCancelled("and again"))

    async def scenario() -> Link:
        link = Link(MemoryBroker().as_user(), SETTINGS)

        async def read() -> None:
            async with consumer(link, part.status, opened) as consuming:
                if opened.ends:
                    await consuming.receive()

        part = Supervised("reading", read, pauses=Pauses(first_s=1.0), chance=random.Random(1))
        await part.run()
        assert part.status.failures == 2
        await link.close()
        return link

    link = run_simulated(scenario())

    assert (opened.count, opened.closed, link.connections_made) == (3, 3, 1)


def test_what_cannot_be_opened_is_not_well() -> None:
    status = Status("reading")

    async def refused(_: Connection) -> Opened:
        raise NotFound("no such queue")

    async def scenario() -> None:
        link = Link(MemoryBroker().as_user(), SETTINGS)
        with pytest.raises(NotFound):
            await AsyncExitStack().enter_async_context(consumer(link, status, refused))
        await link.close()

    run_simulated(scenario())

    assert status.state is PartState.STARTING
