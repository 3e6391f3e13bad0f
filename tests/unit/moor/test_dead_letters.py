"""Dead letters by the client: what its methods find, and that none of them waits for ever."""

import pytest

from bus import message
from bus.memory import MemoryBroker
from bus.message import Parcel
from bus.topology import DEAD, objects_of
from moor.client import BrokerAway, Client, NotFound, dead_letters
from tests.contracts.stage import send

pytestmark = pytest.mark.asyncio


async def test_letters_are_found_by_their_handles_and_a_blocked_broker_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = MemoryBroker()
    broker = memory.as_user()
    connection = await broker.connect()
    await connection.declare(objects_of(("c1",), create_foreign=False))
    letters = [
        Parcel(DEAD, "compute.c1.work", b"{}", headers={message.REASON: f"host {number}"})
        for number in range(3)
    ]
    await send(broker, *letters)
    moor = Client(broker)

    every = await moor.list_dead_letters()
    shown = await moor.show_dead_letter(every[1].handle)
    assert shown.reason == "host 1"
    with pytest.raises(NotFound, match="there is no dead letter 'none'"):
        await moor.show_dead_letter("none")
    with pytest.raises(NotFound):
        await moor.show_dead_letter(every[2].handle, limit=1)

    monkeypatch.setattr(dead_letters, "DECIDED_S_MAX", 0.2)
    memory.block("disk alarm")
    with pytest.raises(BrokerAway, match="disk alarm"):
        await moor.replay_dead_letters(every=True)
    memory.block("")
    assert len(await moor.replay_dead_letters(every=True)) == 3
    await connection.close()
