"""Several workers of one process may share an SQLite file: they take turns, without polling."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import Connection

from bus.sql import SqliteDatabase, driver_of, open_database

pytestmark = pytest.mark.asyncio

ROOMS, ROUNDS = 4, 5


def noted(connection: Connection, name: str) -> None:
    driver_of(connection).execute("INSERT INTO notes (name) VALUES (?)", (name,))


def made(connection: Connection) -> None:
    driver_of(connection).execute("CREATE TABLE notes (number INTEGER PRIMARY KEY, name TEXT)")


def read(connection: Connection) -> list[str]:
    return [name for (name,) in driver_of(connection).execute("SELECT name FROM notes ORDER BY number")]


async def note(database: SqliteDatabase, name: str) -> None:
    async with database.writing() as transaction:
        await transaction.run(noted, name)


async def test_the_first_to_ask_writes_first_in_any_worker(tmp_path: Path) -> None:
    rooms = [open_database(f"sqlite:///{tmp_path / 'shared.db'}") for _ in range(ROOMS)]
    names = [f"{round_}-{room}" for round_ in range(ROUNDS) for room in range(ROOMS)]
    try:
        async with rooms[0].writing() as transaction:
            await transaction.run(made)

        async with asyncio.TaskGroup() as writing:
            for number, name in enumerate(names):
                room = rooms[number % ROOMS]
                assert isinstance(room, SqliteDatabase)
                writing.create_task(note(room, name))

        async with rooms[0].reading() as looking:
            assert await looking.run(read) == names
    finally:
        for room in rooms:
            await room.close()
