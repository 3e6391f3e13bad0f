"""Dead letters by the client: what its methods find, and that none of them waits for ever."""

import pytest

from bus import message
from bus.broker import Origin
from bus.codec import encode
from bus.memory import MemoryBroker
from bus.message import EVENTS, Envelope, Parcel
from bus.messages.cloud import RowFailed
from bus.queues import DEAD_QUEUE
from bus.topology import DEAD, objects_of
from bus.workers.dead_letters import dead_letter_parcel
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

    monkeypatch.setattr(dead_letters, "DECIDED_S_MAX", 0.2)
    memory.block("disk alarm")
    with pytest.raises(BrokerAway, match="disk alarm"):
        await moor.replay_dead_letters(every=True)
    memory.block("")
    assert len(await moor.replay_dead_letters(every=True)) == 3
    await connection.close()


def letter_of_row(row: str, number: int, sender: str = "") -> Parcel:
    """What the process of this number writes of a row at which it has failed."""
    process = f"scheduler-{number}"
    return dead_letter_parcel(
        encode(Envelope(message=RowFailed(part="wake", row=row), id=f"{process}-{row}")),
        "scheduler.requests",
        Origin(sender, "", EVENTS, "row.failed"),
        reason=f"AssertionError in {process}",
        attempts=number,
        where=process,
        letter=f"{process}-1",
    )


async def test_a_row_at_which_many_processes_failed_is_one_dead_letter() -> None:
    broker = MemoryBroker().as_user()
    connection = await broker.connect()
    await connection.declare(objects_of(("c1",), create_foreign=False))
    of_first = [letter_of_row("first", number) for number in range(3)]
    await send(broker, *of_first, letter_of_row("second", 0), letter_of_row("first", 9, "moor-app-shop"))
    moor = Client(broker)

    first, *others = await moor.list_dead_letters()
    assert (len(others), len({first.handle, *[each.handle for each in others]})) == (2, 3)
    assert (await moor.show_dead_letter(first.handle)).type == "row.failed"
    assert [each.handle for each in await moor.delete_dead_letters(first.handle)] == [first.handle]
    assert [each.handle for each in await moor.list_dead_letters()] == [each.handle for each in others]
    assert await connection.depth(DEAD_QUEUE) == 2
    await connection.close()


async def test_a_letter_behind_all_that_are_listed_is_found_by_its_queue_and_by_its_handle() -> None:
    memory = MemoryBroker()
    broker = memory.as_user()
    connection = await broker.connect()
    await connection.declare(objects_of(("c1",), create_foreign=False))
    first, last = "compute.c1.work", "placement.work"
    queues = [first] * dead_letters.LETTERS_MAX + [last] * 3
    await send(
        broker,
        *(
            Parcel(DEAD, queue, b"{}", headers={message.REASON: f"letter {number}"})
            for number, queue in enumerate(queues)
        ),
    )
    moor = Client(broker)

    assert {each.queue for each in await moor.list_dead_letters()} == {first}
    found = await moor.list_dead_letters(queue=last, limit=2)
    assert [each.reason for each in found] == ["letter 1000", "letter 1001"]
    assert await moor.show_dead_letter(found[1].handle) == found[1]
    assert await moor.delete_dead_letters(found[1].handle) == found[1:]
    assert await moor.replay_dead_letters(queue=last, every=True, limit=1) == found[:1]
    assert [each.reason for each in await moor.list_dead_letters(queue=last)] == ["letter 1002"]
    assert await moor.count_dead_letters() == dead_letters.LETTERS_MAX + 1
    await connection.close()
