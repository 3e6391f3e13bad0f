"""Planted bugs in orders to stop and to start instances."""

from typing import Any

from msgspec import structs

from cell_conductor.core import moving
from tests.planted.replacing import planted_by


# A cell says that an instance is stopped, and has not ordered it.
@planted_by("an order to stop is lost", moving, "stop", world="power")
def order_to_stop_lost(real: Any) -> Any:
    def stop(transition: Any) -> None:
        if transition.move.kind != "stop":
            real(transition)
            return
        done = structs.replace(transition.move, outcome="done")
        transition.end_as("stopped", moving=None, move=done)

    return stop


# The destination of a stopped instance is told to run it.
@planted_by("a stopped instance runs where it arrives", moving, "ReceiveInstance", world="power")
def stopped_instance_runs_where_it_arrives(real: Any) -> Any:
    return lambda **fields: real(**{**fields, "stopped": False})
