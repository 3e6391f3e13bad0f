"""Answers an audit's questions about the rows of this cell."""

from collections.abc import Sequence

from bus.messages.books import AskCellBooks, CellBooksFound
from bus.messages.cells import first_that_fit
from bus.workers.handling import Answer, Handlers, Reading, Received, Said
from cell_conductor.core.books import entry_of
from cell_conductor.core.instance import Rules
from cell_conductor.handlers import of_cell
from cell_conductor.store import ConductorStore


def books_handlers(store: ConductorStore, rules: Rules) -> Handlers:
    async def on_ask(asks: Sequence[Received[AskCellBooks]]) -> list[Said]:
        ours, said = of_cell(rules.cell, asks)
        return [*said, *[await _answer(store, rules, ask) for ask in ours]]

    return {AskCellBooks: Reading(on_ask)}


async def _answer(store: ConductorStore, rules: Rules, ask: Received[AskCellBooks]) -> Answer:
    question = ask.message
    # One more than asked tells whether there is another page.
    rows = await store.booked(question.instances, question.after, question.limit + 1)
    entries = [entry_of(row, rules) for row in rows]
    page = first_that_fit(entries[: question.limit])
    more = len(page) < len(entries)
    return Answer(ask, CellBooksFound(entries=page, next=page[-1].instance.id if more else None))
