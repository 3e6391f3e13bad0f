"""Answers questions for a cell's own rows: a scheduler's for its instances, and an audit's for the claims and hosts
behind them.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from msgspec import structs

from bus.message import CellName
from bus.messages.books import AskCellBooks, CellBooksFound
from bus.messages.build import InstanceState
from bus.messages.cells import LiveTold, TellLive, page_that_fits
from bus.workers.handling import Answer, Handlers, ReadOnly, Received, Said, Tell
from cell_conductor.core.books import entry_of
from cell_conductor.core.instance import Instance
from cell_conductor.core.transition import state_of
from cell_conductor.handlers import of_cell
from cell_conductor.store import ConductorStore

# The clocks of scheduler and conductor may differ. Nobody waits for longer: what was asked while the cell was down is not told.
ASKED_BEFORE_MAX = timedelta(minutes=2)
# The states in which no host has anything of the instance, or is only cleaning up.
_OVER = ("error", "deleted")


def question_handlers(cell: CellName, store: ConductorStore, clock: Callable[[], datetime]) -> Handlers:
    async def on_tell(asks: Sequence[Received[TellLive]]) -> list[Said]:
        since = clock() - ASKED_BEFORE_MAX
        ours, said = of_cell(cell, asks)
        for ask in ours:
            if ask.message.asked_at >= since:
                said.append(Tell(await _told(cell, store, ask.message), ask))
        return said

    async def on_audit(asks: Sequence[Received[AskCellBooks]]) -> list[Said]:
        ours, said = of_cell(cell, asks)
        return [*said, *[Answer(ask, await _booked(cell, store, ask.message)) for ask in ours]]

    return {TellLive: ReadOnly(on_tell), AskCellBooks: ReadOnly(on_audit)}


async def _booked(cell: CellName, store: ConductorStore, question: AskCellBooks) -> CellBooksFound:
    # One more than asked tells whether there is another page.
    rows = await store.read(question.instances, question.after, question.limit + 1)
    entries = [entry_of(row, cell) for row in rows]
    page = page_that_fits(entries[: question.limit])
    return CellBooksFound(entries=page, next=page[-1].instance.id if len(page) < len(entries) else None)


async def _told(cell: str, store: ConductorStore, asked: TellLive) -> LiveTold:
    """Answer a scheduler's question for the instances of the cell, as many as fit into one message.

    The next page begins after the last row that was read, even if that is of another project than the one asked for.
    """
    # One more than asked tells whether there is another page.
    rows = await store.read(asked.instances, asked.after, asked.limit + 1)
    page = rows[: asked.limit]
    # An instance whose removal came before its order has no project yet: only who asks for all sees it.
    states = [state for row in page if asked.project in ("", (state := _live_state(row, cell)).project)]
    fit = page_that_fits(states)
    last = page[-1].id if len(rows) > asked.limit else None
    if len(fit) < len(states):
        last = fit[-1].id
    return LiveTold(cell=cell, question=asked.question, instances=fit, next=last)


def _live_state(row: Instance, cell: str) -> InstanceState:
    """The instance as the cell sees it now: with the row's own state, and with the host of the attempt that is under way."""
    host = row.host.name if row.host and row.state not in _OVER else ""
    return structs.replace(state_of(row, cell, row.sequence), state=row.state, host=host)
