"""The rows of the bare-metal daemons, read where the daemons keep them: an operator's commands ask no daemon for them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import typer

from bus.places import without_password
from ironic_sync.store_sql import SqlIronicStore
from moor.options import fail, run, settled

T = TypeVar("T")

# One question after the other.
POOL_SIZE = 1


def with_rows(ironic_db: str, db: str, work: Callable[[SqlIronicStore], Awaitable[T]]) -> T:
    """Do it with the database that was named, or else that of a `moor up` on this machine."""
    url = settled(db=db, ironic_db=ironic_db).ironic_db_url
    if not url:
        raise typer.BadParameter(
            "no database is named: give --ironic-db or --db, MOOR_IRONIC_DB_URL or MOOR_DB_URL"
        )

    async def with_store() -> T:
        async with opened_rows(url) as store:
            return await work(store)

    return run(with_store())


@asynccontextmanager
async def opened_rows(url: str) -> AsyncIterator[SqlIronicStore]:
    store = SqlIronicStore(url, pool_size=POOL_SIZE)
    try:
        if not await store.has_tables():
            fail(f"{without_password(url)} has no tables of bare-metal daemons: `moor db upgrade` makes them")
        yield store
    finally:
        await store.close()
