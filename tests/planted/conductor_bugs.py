"""Planted bugs in a conductor's rules and rows."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildInstance
from bus.messages.cell import GiveBackInCell, PlaceInCell, RemoveFromCell
from cell_conductor.core import decide
from cell_conductor.core.transition import Transition
from cell_conductor.store_sql import SqlConductorTransaction
from tests.planted.replacing import ANY_CLOUD, planted, planted_as, planted_by, replaced, rewritten


@planted_as("a redelivered order carried out again", world=ANY_CLOUD)
def redelivered_order_carried_out_again() -> AbstractContextManager[None]:
    """A conductor obeys the order to place an instance each time it arrives."""

    def planted(real: Any) -> Any:
        def on_place(transition: Any, order: Any) -> None:
            transition.change(order=None)
            real(transition, order)

        return on_place

    return _other_step(planted, PlaceInCell)


# A conductor without alternates asks the API level for another host, as Nova's cells once did.
@planted("a conductor calls up", Transition, "end_in_error", world=ANY_CLOUD)
def conductor_calls_up(real: Any, transition: Any, reason: str) -> None:
    real(transition, reason)
    transition.send(BuildInstance(request_id=transition.row.request_id, flavor=transition.row.order.flavor))


@planted_as("a removal forgotten before its placement arrives", world=ANY_CLOUD)
def removal_forgotten() -> AbstractContextManager[None]:
    """A removal of an instance that the cell does not know leaves no row, so a later order to place it is obeyed."""

    def planted(real: Any) -> Any:
        def on_remove(transition: Any, order: Any) -> None:
            if transition.row.state == "unknown":
                transition.end_deleted()
                transition.is_over = True
            else:
                real(transition, order)

        return on_remove

    return _other_step(planted, RemoveFromCell, GiveBackInCell)


@planted_as("late success of attempt 1 accepted", world=ANY_CLOUD)
def late_success_accepted() -> AbstractContextManager[None]:
    """The success of any attempt is believed, also of an earlier one."""
    return rewritten(
        decide,
        "_on_spawned",
        "row.is_current(spawned.attempt, spawned.host)",
        'row.state in ("building", "active")',
    )


# Unconfirmed messages of a row are not loaded with it, so the next write drops them.
@planted("unconfirmed messages not loaded with their row", SqlConductorTransaction, "load", world=ANY_CLOUD)
async def unconfirmed_messages_not_loaded(real: Any, self: Any, instances: Any) -> Any:
    rows = await real(self, instances)
    return {id_: structs.replace(row, outbox=()) for id_, row in rows.items()}


# The lease of a swap has no end: if its conductor dies over the question, no other asks again.
@planted("a lease without end", decide, "next_swap", world=ANY_CLOUD)
def lease_without_end(real: Any, transition: Any) -> Any:
    swap = real(transition)
    transition.change(state_ends_at=None)
    return swap


# A host that did not answer in time is treated as one that has cleaned up.
@planted_by("a silent host treated as failed", decide, "leave_host", world=ANY_CLOUD)
def silent_host_treated_as_failed(real: Any) -> Any:
    return lambda transition, reason, *, was_silent: real(transition, reason, was_silent=was_silent and False)


# A host where a build has failed gets another try before the alternates, since it may go well the next time.
@planted("a host that has failed tried again", decide, "leave_host", world="demands")
def failed_host_tried_again(real: Any, transition: Any, reason: str, *, was_silent: bool) -> None:
    if not was_silent:
        transition.change(alternates=(transition.row.host, *transition.row.alternates))
    real(transition, reason, was_silent=was_silent)


def _other_step(by: Callable[[Any], Any], *orders: type[Message]) -> AbstractContextManager[None]:
    """These orders get another step: `by` receives the real one."""
    return replaced(decide, "_STEPS", lambda real: {**real, **{order: by(real[order]) for order in orders}})
