"""Tells schedulers what the cell itself has."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from bus.messages.build import InstanceId, InstanceState
from bus.messages.cells import LiveTold, TellLive, states_that_fit
from bus.workers.handling import Bury, Handlers, Reading, Received, Said, Tell
from cell_conductor.core.instance import Instance
from cell_conductor.core.telling import live_state
from cell_conductor.store import ConductorStore

# The clocks of scheduler and conductor may differ. Nobody waits for longer: what was asked while the cell was down is not told.
ASKED_BEFORE_MAX = timedelta(minutes=2)


def question_handlers(cell: str, store: ConductorStore, clock: Callable[[], datetime]) -> Handlers:
    async def on_tell(asks: Sequence[Received[TellLive]]) -> list[Said]:
        since = clock() - ASKED_BEFORE_MAX
        said: list[Said] = []
        for ask in asks:
            if ask.message.cell != cell:
                why = f"cell is {ask.message.cell!r}, but this is a conductor of cell {cell!r}"
                said.append(Bury(ask, why))
            elif ask.message.asked_at >= since:
                said.append(Tell(await _told(cell, store, ask.message), ask))
        return said

    return {TellLive: Reading(on_tell)}


async def _told(cell: str, store: ConductorStore, asked: TellLive) -> LiveTold:
    # One more than asked tells whether there is another page.
    rows = await store.booked(asked.instances, asked.after, asked.limit + 1)
    return _page(rows[: asked.limit], cell, asked, has_more=len(rows) > asked.limit)


def _page(rows: Sequence[Instance], cell: str, asked: TellLive, *, has_more: bool) -> LiveTold:
    """The next page begins after the last row that was read, of whatever project it is."""
    states = _of_project(rows, cell, asked.project)
    fit = states_that_fit(states) if states else ()
    last: InstanceId | None = rows[-1].id if has_more else None
    if len(fit) < len(states):
        last = fit[-1].id
    return LiveTold(cell=cell, question=asked.question, instances=fit, next=last)


def _of_project(rows: Sequence[Instance], cell: str, project: str) -> tuple[InstanceState, ...]:
    """An instance whose removal came before its order has no project yet: only who asks for all sees it."""
    states = [live_state(row, cell) for row in rows]
    return tuple([state for state in states if project in ("", state.project)])
