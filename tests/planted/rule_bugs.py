"""Planted bugs in single conditions of the rules of placement, conductors and schedulers: each is left out, or changed."""

from contextlib import AbstractContextManager

from cell_conductor.core import decide
from cell_conductor.core.transition import Transition
from placement_worker.core import claims, reports, swaps
from scheduler_worker.core.instances import lifecycle
from tests.planted.replacing import rewritten


def way_back_judged() -> AbstractContextManager[None]:
    """The way back of a move is judged like any swap, so it may be refused."""
    return rewritten(swaps, "_judge", "if order.returns is not None else None", "if False else None")


def ended_attempt_claims() -> AbstractContextManager[None]:
    """A repeated claim of an attempt that has ended is granted."""
    return rewritten(claims, "_claim", "elif order.attempt == consumer.row.attempt:", "elif False:")


def repeated_report_accepted() -> AbstractContextManager[None]:
    """A report is accepted whatever number the last one of its epoch had."""
    return rewritten(
        reports,
        "_outdated",
        "is_repeated = report.epoch == tree.epoch and 0 < report.sequence <= tree.sequence",
        "is_repeated = False",
    )


def answered_orders_kept() -> AbstractContextManager[None]:
    """An order that was answered stays on the row, and is sent again."""
    return rewritten(
        Transition,
        "outbox_without",
        "if not (isinstance(each.message, orders) and each.message.attempt == attempt)",
        "if True",
    )


def no_reminder() -> AbstractContextManager[None]:
    """A host that has not cleaned up is not told again."""
    return rewritten(decide, "_on_due", "if row.remind_at is not None and row.remind_at <= now:", "if False:")


def delete_forgotten_by_its_request() -> AbstractContextManager[None]:
    """A request whose instance was deleted before it came builds the instance."""
    return rewritten(lifecycle, "adopted", "if unseen.told.project not in", "if unseen.told.project in")
