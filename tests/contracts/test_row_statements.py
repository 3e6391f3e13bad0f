"""Statements on batches of rows do the same on both databases."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

from kit.sql import ONCE, Database, RowColumns, open_database, read_once, write_once
from kit.sql.statements import Id, InternalId, Moment
from tests.contracts.sql_stores import empty_database
from tests.running import closing
from tests.waiting import until

DATABASES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))

SHELVES = Table(
    "shelves",
    MetaData(),
    Column("id", Id, primary_key=True),
    Column("room", String(8), primary_key=True),
    Column("label", String(40), nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("is_full", Boolean, nullable=False),
    Column("owner", Id),
    Column("place", Integer),
    Column("filled_at", Moment),
    Column("body", LargeBinary),
)
NOTES = Table(
    "shelf_notes",
    SHELVES.metadata,
    Column("number", InternalId, Identity(), primary_key=True),
    Column("said", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)
ALL = ("id", "label", "count", "is_full", "owner", "place", "filled_at", "body")
ROW = RowColumns(SHELVES, *ALL, shared=("room",), free_texts=("label",))
ADD = ROW.insert("ON CONFLICT (id, room) DO NOTHING")
READ = RowColumns(SHELVES, *ALL, shared=("room",)).lock()

FIRST, SECOND, THIRD = (UUID(int=number << 64) for number in (1, 2, 3))
OWNER = UUID(int=99)
AT = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
FULL = (FIRST, "books", 7, True, OWNER, 3, AT, b"\x00\xff")
EMPTY = (SECOND, "", 0, False, None, None, None, None)


@asynccontextmanager
async def opened(kind: str) -> AsyncIterator[Database]:
    async with empty_database(kind) as url, closing(open_database(url)) as (database,):
        await write_once(database, SHELVES.metadata.create_all)
        yield database


@pytest.fixture(params=DATABASES)
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    async with opened(request.param) as each:
        yield each


async def add(database: Database, *rows: Any, room: str = "hall") -> int:
    async with database.writing() as transaction:
        return await ADD.change(transaction, rows, room)


async def stored(database: Database, *ids: UUID, room: str = "hall") -> list[tuple[Any, ...]]:
    async with database.writing() as transaction:
        return [tuple(row) for row in await READ.fetch(transaction, ids or (FIRST, SECOND, THIRD), room)]


async def test_rows_are_read_as_they_were_added(database: Database) -> None:
    assert await add(database, FULL, EMPTY) == 2

    assert await stored(database) == [FULL, EMPTY]


@pytest.mark.parametrize("label", ['say "hi"', "a\\b", "{,}", "line\nbreak", "NULL", "\x1f", "żółw"])
async def test_a_free_text_may_have_any_character(database: Database, label: str) -> None:
    row = (FIRST, label, *FULL[2:])

    await add(database, row)

    assert await stored(database) == [row]


async def test_rows_are_found_by_their_keys_and_shared_values_in_the_order_of_keys(
    database: Database,
) -> None:
    third = (THIRD, *FULL[1:])
    await add(database, third, EMPTY, FULL)
    await add(database, FULL, room="attic")

    assert await stored(database, THIRD, FIRST) == [FULL, third]
    assert await stored(database, room="attic") == [FULL]


async def test_an_update_writes_the_new_values_and_the_expressions_where_the_condition_holds(
    database: Database,
) -> None:
    await add(database, FULL, EMPTY)
    await add(database, FULL, room="attic")
    update = RowColumns(SHELVES, "id", "count", "place", shared=("room",)).update(
        "kept.count < new.count",
        place="coalesce(kept.place, new.place)",
        body="NULL",
    )

    async with database.writing() as transaction:
        changed = await update.change(transaction, [(FIRST, 7, 5), (SECOND, 1, 5), (THIRD, 1, 5)], "hall")

    assert changed == 1
    assert await stored(database) == [FULL, (SECOND, "", 1, False, None, 5, None, None)]
    assert await stored(database, room="attic") == [FULL]


async def test_a_statement_returns_the_rows_that_it_wrote(database: Database) -> None:
    await add(database, FULL)
    returning = ("id", "count", "filled_at", "owner", "is_full")
    new = RowColumns(SHELVES, *ALL, shared=("room",))
    adding = new.insert("ON CONFLICT (id, room) DO NOTHING", returning=returning, count="new.count + 1")
    changing = RowColumns(SHELVES, "id", "count").update(returning=returning, count="kept.count + new.count")

    async with database.writing() as transaction:
        added = await adding.fetch(transaction, [FULL, EMPTY], "hall")
        changed = await changing.fetch(transaction, [(FIRST, 3), (THIRD, 3)])

    assert [tuple(row) for row in added] == [(SECOND, 1, None, None, False)]
    assert [tuple(row) for row in changed] == [(FIRST, 10, AT, OWNER, True)]


async def test_a_statement_with_only_shared_values_runs_once(database: Database) -> None:
    add_note = RowColumns(NOTES, shared=("said",)).insert(returning=("number",))
    notes_that_say = RowColumns(NOTES).statement(
        "SELECT number FROM shelf_notes WHERE said = $1",
        "SELECT number FROM shelf_notes WHERE said = ?1",
        ("number",),
    )

    async with database.writing() as transaction:
        ((first,),) = await add_note.fetch(transaction, ONCE, b"one")
        ((second,),) = await add_note.fetch(transaction, ONCE, b"two")
        found = [tuple(row) for row in await notes_that_say.fetch(transaction, ONCE, b"two")]

    assert found == [(second,)]
    assert second > first


async def test_rows_are_deleted_by_their_keys(database: Database) -> None:
    add_notes = RowColumns(NOTES, "said").insert(returning=("number",))
    delete = RowColumns(NOTES, "number", "said").delete_unlocked("number")
    async with database.writing() as transaction:
        added = [number for (number,) in await add_notes.fetch(transaction, [(b"a",), (b"b",), (b"c",)])]
        first, _, third = added

        deleted = await delete.fetch(transaction, {third, first, third + 7})
        again = await delete.fetch(transaction, added)

    assert sorted(tuple(row) for row in deleted) == [(first, b"a"), (third, b"c")]
    assert [said for _, said in again] == [b"b"]


def some_session_waits(connection: Connection) -> bool:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return connection.exec_driver_sql(waiting).first() is not None


@pytest.mark.postgresql
async def test_a_row_that_was_locked_is_read_as_the_other_transaction_left_it() -> None:
    change = RowColumns(SHELVES, "id", "label", free_texts=("label",)).update()
    async with opened("postgresql") as database:
        await add(database, FULL, EMPTY)
        async with database.writing() as transaction:
            await change.change(transaction, [(FIRST, "changed")])
            waiting = asyncio.create_task(stored(database))
            await until(
                lambda: read_once(database, some_session_waits),
                "it waits for the lock",
                lambda waits: waits or waiting.done(),
            )

        assert await waiting == [(FIRST, "changed", *FULL[2:]), EMPTY]


@pytest.mark.postgresql
async def test_a_row_that_another_process_deletes_is_not_waited_for() -> None:
    add_notes = RowColumns(NOTES, "said").insert(returning=("number",))
    delete = RowColumns(NOTES, "said").delete_unlocked("number")
    async with opened("postgresql") as database:
        async with database.writing() as transaction:
            numbers = [number for (number,) in await add_notes.fetch(transaction, [(b"a",), (b"b",)])]
        async with database.writing() as first, database.writing() as second:
            await delete.fetch(first, numbers[:1])
            deleted = await delete.fetch(second, numbers)

        assert [said for (said,) in deleted] == [b"b"]
