"""Planted bugs in what several conductors share, and in what schedulers know of cells."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from msgspec import structs

from cell_conductor.store_sql import LOAD, SqlConductorTransaction
from engine.choosing.filters import CellUp
from kit.sql.databases import KeyStatement
from tests.planted.replacing import ANY_CLOUD, planted_as, planted_by, replaced
from tests.simulation.process import RUNNING

# New instances are placed in a cell that is known to be down.
planted_by("a cell that is down not avoided", CellUp, "passes", world=ANY_CLOUD)(
    lambda _real: lambda _self, hosts, _spec: hosts.everyone()
)


@planted_as("two conductors decide on one row at once")
def rows_not_locked() -> AbstractContextManager[None]:
    """Two conductors of a cell decide on the same row at the same time, each as if it were alone."""
    unlocked = structs.replace(LOAD, on_postgresql=LOAD.on_postgresql.replace(" FOR UPDATE", ""))

    def planted(real: Any) -> Any:
        async def fetch(self: Any, transaction: Any, keys: Any, *shared: Any) -> Any:
            return await real(unlocked if self is LOAD else self, transaction, keys, *shared)

        return fetch

    return replaced(KeyStatement, "fetch", planted)


@planted_as("a row forgotten when its conductor dies", world=ANY_CLOUD)
@contextmanager
def rows_of_others_not_taken() -> Iterator[None]:
    """A conductor looks after the rows that it has written itself, and after no others: when it dies, nobody does."""
    writers: dict[Any, Any] = {}

    def saving(real: Any) -> Any:
        async def save(self: Any, rows: Any, forgotten: Any, said: Any) -> Any:
            writers.update({row.id: RUNNING.get() for row in rows})
            return await real(self, rows, forgotten, said)

        return save

    def taking(real: Any) -> Any:
        async def take_due(self: Any, now: Any, limit: Any) -> Any:
            due = await real(self, now, limit)
            return {id_: row for id_, row in due.items() if writers.get(id_) is RUNNING.get()}

        return take_due

    with (
        replaced(SqlConductorTransaction, "save", saving),
        replaced(SqlConductorTransaction, "take_due", taking),
    ):
        yield


# Those that no seed can show: the simulation's database has one writer.
