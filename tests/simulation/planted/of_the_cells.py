"""A conductor's rules and rows, planted."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from bus.messages.build import BuildInstance
from cell_conductor import store_memory
from cell_conductor.core import decide
from cell_conductor.core.turn import Turn
from tests.simulation.replacing import replaced


def redelivery_handled_anew() -> AbstractContextManager[None]:
    """The order to place an instance is obeyed however often it comes."""

    def by(real: Any) -> Any:
        def on_place(turn: Any, order: Any) -> None:
            turn.become(order=None)
            real(turn, order)

        return on_place

    return replaced(decide, "_on_place", by)


def publish_upward() -> AbstractContextManager[None]:
    """Who has no alternate left asks the API level for another host, as Nova's cells once did."""

    def by(real: Any) -> Any:
        def end_in_error(turn: Any, reason: str) -> None:
            real(turn, reason)
            turn.say(BuildInstance(request_id=turn.row.request_id, flavor=turn.row.order.flavor))

        return end_in_error

    return replaced(Turn, "end_in_error", by)


def delete_overtakes_place() -> AbstractContextManager[None]:
    """What the cell has never heard of is gone already: nothing is kept of its removal."""

    def by(real: Any) -> Any:
        def on_remove(turn: Any) -> None:
            if turn.row.state == "unknown":
                turn.end_deleted()
                turn.is_over = True
            else:
                real(turn)

        return on_remove

    return replaced(decide, "_on_remove", by)


def late_success_accepted() -> AbstractContextManager[None]:
    """Whoever says that it is built is believed, whichever attempt it speaks of."""
    return replaced(
        decide, "_is_current", lambda _real: lambda row, _word: row.state in ("building", "active")
    )


def event_dropped_when_its_row_is_read() -> AbstractContextManager[None]:
    """What was saved with the row and not confirmed is not read with it, and the next write forgets it."""

    def by(real: Any) -> Any:
        async def load(self: Any, instances: Any) -> Any:
            rows = await real(self, instances)
            return {id_: structs.replace(row, outbox=()) for id_, row in rows.items()}

        return load

    return replaced(store_memory._Transaction, "load", by)  # noqa: SLF001 - it is this piece that is replaced


def lease_without_end() -> AbstractContextManager[None]:
    """Who asks placement for a swap has it for ever: if it dies over the question, nobody asks again."""

    def by(real: Any) -> Any:
        def next_swap(turn: Any) -> Any:
            swap = real(turn)
            turn.become(state_ends_at=None)
            return swap

        return next_swap

    return replaced(decide, "next_swap", by)


def silent_host_taken_for_failed() -> AbstractContextManager[None]:
    """A host that said nothing in time is taken for one that has cleaned up."""

    def by(real: Any) -> Any:
        return lambda turn, reason, *, was_silent: real(turn, reason, was_silent=was_silent and False)

    return replaced(decide, "leave_host", by)
