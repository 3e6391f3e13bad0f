"""The lines of a conductor's log: how instances of its cell ended, and which attempts failed."""

from collections.abc import Iterator, Sequence

from bus.logs import InstanceLine
from bus.messages.build import (
    AlternatesSpent,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceMoved,
    InstanceState,
)
from bus.workers.handling import Received
from cell_conductor.core.decide import CellMessage, DecidedMessage

_ENDINGS = frozenset((InstanceActive, InstanceMoved, InstanceFailed, InstanceDeleted, AlternatesSpent))


def endings(said: Sequence[DecidedMessage], received: Sequence[Received[CellMessage]]) -> list[InstanceLine]:
    """A line for each event that the cell tells the API level, and for each attempt that failed before it."""
    lines: list[InstanceLine] = []
    for each in said:
        if type(each.message) in _ENDINGS:
            trace = received[each.cause].trace if received else ""
            state: InstanceState = each.message.instance  # type: ignore[union-attr, assignment] # they are events
            if state.failures:
                lines += _failures(state, trace)
            reason = state.reason or (state.move.failure if state.move is not None else "")
            lines.append(
                InstanceLine(
                    state.state, state.id, state.request_id, state.host, state.cell, trace, reason=reason
                )
            )
    return lines


def _failures(state: InstanceState, trace: str) -> Iterator[InstanceLine]:
    for each in state.failures:
        yield InstanceLine(
            "attempt failed",
            state.id,
            state.request_id,
            each.host,
            state.cell,
            trace,
            attempt=str(each.attempt),
            reason=each.reason,
        )
