"""How dead letters are identified, which reason they show, and how they are replayed."""

import pytest
from msgspec import structs

from bus.broker import Connection, Origin
from bus.memory import MemoryBroker
from bus.message import PLACEMENT, SENDER, Parcel
from bus.queues import DEAD_QUEUE
from bus.topology import objects_of, user_of
from bus.workers.authority import BrokerFacts
from bus.workers.dead_letters import NotReplayed, dead_letter_parcel, open_dead_letters
from tests.contracts.stage import WORK, line, order, send

BURIED = dead_letter_parcel(
    b"{}", WORK, Origin("", "", PLACEMENT, "release.c1"), reason="never", attempts=1, where="w-1", letter="a"
)


async def a_letter(buried: Parcel = BURIED) -> tuple[MemoryBroker, Connection]:
    """A broker with one dead letter."""
    memory = MemoryBroker()
    connection = await memory.as_user().connect()
    await connection.declare(objects_of(("c1",)))
    await send(memory.as_user(), structs.replace(buried, body=line(order(1))))
    return memory, connection


async def test_a_replayed_dead_letter_moves_to_its_queue() -> None:
    _, connection = await a_letter()

    async with open_dead_letters(connection, letters_max=10) as opened:
        await opened.replay(connection, [*opened.letters])

    assert [await connection.depth(name) for name in (DEAD_QUEUE, WORK)] == [0, 1]
    await connection.close()


async def test_a_dead_letter_whose_queue_is_gone_is_not_replayed_and_stays() -> None:
    memory, connection = await a_letter()
    memory.host.delete_queue(WORK)

    async with open_dead_letters(connection, letters_max=10) as opened:
        with pytest.raises(
            NotReplayed, match=r"queue 'placement.work' is unroutable; it and the letters after it stay here"
        ):
            await opened.replay(connection, [*opened.letters])

    assert await connection.depth(DEAD_QUEUE) == 1
    await connection.close()


async def test_a_dead_letter_that_its_sender_may_not_send_is_not_replayed_and_stays() -> None:
    forged = structs.replace(BURIED, headers={**BURIED.headers, SENDER: user_of("compute", "c1")})
    _, connection = await a_letter(forged)

    async with open_dead_letters(connection, 10, BrokerFacts(has_users=True)) as opened:
        with pytest.raises(NotReplayed, match="has no right to send"):
            await opened.replay(connection, [*opened.letters])

    assert [await connection.depth(name) for name in (DEAD_QUEUE, WORK)] == [1, 0]
    await connection.close()
