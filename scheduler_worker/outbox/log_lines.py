"""The lines of a scheduler's log: requests, and decisions on instances."""

from bus.logs import InstanceLine
from bus.messages.build import BuildInstance, BuildRejected
from bus.workers.handling import Received
from scheduler_worker.core.instances.outcomes import in_words
from scheduler_worker.core.instances.rows import InstanceRow


def line_of(row: InstanceRow, trace: str) -> InstanceLine:
    """A decision of the API level: the state of the row that it wrote, or the move that it ordered."""
    told, order = row.told, row.order
    if order is not None and told.state == "placed":
        return InstanceLine(
            "placed",
            told.id,
            told.request_id,
            order.chosen.name,
            told.cell,
            trace,
            told.project,
            told.name,
            row.by,
        )
    reason = told.reason
    if told.no_valid_host is not None:
        reason = f"{reason}: {in_words(told.no_valid_host)}"
    move = told.move
    if move is not None and told.state == "moving":
        host = f"{move.source} to {move.destination or 'the best host'}"
        return InstanceLine(f"{move.kind} ordered", told.id, move.request_id, host, told.cell, trace)
    return InstanceLine(
        told.state, told.id, told.request_id, told.host, told.cell, trace, reason=reason, by=row.by
    )


def request_line(ask: Received[BuildInstance], count: int) -> InstanceLine:
    build = ask.message
    return InstanceLine(
        "accepted",
        None,
        build.request_id,
        trace=ask.trace,
        project=build.project,
        name=build.name,
        by=ask.sender,
        count=str(count),
    )


def rejected_line(ask: Received[BuildInstance], why: BuildRejected) -> InstanceLine:
    return InstanceLine(
        "rejected",
        None,
        why.request_id,
        trace=ask.trace,
        project=ask.message.project,
        by=ask.sender,
        reason=f"{why.field} {why.value}: {why.reason}",
    )
