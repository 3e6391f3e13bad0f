"""Messages about whole cells: whether their conductors are alive, what the API level knows of them, and what they have."""

from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from bus.chunks import chunks
from bus.message import CellMessage, Message, Project, ProjectMessage, StrictMessage
from bus.messages.build import CellHeard, CellLife, InstanceId, InstanceState
from bus.messages.placement import Label, Moment, Natural, Value

# A message and its envelope must fit into a parcel.
VALUES_BYTES_MAX = 248 * 1024

# At most so many instances may be asked for, or be on a page.
Page = Annotated[int, Meta(ge=1, le=200)]
Asked = Annotated[tuple[InstanceId, ...], Meta(max_length=200)]


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


class AskLive(ProjectMessage, frozen=True, tag="live.query"):
    """Asks what a cell itself has: these instances, or a page of all instances of the cell.

    A scheduler asks a conductor of the cell, and passes on what it tells. Pages are in the order of ids, and begin
    after the id `after`.

    With `project`, only instances of that project. Without it, of all projects, which needs the right to all of them.
    """

    in_cell: Label
    instances: Asked = ()
    after: InstanceId | None = None
    limit: Page = 200


class TellLive(CellMessage, frozen=True, tag="live.tell"):
    """Order to the conductors of this cell: publish what a `live.query` asks for, as `live.told`.

    `question` identifies the `live.query` in both messages. A conductor obeys the order soon, or not at all.
    """

    question: Label
    asked_at: Moment
    instances: Asked = ()
    after: InstanceId | None = None
    limit: Page = 200
    project: Project = ""


class LiveTold(CellMessage, frozen=True, tag="live.told"):
    """A page of the instances that a cell has, published for the scheduler that asked by `live.tell`.

    It is an event, since cells have no right to send messages to schedulers.
    """

    question: Label
    instances: tuple[InstanceState, ...] = ()
    next: InstanceId | None = None


class LiveFound(Message, frozen=True, tag="live.found"):
    """A page of the instances that a cell itself has, with the cell's own states.

    These are `building`, `swapping`, `active`, `rebuilding`, `moving`, `moved`, `broken`, `error`, `deleting` and
    `deleted`. `next` is where the next page begins, null on the last page. A page that is not the last may have fewer
    instances than were asked for, or none. `silent` says why the cell has not answered; empty if it has.
    """

    cell: Label
    instances: tuple[InstanceState, ...] = ()
    next: InstanceId | None = None
    silent: str = ""


T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def page_that_fits(values: Sequence[T], bytes_max: int = VALUES_BYTES_MAX) -> tuple[T, ...]:
    """The first of these values, as many as one message has room for, and at least one: a single state may be large."""
    return tuple(values[next(chunks([len(_encode(each)) + 1 for each in values], bytes_max))])
