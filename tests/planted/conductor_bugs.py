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
from tests.planted.replacing import replaced, rewritten


def redelivered_order_carried_out_again() -> AbstractContextManager[None]:
    """A conductor obeys the order to place an instance each time it arrives."""

    def planted(real: Any) -> Any:
        def on_place(transition: Any, order: Any) -> None:
            transition.change(order=None)
            real(transition, order)

        return on_place

    return _other_step(planted, PlaceInCell)


def conductor_calls_up() -> AbstractContextManager[None]:
    """A conductor without alternates asks the API level for another host, as Nova's cells once did."""

    def planted(real: Any) -> Any:
        def end_in_error(transition: Any, reason: str) -> None:
            real(transition, reason)
            transition.send(
                BuildInstance(request_id=transition.row.request_id, flavor=transition.row.order.flavor)
            )

        return end_in_error

    return replaced(Transition, "end_in_error", planted)


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


def late_success_accepted() -> AbstractContextManager[None]:
    """The success of any attempt is believed, also of an earlier one."""
    return rewritten(
        decide,
        "_on_spawned",
        "row.is_current(spawned.attempt, spawned.host)",
        'row.state in ("building", "active")',
    )


def unconfirmed_messages_not_loaded() -> AbstractContextManager[None]:
    """Unconfirmed messages of a row are not loaded with it, so the next write drops them."""

    def planted(real: Any) -> Any:
        async def load(self: Any, instances: Any) -> Any:
            rows = await real(self, instances)
            return {id_: structs.replace(row, outbox=()) for id_, row in rows.items()}

        return load

    return replaced(SqlConductorTransaction, "load", planted)


def lease_without_end() -> AbstractContextManager[None]:
    """The lease of a swap has no end: if its conductor dies over the question, no other asks again."""

    def planted(real: Any) -> Any:
        def next_swap(transition: Any) -> Any:
            swap = real(transition)
            transition.change(state_ends_at=None)
            return swap

        return next_swap

    return replaced(decide, "next_swap", planted)


def silent_host_treated_as_failed() -> AbstractContextManager[None]:
    """A host that did not answer in time is treated as one that has cleaned up."""

    def planted(real: Any) -> Any:
        return lambda transition, reason, *, was_silent: real(
            transition, reason, was_silent=was_silent and False
        )

    return replaced(decide, "leave_host", planted)


def failed_host_tried_again() -> AbstractContextManager[None]:
    """A host where a build has failed gets another try before the alternates, since it may go well the next time."""

    def planted(real: Any) -> Any:
        def leave_host(transition: Any, reason: str, *, was_silent: bool) -> None:
            if not was_silent:
                transition.change(alternates=(transition.row.host, *transition.row.alternates))
            real(transition, reason, was_silent=was_silent)

        return leave_host

    return replaced(decide, "leave_host", planted)


def _other_step(by: Callable[[Any], Any], *orders: type[Message]) -> AbstractContextManager[None]:
    """These orders get another step: `by` receives the real one."""
    return replaced(decide, "_STEPS", lambda real: {**real, **{order: by(real[order]) for order in orders}})
