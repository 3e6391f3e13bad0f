"""Several workers of one process may share an SQLite file: they take turns, without polling."""

import asyncio
import os
import stat
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event

from kit.sql import driver_of, open_database, read_once, write_once
from tests.running import closing

ROOMS, ROUNDS = 4, 5


def noted(connection: Connection, name: str) -> None:
    driver_of(connection).execute("INSERT INTO notes (name) VALUES (?)", (name,))


def made(connection: Connection) -> None:
    driver_of(connection).execute("CREATE TABLE notes (number INTEGER PRIMARY KEY, name TEXT)")


def read(connection: Connection) -> list[str]:
    return [name for (name,) in driver_of(connection).execute("SELECT name FROM notes ORDER BY number")]


async def test_the_first_to_ask_writes_first_in_any_worker(tmp_path: Path) -> None:
    rooms = [open_database(f"sqlite:///{tmp_path / 'shared.db'}") for _ in range(ROOMS)]
    names = [f"{round_}-{room}" for round_ in range(ROUNDS) for room in range(ROOMS)]
    async with closing(*rooms):
        await write_once(rooms[0], made)

        async with asyncio.TaskGroup() as writing:
            for number, name in enumerate(names):
                writing.create_task(write_once(rooms[number % ROOMS], noted, name))

        assert await read_once(rooms[0], read) == names


def modes_in(directory: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}


async def test_only_its_owner_may_read_a_new_file(tmp_path: Path) -> None:
    """The mode of its directory does not matter."""
    before = os.umask(0o022)
    database = open_database(f"sqlite:///{tmp_path / 'new.db'}")
    try:
        await write_once(database, made)

        assert modes_in(tmp_path) == {"new.db": 0o600, "new.db-shm": 0o600, "new.db-wal": 0o600}
    finally:
        os.umask(before)
        await database.close()


@pytest.mark.parametrize("cancelled", [1, 2, 3])
async def test_a_caller_that_is_cancelled_again_and_again_leaves_the_next_writer_alone(
    tmp_path: Path, cancelled: int
) -> None:
    """Its transaction ends in another thread, and nothing begins before that."""
    async with closing(open_database(f"sqlite:///{tmp_path / 'shared.db'}")) as (database,):
        await write_once(database, made)
        # Large, so that its commit is still under way.
        first = asyncio.create_task(write_once(database, noted, "large" * 4_000_000))
        await asyncio.sleep(0)
        for _ in range(cancelled):
            first.cancel()
            await asyncio.sleep(0)
        await write_once(database, noted, "next")
        await asyncio.gather(first, return_exceptions=True)

        assert "next" in [name[:5] for name in await read_once(database, read)]


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_reader_that_is_cancelled_leaves_no_transaction_to_the_next_one(
    tmp_path: Path, *, is_open: bool
) -> None:
    """Its work goes on in another thread, which may still open the file, and has begun nothing yet."""
    begins, may_end = threading.Event(), threading.Event()

    def take_long(*_: object) -> None:
        begins.set()
        assert may_end.wait(10)

    async with closing(open_database(f"sqlite:///{tmp_path / 'shared.db'}")) as (database,):
        await write_once(database, made)
        if is_open:
            await read_once(database, read)
        else:
            event.listen(Engine, "connect", take_long)
        first = asyncio.create_task(read_once(database, take_long if is_open else read))
        await asyncio.to_thread(begins.wait, 10)
        first.cancel()
        second = asyncio.create_task(read_once(database, read))
        # Time to begin, if it does not wait for the first.
        await asyncio.sleep(0.01)
        may_end.set()

        try:
            assert await second == []
        finally:
            if not is_open:
                event.remove(Engine, "connect", take_long)
        assert first.cancelled()
