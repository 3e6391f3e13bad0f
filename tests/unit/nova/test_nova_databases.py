"""Nova's databases are read in threads, and callers may be cancelled."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from nova_bridge.databases import open_nova_database

# It takes a second or two.
SLOW = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 3000000) SELECT max(n) FROM numbers"


@pytest.mark.asyncio
async def test_a_connection_is_closed_after_the_statement_of_a_cancelled_caller(tmp_path: Path) -> None:
    file = tmp_path / "nova.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE some (id)")
    database = open_nova_database("--api-db", f"sqlite:///{file}")
    order: list[str] = []
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    listened = {
        "before_cursor_execute": lambda *_: loop.call_soon_threadsafe(begun.set),
        "after_cursor_execute": lambda *_: order.append("read"),
        "rollback": lambda *_: order.append("ended"),
    }
    for name, said in listened.items():
        event.listen(Engine, name, said)
    try:

        async def read() -> None:
            async with database.reading() as reading:
                await reading.rows(SLOW)

        reading = asyncio.create_task(read())
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    finally:
        for name, said in listened.items():
            event.remove(Engine, name, said)
        await database.close()

    assert order == ["read", "ended"]
