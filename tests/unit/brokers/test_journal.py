"""A journal stores the broker's state, and a new process reads it. A kill is a copy of its files at that moment."""

import asyncio
import os
import shutil
import sqlite3
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from bus.broker import Connection, Delivery, Receipt
from bus.memory import JournalTakenError, JournalUnreadableError, MemoryBroker, journaled_broker
from bus.memory.journal import CHECKPOINT_PAGES, RETRY_S
from bus.topology import (
    Binding,
    Objects,
    Queue,
    QueueKind,
)
from kit.errors import ConnectionLost
from tests.contracts.memory_under_test import disk_full
from tests.contracts.small_world import (
    QUESTIONS,
    TOWN,
    WORK,
    bodies,
    connected,
    drain,
    parcel,
    publish,
    publish_bodies,
    receive,
    within_patience,
    world,
)
from tests.waiting import until

# ruff: noqa: ASYNC240, ASYNC230 - a look at a file of ours keeps no loop waiting

PAGE_BYTES = 4096
OTHER = Queue("town.other", QueueKind.WORK, (Binding(TOWN, "other"), Binding(TOWN, "work")))


@pytest.fixture
def journal_path(tmp_path: Path) -> Path:
    return tmp_path / "bus.journal"


def files_after_a_kill(journal_path: Path) -> Path:
    """The files that the next process would find if this one were killed now."""
    found = journal_path.with_name(f"{journal_path.name}-found")
    for end in ("", "-wal"):
        shutil.copy(f"{journal_path}{end}", f"{found}{end}")
    return found


@contextmanager
def found_after_a_kill(journal_path: Path) -> Iterator[MemoryBroker]:
    with journaled_broker(files_after_a_kill(journal_path)) as broker:
        yield broker


@asynccontextmanager
async def journaled(
    journal_path: Path, objects: Objects | None = None
) -> AsyncIterator[tuple[MemoryBroker, Connection]]:
    """A broker with this journal, and a connection that has declared these."""
    with journaled_broker(journal_path) as broker:
        async with connected(broker.as_user(), objects) as connection:
            yield broker, connection


async def waiting(broker: MemoryBroker, queue: str = WORK.name) -> list[Delivery]:
    async with connected(broker.as_user()) as connection:
        depth = await connection.depth(queue)
        return await drain(connection, queue, depth) if depth else []


async def until_written(connection: Connection) -> None:
    """Wait until everything so far is written: only then does the broker confirm."""
    assert await publish(connection, parcel(b"a landmark", "other")) == [Receipt.CONFIRMED]


async def test_confirmed_parcels_are_found_in_order_in_every_queue_that_took_them(journal_path: Path) -> None:
    letter = structs.replace(
        parcel(7), headers={"a": "text", "n": 5}, reply_to="someone", content_type="text/plain"
    )
    with journaled_broker(journal_path) as broker:
        async with connected(broker.as_user("town"), world(WORK, OTHER)) as connection:
            await publish_bodies(connection, *range(5))
            await publish(connection, letter)

            with found_after_a_kill(journal_path) as found:
                for queue in (WORK.name, OTHER.name):
                    there = await waiting(found, queue)
                    assert bodies(there) == [0, 1, 2, 3, 4, 7]
                    assert {each.returns for each in there} == {0}
                    assert {each.sender for each in there} == {"town"}
                    assert there[-1].parcel == letter


async def test_transient_and_deleted_objects_are_gone_after_a_restart(journal_path: Path) -> None:
    async with journaled(journal_path, world(WORK, OTHER, QUESTIONS)) as (broker, connection):
        await publish(connection, structs.replace(parcel(1, "question"), persistent=False))
        await publish_bodies(connection, 1, 2)
        broker.host.delete_queue(WORK.name)
        await connection.declare(world(WORK, OTHER))
        await publish_bodies(connection, 3)

        with found_after_a_kill(journal_path) as found:
            assert not await waiting(found, QUESTIONS.name)
            assert bodies(await waiting(found)) == [3]
            assert bodies(await waiting(found, OTHER.name)) == [1, 2, 3]


async def test_parcels_after_a_restart_are_not_confused_with_those_delivered_before(
    journal_path: Path,
) -> None:
    async with journaled(journal_path, world()) as (_, connection):
        await publish_bodies(connection, *range(10))
        await drain(connection, WORK.name, 10)
    async with journaled(journal_path) as (_, connection):
        await publish_bodies(connection, 11)

        with found_after_a_kill(journal_path) as found:
            assert [(int(each.parcel.body), each.returns) for each in await waiting(found)] == [(11, 0)]


