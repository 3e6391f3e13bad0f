"""The state of an instance as its cell tells a scheduler that asks."""

from msgspec import structs

from bus.messages.build import InstanceState
from cell_conductor.core.instance import Instance
from cell_conductor.core.transition import state_of

# The states in which no host has anything of the instance, or is only cleaning up.
_OVER = ("error", "deleted")


def live_state(row: Instance, cell: str) -> InstanceState:
    """The row as it is now: with the cell's own state, and the host of the attempt that is under way."""
    host = row.host.name if row.host and row.state not in _OVER else ""
    return structs.replace(state_of(row, cell, row.sequence), state=row.state, host=host)
