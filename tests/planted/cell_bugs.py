"""Planted bugs in what several conductors share, and in what schedulers know of cells."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from engine.choosing.filters import CellUp
from tests.memory_stores import conductor
from tests.planted.replacing import replaced
from tests.simulation.process import RUNNING

# How long it takes to read rows: another transaction may begin meanwhile.
READING_S = 0.02


def cell_not_avoided() -> AbstractContextManager[None]:
    """New instances are placed in a cell that is known to be down."""
    return replaced(CellUp, "passes", lambda _real: lambda _self, hosts, _spec: hosts.everyone())


@contextmanager
def rows_not_locked() -> Iterator[None]:
    """Two conductors of a cell decide on the same row at the same time, each as if it were alone."""

    def without_lock(real: Any) -> Any:
        def init(self: Any) -> None:
            real(self)
            self.lock = nullcontext()

        return init

    def slowly(real: Any) -> Any:
        async def load(self: Any, instances: Any) -> Any:
            rows = await real(self, instances)
            await asyncio.sleep(READING_S)
            return rows

        return load

    with (
        replaced(conductor._Cell, "__init__", without_lock),  # noqa: SLF001 - it is this piece that is replaced
        replaced(conductor._Transaction, "load", slowly),  # noqa: SLF001 - it is this piece that is replaced
    ):
        yield


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
            return {id_: row for id_, row in due.items() if writers[id_] is RUNNING.get()}

        return take_due

    transaction = conductor._Transaction  # noqa: SLF001 - it is this piece that is replaced
    with replaced(transaction, "save", saving), replaced(transaction, "take_due", taking):
        yield