async def test_acknowledged_parcels_are_gone_and_held_ones_are_redelivered_once(journal_path: Path) -> None:
    async with journaled(journal_path, world(WORK, OTHER)) as (_, connection):
        await publish_bodies(connection, *range(6))
        consuming = await connection.open_consuming(WORK.name, prefetch=4)
        held = await receive(consuming, 4)
        await consuming.acknowledge(held[1].tag)
        await receive(consuming, 1)
        await until_written(connection)

        with found_after_a_kill(journal_path) as found:
            there = await waiting(found)
    assert [(int(each.parcel.body), each.returns) for each in there] == [
        (0, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 0),
    ]


async def test_a_parcel_that_came_back_several_times_has_come_back_so_often_after_a_kill(
    journal_path: Path,
) -> None:
    async with journaled(journal_path, world(WORK, OTHER)) as (broker, connection):
        await publish_bodies(connection, 1)
        for _ in range(3):
            async with connected(broker.as_user()) as reader:
                await receive(await reader.open_consuming(WORK.name, prefetch=1), 1)
            await until_written(connection)

        with found_after_a_kill(journal_path) as found:
            assert [each.returns for each in await waiting(found)] == [3]


async def test_what_nobody_waits_for_is_written_too(journal_path: Path) -> None:
    async def are(*expected: tuple[int, int]) -> bool:
        with found_after_a_kill(journal_path) as found:
            return [(int(each.parcel.body), each.returns) for each in await waiting(found)] == [*expected]

    async with journaled(journal_path, world()) as (_, connection):
        await publish_bodies(connection, 1, 2)
        consuming = await connection.open_consuming(WORK.name, prefetch=1)
        (held,) = await receive(consuming, 1)
        await until(lambda: are((1, 1), (2, 0)), "the delivery is written")
        await consuming.acknowledge(held.tag)
        await until(lambda: are((2, 1)), "the acknowledgement is written, and the next delivery")
        (held,) = await receive(consuming, 1)
        await consuming.acknowledge(held.tag)
        await until(are, "the last acknowledgement is written")


async def test_a_queue_that_is_deleted_before_its_parcels_are_written_takes_only_its_own_along(
    journal_path: Path,
) -> None:
    async with journaled(journal_path, world(WORK, OTHER)) as (broker, connection):
        publishing = await connection.open_publishing()
        unwritten = asyncio.create_task(publishing.publish(parcel(5)))
        await asyncio.sleep(0)
        broker.host.delete_queue(WORK.name)
        await connection.declare(world(WORK, OTHER))
        assert await within_patience(unwritten) is Receipt.CONFIRMED

        with found_after_a_kill(journal_path) as found:
            assert not await waiting(found)
            assert bodies(await waiting(found, OTHER.name)) == [5]


async def test_an_end_with_wrong_bytes_in_it_is_dropped_and_nothing_before_it(journal_path: Path) -> None:
    async with journaled(journal_path, world()) as (_, connection):
        for number in range(4):
            await publish_bodies(connection, number)
        left = files_after_a_kill(journal_path)
    with Path(f"{left}-wal").open("r+b") as log:
        log.seek(-50, os.SEEK_END)
        log.write(b"\x55" * 20)

    with journaled_broker(left) as broker:
        assert bodies(await waiting(broker)) == [0, 1, 2]


async def test_the_files_stay_small_under_constant_traffic(journal_path: Path) -> None:
    body = b"x" * 10_000
    rounds, in_flight = 60, 50
    async with journaled(journal_path, world(WORK, OTHER)) as (_, connection):
        consuming = await connection.open_consuming(WORK.name, prefetch=in_flight)
        other = await connection.open_consuming(OTHER.name, prefetch=in_flight)
        # Some parcels always wait while others come and go.
        await publish(connection, *[parcel(body)] * in_flight)
        for _ in range(rounds):
            for each in (consuming, other):
                held = await receive(each, in_flight)
                await publish(connection, *[parcel(body, "neither")])
                await each.acknowledge(held[-1].tag, multiple=True)
            await publish(connection, *[parcel(body)] * in_flight)
        sizes = [Path(f"{journal_path}{end}").stat().st_size for end in ("", "-wal")]

    at_once = 2 * 2 * in_flight * len(body)
    assert rounds * at_once > 50 * 1024 * 1024
    assert sizes[0] < 2 * at_once
    assert sizes[1] < 2 * CHECKPOINT_PAGES * PAGE_BYTES


