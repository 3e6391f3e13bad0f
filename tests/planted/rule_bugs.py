"""Planted bugs in single conditions of the rules of placement, conductors and schedulers: each is left out, or changed."""

from contextlib import AbstractContextManager

from cell_conductor.core import decide
from cell_conductor.core.transition import Transition
from placement_worker.core import claims, reports, swaps
from scheduler_worker.core.instances import lifecycle
from tests.planted.replacing import ANY_CLOUD, BARE_METAL, planted_as, rewritten


@planted_as("the way back judged like any swap", world="moves")
def way_back_judged() -> AbstractContextManager[None]:
    """The way back of a move is judged like any swap, so it may be refused."""
    return rewritten(swaps, "_judge", "if order.returns is not None else None", "if False else None")


@planted_as("an ended attempt claims again", world=ANY_CLOUD)
def ended_attempt_claims() -> AbstractContextManager[None]:
    """A repeated claim of an attempt that has ended is granted."""
    return rewritten(claims, "_claim", "elif order.attempt == consumer.row.attempt:", "elif False:")


@planted_as("a repeated report accepted", world=BARE_METAL)
def repeated_report_accepted() -> AbstractContextManager[None]:
    """A report is accepted whatever number the last one of its epoch had."""
    return rewritten(
        reports,
        "_outdated",
        "is_repeated = report.epoch == tree.epoch and 0 < report.sequence <= tree.sequence",
        "is_repeated = False",
    )


@planted_as("an answered order kept", world=ANY_CLOUD)
def answered_orders_kept() -> AbstractContextManager[None]:
    """An order that was answered stays on the row, and is sent again."""
    return rewritten(
        Transition,
        "outbox_without",
        "if not (isinstance(each.message, orders) and each.message.attempt == attempt)",
        "if True",
    )


@planted_as("the cleanups of a silent host ordered once", world=ANY_CLOUD)
def no_reminder() -> AbstractContextManager[None]:
    """A host that has not cleaned up is not told again."""
    return rewritten(decide, "_on_due", "if row.remind_at is not None and row.remind_at <= now:", "if False:")


@planted_as("a delete forgotten by its request", world=ANY_CLOUD)
def delete_forgotten_by_its_request() -> AbstractContextManager[None]:
    """A request whose instance was deleted before it came builds the instance."""
    return rewritten(lifecycle, "adopted", "if unseen.told.project not in", "if unseen.told.project in")
