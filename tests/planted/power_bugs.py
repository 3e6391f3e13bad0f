"""Planted bugs in orders to stop and to start instances."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from cell_conductor.core import moving
from tests.planted.replacing import replaced


def order_to_stop_lost() -> AbstractContextManager[None]:
    """A cell says that an instance is stopped, and has not ordered it."""

    def planted(real: Any) -> Any:
        def stop(transition: Any) -> None:
            if transition.move.kind != "stop":
                real(transition)
                return
            done = structs.replace(transition.move, outcome="done")
            transition.end_as("stopped", moving=None, move=done)

        return stop

    return replaced(moving, "stop", planted)


def stopped_instance_runs_where_it_arrives() -> AbstractContextManager[None]:
    """The destination of a stopped instance is told to run it."""

    def planted(real: Any) -> Any:
        return lambda **fields: real(**{**fields, "stopped": False})

    return replaced(moving, "ReceiveInstance", planted)