async def test_a_second_process_is_refused_with_the_id_of_the_first(journal_path: Path) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sys; from bus.memory import journaled_broker\n"
        "with journaled_broker(sys.argv[1]): print('mine', flush=True); sys.stdin.read()",
        journal_path,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert await within_patience(holder.stdout.readline()) == b"mine\n"
        with (
            pytest.raises(
                JournalTakenError, match=f"{journal_path} is the journal of the running process {holder.pid}"
            ),
            journaled_broker(journal_path),
        ):
            pass
    finally:
        holder.kill()
        await holder.wait()

    # The lock ends with its process, however that ended.
    with journaled_broker(journal_path) as broker:
        assert isinstance(broker, MemoryBroker)


async def test_a_journal_of_another_version_is_refused_with_both_versions(journal_path: Path) -> None:
    with journaled_broker(journal_path):
        pass
    with sqlite3.connect(journal_path) as newer:
        newer.execute("PRAGMA user_version = 9")
    newer.close()

    with (
        pytest.raises(JournalUnreadableError, match="version 9, this program reads version 1"),
        journaled_broker(journal_path),
    ):
        pass


async def test_the_database_of_another_program_is_refused_and_stays_as_it_is(journal_path: Path) -> None:
    with sqlite3.connect(journal_path) as other:
        other.execute("CREATE TABLE notes (text)")
        other.execute("PRAGMA user_version = 1")
    other.close()

    with (
        pytest.raises(JournalUnreadableError, match="the database of another program"),
        journaled_broker(journal_path),
    ):
        pass


@pytest.mark.hits("publishers are blocked: %s")
async def test_nothing_is_confirmed_while_the_disk_is_full_and_everything_once_it_is_not(
    journal_path: Path,
) -> None:
    async with journaled(journal_path, world()) as (_, connection):
        await publish_bodies(connection, 1)
        with disk_full(journal_path):
            publishing = await connection.open_publishing()
            waiting_for_room = asyncio.create_task(publishing.publish(parcel(2)))
            await until(
                lambda: "cannot be written" in connection.blocked,
                "the broker takes nothing, and says why",
            )
            assert not waiting_for_room.done()

        assert await within_patience(waiting_for_room) is Receipt.CONFIRMED
        assert not connection.blocked
        with found_after_a_kill(journal_path) as found:
            assert bodies(await waiting(found)) == [1, 2]


async def test_only_its_owner_may_read_a_journal(journal_path: Path) -> None:
    with journaled_broker(journal_path):
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in journal_path.parent.iterdir()}

    assert modes == dict.fromkeys(("bus.journal", "bus.journal-wal", "bus.journal.lock"), 0o600)


async def test_nothing_is_confirmed_any_more_after_a_sync_that_failed(
    journal_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    async with journaled(journal_path, world()) as (_, connection):
        await publish_bodies(connection, 1)
        publishing = await connection.open_publishing()
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", fail)
            waiting_for_ever = asyncio.create_task(publishing.publish(parcel(2)))
            await until(
                lambda: waiting_for_ever.done() or "restart the process" in connection.blocked,
                "the broker takes nothing, and says what to do",
            )
        # The next sync would succeed, and would say nothing of what is on the disk.
        await asyncio.sleep(2 * RETRY_S)
        assert not waiting_for_ever.done()
    with pytest.raises(ConnectionLost):
        await within_patience(waiting_for_ever)


async def test_a_publish_waits_until_its_message_is_on_the_disk(
    journal_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, is_done = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        begun.set()
        is_done.wait()

    async with journaled(journal_path, world()) as (_, connection):
        publishing = await connection.open_publishing()
        with monkeypatch.context() as slow_disk:
            slow_disk.setattr(os, "fsync", slow)
            waiting_for_the_disk = asyncio.create_task(publishing.publish(parcel(1)))
            try:
                await until(lambda: begun.is_set() or waiting_for_the_disk.done(), "it is synced")
                assert not waiting_for_the_disk.done()
            finally:
                is_done.set()
            assert await within_patience(waiting_for_the_disk) is Receipt.CONFIRMED


async def test_a_publish_that_waits_for_the_disk_when_the_broker_stops_is_lost_and_its_message_is_not(
    journal_path: Path,
) -> None:
    with journaled_broker(journal_path) as broker:
        connection = await broker.as_user().connect()
        await connection.declare(world())
        publishing = await connection.open_publishing()
        waiting_for_the_disk = asyncio.create_task(publishing.publish(parcel(1)))
        # The broker has it, and has not written it.
        await asyncio.sleep(0)

    with pytest.raises(ConnectionLost):
        await within_patience(waiting_for_the_disk)
    with journaled_broker(journal_path) as broker:
        assert bodies(await waiting(broker)) == [1]
