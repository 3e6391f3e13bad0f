"""The bare-metal daemons' rows, which operators' commands read from the database instead of asking a daemon."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import typer

from ironic_sync.store_sql import SqlIronicStore
from kit.errors import Unavailable
from kit.settings import without_password
from moor.options import command_settings, run_with

T = TypeVar("T")

# A command sends one query at a time.
POOL_SIZE = 1


def with_rows(ironic_db: str, db: str, work: Callable[[SqlIronicStore], Awaitable[T]]) -> T:
    """Run `work` on the daemons' rows in the named database, or else in that of a `moor up` on this machine."""
    url = command_settings(db=db, ironic_db=ironic_db).ironic_db_url
    if not url:
        raise typer.BadParameter(
            "no database is named: give --ironic-db or --db, MOOR_IRONIC_DB_URL or MOOR_DB_URL"
        )
    return run_with(opened_rows(url), work)


@asynccontextmanager
async def opened_rows(url: str) -> AsyncIterator[SqlIronicStore]:
    store = SqlIronicStore(url, pool_size=POOL_SIZE)
    try:
        if not await store.has_tables():
            raise Unavailable(
                f"{without_password(url)} has no tables of bare-metal daemons: `moor db upgrade` creates them"
            )
        yield store
    finally:
        await store.close()
