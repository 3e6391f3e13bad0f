"""Answers an audit's questions for a cell's own rows: its instances, and the claims and hosts behind them."""

from collections.abc import Sequence

from bus.message import CellName
from bus.messages.books import AskCellBooks, CellBooksFound
from bus.messages.cells import page_that_fits
from bus.workers.handling import Answer, Handlers, ReadOnly, Received, Said
from cell_conductor.core.books import entry_of
from cell_conductor.handlers import of_cell
from cell_conductor.store import ConductorStore


def question_handlers(cell: CellName, store: ConductorStore) -> Handlers:
    async def on_audit(asks: Sequence[Received[AskCellBooks]]) -> list[Said]:
        ours, said = of_cell(cell, asks)
        return [*said, *[Answer(ask, await _booked(cell, store, ask.message)) for ask in ours]]

    return {AskCellBooks: ReadOnly(on_audit)}


async def _booked(cell: CellName, store: ConductorStore, question: AskCellBooks) -> CellBooksFound:
    # One more than asked tells whether there is another page.
    rows = await store.read(question.instances, question.after, question.limit + 1)
    entries = [entry_of(row, cell) for row in rows]
    page = page_that_fits(entries[: question.limit])
    return CellBooksFound(entries=page, next=page[-1].instance.id if len(page) < len(entries) else None)
