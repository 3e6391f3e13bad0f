"""Planted bugs in what several conductors share, and in what schedulers know of cells."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from scheduler_worker.core.choosing.filters.cell_up import CellUp
from tests.memory_stores import conductor
from tests.simulation.process import RUNNING
from tests.simulation.replacing import replaced


def cell_not_avoided() -> AbstractContextManager[None]:
    """New instances are placed in a cell that is known to be down."""
    return replaced(CellUp, "passes", lambda _real: lambda _self, hosts, _spec: hosts.everyone())


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
