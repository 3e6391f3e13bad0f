"""Counts which message found a row in which state, and placement's verdicts, by wrapping the functions that decide."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import cell_conductor.core.decide as of_cells
import placement_worker.handlers as of_placement
from bus.messages.administration import Write, WriteVerdict
from placement_worker import admin_writes, handlers
from scheduler_worker import forgetting
from scheduler_worker.core.instances import rows
from scheduler_worker.core.instances.rows import PLACED
from scheduler_worker.requests import building, cell_events, instance_orders, move_needs, moving
from scheduler_worker.store_sql import Known, SchedulerTransaction
from tests.planted.replacing import replaced

See = Callable[[str, str], None]
Judged = Callable[[Sequence[Write], Sequence[WriteVerdict]], None]
# The kinds of pairs that are counted.
CELL_PAIR, REQUEST_PAIR, VERDICT, RESHAPE = "in a cell", "of a request", "verdict", "reshape of a host"


@contextmanager
def watched_decisions(see: See, judged: Judged, answered: Callable[[object, object], None]) -> Iterator[None]:
    """`see` receives the kind and a pair of state and message; `judged` receives administrators' writes with their
    verdicts, and `answered` each claim and swap with its verdict.
    """
    with ExitStack() as stack:
        for name in ("decide_provider_writes", "decide_allocations", "decide_names"):
            stack.enter_context(replaced(admin_writes, name, lambda real: _written(real, judged)))
        stack.enter_context(replaced(admin_writes, "decide_reshape", lambda real: _reshaped(real, judged)))
        stack.enter_context(replaced(handlers, "judge_reshape", lambda real: _host_reshaped(real, see)))
        stack.enter_context(replaced(of_cells, "_apply", lambda real: _in_a_cell(real, see)))
        stack.enter_context(
            replaced(of_placement, "_claim_answered", lambda real: _judgement(real, see, answered))
        )
        for owner in (building, building):
            stack.enter_context(replaced(owner, "rows_or_rejection", lambda real: _asked(real, see)))
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
        ):
            stack.enter_context(replaced(owner, name, _of_a_request(see, event)))
        stack.enter_context(replaced(SchedulerTransaction, "decide", lambda real: _decided(real, see)))
        stack.enter_context(replaced(SchedulerTransaction, "apply_events", lambda real: _applied(real, see)))
        yield


def _written(real: Callable[..., Any], judged: Callable[..., None]) -> Callable[..., Any]:
    def decide(stored: Any, writes: Any, *others: Any) -> Any:
        decision = real(stored, writes, *others)
        judged(writes, decision.verdicts)
        return decision

    return decide


def _reshaped(real: Callable[..., Any], judged: Judged) -> Callable[..., Any]:
    def decide(ledger: Any, forest: Any, reshape: Any, *others: Any) -> Any:
        decision = real(ledger, forest, reshape, *others)
        judged((reshape,), (decision.verdict,))
        return decision

    return decide


def _host_reshaped(real: Callable[..., Any], see: See) -> Callable[..., Any]:
    def judge(ledger: Any, forest: Any, sent: Any, *others: Any) -> Any:
        verdict = real(ledger, forest, sent, *others)
        see(RESHAPE, type(verdict).__name__)
        return verdict

    return judge


def _decided(real: Callable[..., Any], see: See) -> Callable[..., Any]:
    """Count the rows that another worker had decided already when this worker wrote the host that it found for them."""

    async def decide(self: Any, rows: Any) -> Any:
        others = await real(self, rows)
        for row in rows:
            if row.id in others:
                found = "a host was found" if row.told.state == PLACED else "no host was found"
                see(REQUEST_PAIR, f"{others[row.id].told.state} / {found}")
        return others

    return decide


def _applied(real: Callable[..., Any], see: See) -> Callable[..., Any]:
    """Count the events of cells that one statement applies to all placed rows of a batch."""

    async def apply_events(self: Any, events: Any) -> Any:
        rows = await self.lock([event.instance.id for event in events])
        for event in events:
            row = rows.get(event.instance.id)
            if row is not None and row.told.state == PLACED and row.told.sequence < event.instance.sequence:
                see(REQUEST_PAIR, f"{PLACED} / {type(event).__name__}")
        return await real(self, events)

    return apply_events


def _in_a_cell(real: Callable[..., Any], see: See) -> Callable[..., Any]:
    def judge(turn: Any, each: Any) -> Any:
        see(CELL_PAIR, f"{turn.row.state} / {type(each).__name__}")
        return real(turn, each)

    return judge


def _judgement(
    real: Callable[..., Any], see: See, answered: Callable[[object, object], None]
) -> Callable[..., Any]:
    def claim_answered(ask: Any, judgement: Any, *others: Any) -> Any:
        see(VERDICT, type(judgement).__name__)
        answered(ask.message, judgement)
        return real(ask, judgement, *others)

    return claim_answered


def _asked(real: Callable[..., Any], see: See) -> Callable[..., Any]:
    def judged(request: Any, acceptance: Any) -> Any:
        for row in acceptance.rows if isinstance(acceptance, Known) else ():
            see(REQUEST_PAIR, f"{row.told.state} / BuildInstance")
        return real(request, acceptance)

    return judged


def _of_a_request(see: See, event: str) -> Callable[[Any], Any]:
    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(row: Any, *others: Any, **named: Any) -> Any:
            state = row.told.state if hasattr(row, "told") else "unknown"
            see(REQUEST_PAIR, f"{state} / {event or type(others[0]).__name__}")
            return real(row, *others, **named)

        return step

    return watched
