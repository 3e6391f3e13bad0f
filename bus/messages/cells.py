"""Messages about whole cells: whether their conductors are alive, what the API level knows of them, and what they have."""

from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from bus.chunks import chunks
from bus.message import CellMessage, Message, StrictMessage
from bus.messages.build import CellHeard, CellLife
from bus.messages.placement import Label, Moment, Natural, Value

# A message and its envelope must fit into a parcel.
VALUES_BYTES_MAX = 248 * 1024


class ConductorAlive(CellMessage, frozen=True, tag="conductor.beat"):
    """The heartbeat of a conductor. `trouble` says why it can do no work now, such as a database that does not answer.

    A cell is down if for a while no heartbeat comes from a conductor that can work.
    """

    conductor: Label
    trouble: Annotated[str, Meta(max_length=1024)] = ""


class ConductorHeard(Value, frozen=True):
    """A conductor, and the time of its last heartbeat. It is `up` if that is recent, and the conductor can work."""

    name: Label
    life: CellLife
    heard_at: Moment
    trouble: str = ""


class CellState(CellHeard, frozen=True, kw_only=True):
    """Everything that the API level knows of a cell.

    `waiting` counts the instances for which the cell has not answered an order yet: to build, to rebuild, to delete.
    """

    conductors: tuple[ConductorHeard, ...] = ()
    hosts: Natural = 0
    hosts_up: Natural = 0
    instances: Natural = 0
    waiting: Natural = 0


class AskCells(StrictMessage, frozen=True, tag="cell.query"):
    """Asks for all cells, or for the one called `name`."""

    name: Annotated[Label, Meta(description="the cell's name: only this cell")] = ""


class CellsFound(Message, frozen=True, tag="cell.found"):
    """The cells in the order of their names."""

    cells: tuple[CellState, ...]


T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def page_that_fits(values: Sequence[T], bytes_max: int = VALUES_BYTES_MAX) -> tuple[T, ...]:
    """The first of these values, as many as one message has room for, and at least one: a single state may be large."""
    return tuple(values[next(chunks([len(_encode(each)) + 1 for each in values], bytes_max))])
