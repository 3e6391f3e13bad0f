"""Counts which message found a row in which state, and placement's verdicts, by wrapping the functions that decide."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import cell_conductor.core.decide as of_cells
from bus.messages.books import Write, WriteVerdict
from placement_worker import admin_writes, handlers
from scheduler_worker import forgetting
from scheduler_worker.core.instances import rows
from scheduler_worker.core.instances.rows import PLACED
from scheduler_worker.requests import building, cell_events, instance_orders, move_needs, moving
from scheduler_worker.store_sql import Known, SchedulerTransaction
from tests.planted.replacing import around, replaced

See = Callable[[str, str], None]
Judged = Callable[[Sequence[Write], Sequence[WriteVerdict]], None]
# The kinds of pairs that are counted.
CELL_PAIR, REQUEST_PAIR, VERDICT, RESHAPE = "in a cell", "of a request", "verdict", "reshape of a host"


@contextmanager
def watched_decisions(see: See, judged: Judged, answered: Callable[[object, object], None]) -> Iterator[None]:
    """`see` receives the kind and a pair of state and message; `judged` receives administrators' writes with their
    verdicts, and `answered` each claim and swap with its verdict.
    """
    watches: list[tuple[Any, str, Callable[..., Any]]] = [
        *(
            (admin_writes, name, partial(_written, judged))
            for name in ("decide_provider_writes", "decide_allocations", "decide_names")
        ),
        (admin_writes, "decide_reshape", partial(_reshaped, judged)),
        (handlers, "decide_host_reshape", partial(_host_reshaped, see)),
        (of_cells, "_apply", partial(_in_a_cell, see)),
        (handlers, "_claim_answered", partial(_judgement, see, answered)),
        *((building, "rows_or_rejection", partial(_asked, see)) for _ in range(2)),
        *(
            (owner, name, partial(_of_a_request, see, event))
            for owner, name, event in (
                (instance_orders, "after_delete", "DeleteInstance"),
                (cell_events, "heard", ""),
                (instance_orders, "rebuilt", "RebuildInstance"),
                (move_needs, "problem_with", "MoveInstance"),
                (moving, "problem_with", "MoveInstance"),
                (instance_orders, "move_ended", "EndMove"),
                (rows, "placed", "a host was found"),
                (rows, "failed", "no host was found"),
                (building, "failed", "no host was found"),
                (forgetting, "overdue", "the deadline"),
            )
        ),
        (SchedulerTransaction, "decide", partial(_decided, see)),
        (SchedulerTransaction, "apply_events", partial(_applied, see)),
    ]
    with ExitStack() as stack:
        for owner, name, by in watches:
            stack.enter_context(replaced(owner, name, around(by)))
        yield


def _written(judged: Judged, real: Any, stored: Any, writes: Any, *others: Any) -> Any:
    decision = real(stored, writes, *others)
    judged(writes, decision.verdicts)
    return decision


def _reshaped(judged: Judged, real: Any, ledger: Any, forest: Any, reshape: Any, *others: Any) -> Any:
    decision = real(ledger, forest, reshape, *others)
    judged((reshape,), (decision.verdict,))
    return decision


def _host_reshaped(see: See, real: Any, ledger: Any, forest: Any, sent: Any, *others: Any) -> Any:
    decision = real(ledger, forest, sent, *others)
    see(RESHAPE, type(decision.verdict).__name__)
    return decision


async def _decided(see: See, real: Any, self: Any, rows: Any) -> Any:
    """Count the rows that another worker had decided already when this worker wrote the host that it found for them."""
    others = await real(self, rows)
    for row in rows:
        if row.id in others:
            found = "a host was found" if row.told.state == PLACED else "no host was found"
            see(REQUEST_PAIR, f"{others[row.id].told.state} / {found}")
    return others


async def _applied(see: See, real: Any, self: Any, events: Any) -> Any:
    """Count the events of cells that one statement applies to all placed rows of a batch."""
    rows = await self.lock([event.instance.id for event in events])
    for event in events:
        row = rows.get(event.instance.id)
        if row is not None and row.told.state == PLACED and row.told.sequence < event.instance.sequence:
            see(REQUEST_PAIR, f"{PLACED} / {type(event).__name__}")
    return await real(self, events)


def _in_a_cell(see: See, real: Any, turn: Any, each: Any) -> Any:
    see(CELL_PAIR, f"{turn.row.state} / {type(each).__name__}")
    return real(turn, each)


def _judgement(
    see: See, answered: Callable[[object, object], None], real: Any, ask: Any, judgement: Any, *others: Any
) -> Any:
    see(VERDICT, type(judgement).__name__)
    answered(ask.message, judgement)
    return real(ask, judgement, *others)


def _asked(see: See, real: Any, request: Any, acceptance: Any) -> Any:
    for row in acceptance.rows if isinstance(acceptance, Known) else ():
        see(REQUEST_PAIR, f"{row.told.state} / BuildInstance")
    return real(request, acceptance)


def _of_a_request(see: See, event: str, real: Any, row: Any, *others: Any, **named: Any) -> Any:
    state = row.told.state if hasattr(row, "told") else "unknown"
    see(REQUEST_PAIR, f"{state} / {event or type(others[0]).__name__}")
    return real(row, *others, **named)
