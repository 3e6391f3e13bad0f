"""Answers an audit's questions about the rows of this cell."""

from collections.abc import Sequence
from itertools import accumulate, takewhile

import msgspec

from bus.broker import PARCEL_BYTES_MAX
from bus.messages.books import AskCellBooks, CellBooksFound, CellEntry
from bus.workers.handling import Answer, Handlers, Reading, Received, Said
from cell_conductor.core.books import entry_of
from cell_conductor.core.instance import Rules
from cell_conductor.handlers import of_cell
from cell_conductor.store import ConductorStore

# 8 KiB are left for the envelope.
_ENTRIES_BYTES_MAX = PARCEL_BYTES_MAX - 8 * 1024

_encode = msgspec.json.Encoder().encode


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
    page = _fitting(entries[: question.limit])
    more = len(page) < len(entries)
    return Answer(ask, CellBooksFound(entries=page, next=page[-1].instance.id if more else None))


def _fitting(entries: Sequence[CellEntry]) -> tuple[CellEntry, ...]:
    """The first of these entries, as many as one message has room for."""
    sizes = accumulate(len(_encode(entry)) + 1 for entry in entries)
    fit = len([*takewhile(_ENTRIES_BYTES_MAX.__ge__, sizes)])
    return tuple(entries[: max(fit, 1)])
