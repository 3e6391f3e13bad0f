"""Statements sent to the drivers directly, on hot paths: SQLAlchemy's row objects cost as much as the query itself."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from bus.sql import PostgresTransaction, Transaction, driver_of


async def rows_of(
    transaction: Transaction,
    on_postgresql: str,
    on_sqlite: str,
    *arguments: str | int,
) -> Sequence[Any]:
    """Run the statement for this database, and return its rows."""
    if isinstance(transaction, PostgresTransaction):
        driver = await transaction.driver()
        rows: Sequence[Any] = await driver.fetch(on_postgresql, *arguments)
        return rows
    return await transaction.run(_fetched, on_sqlite, arguments)


def _fetched(connection: Connection, statement: str, arguments: tuple[str | int, ...]) -> Sequence[Any]:
    return driver_of(connection).execute(statement, arguments).fetchall()
