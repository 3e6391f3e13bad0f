"""Messages about whole cells: whether their conductors are alive, what the API level knows of them, and what they have."""

from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from bus.broker import chunks
from bus.message import AnswerMessage, CellMessage, Kind, Message, Route, StrictMessage
from bus.messages.build import CellHeard, CellLife
from engine.inventories import Integer, Label, Moment, Natural, ProviderId, ResourceClass, ShapeRoom, Value

# A message and its envelope must fit into a parcel.
VALUES_BYTES_MAX = 248 * 1024
# A heartbeat names so many silent hosts.
SILENT_TOLD_MAX = 200


class ConductorAlive(CellMessage, frozen=True, tag="conductor.beat"):
    """The heartbeat of a conductor. `trouble` says why it can do no work now, such as a database that does not answer. `silent` are hosts
    that it has heard, and does not hear any more: of more than there is room for, those that fell silent last.

    A cell is down if for a while no heartbeat comes from a conductor that can work.
    """

    ROUTE = Route(Kind.EVENT, by=("conductor",), heard_by=("scheduler",))

    conductor: Label
    trouble: Annotated[str, Meta(max_length=1024)] = ""
    silent: Annotated[tuple[ProviderId, ...], Meta(max_length=SILENT_TOLD_MAX)] = ()


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

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="cell.found", by=("admin", "keeper"))

    name: Annotated[Label, Meta(description="the cell's name: only this cell")] = ""


class CellsFound(AnswerMessage, frozen=True, tag="cell.found"):
    """The cells in the order of their names."""

    cells: tuple[CellState, ...]


T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def page_that_fits(values: Sequence[T], bytes_max: int = VALUES_BYTES_MAX) -> tuple[T, ...]:
    """The first of these values, as many as one message has room for, and at least one: a single state may be large."""
    return tuple(values[next(chunks([len(_encode(each)) + 1 for each in values], bytes_max))])


# Messages about the whole cloud at a glance: its workers, cells, instances, hosts and room.


# Values of one worker's counters: of its queues, and of what else it counts.
COUNTED_MAX = 256
# A count since a worker's start, or over all hosts of a cell, outgrows 32 bits.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Counted = Annotated[dict[Label, Count], Meta(max_length=COUNTED_MAX)]
Duration = Annotated[float, Meta(ge=0, le=1e9)]
STAGES_MAX, BUCKETS_MAX = 32, 64
StageCounts = Annotated[
    dict[Label, Annotated[tuple[Count, ...], Meta(max_length=BUCKETS_MAX)]], Meta(max_length=STAGES_MAX)
]
# So many equal parts make a whole host.
FILL_PARTS = 10


class WorkerAlive(CellMessage, frozen=True, tag="worker.beat"):
    """The heartbeat of a worker's process. `cell` is `cell0` for a worker of the API level.

    `awaits` says what it needs to be ready, empty if it is ready; `fails` names its parts that fail now. `handled` are the
    messages that it has handled since its start, by queue; `buried` those that became dead letters; `counts` its other
    counters, such as `claims.does_not_fit`. `stages` says for each stage of boots that it measures how many of these took how
    long: one number for each bucket of the histograms of metrics, without empty ones at the end; an overview leaves them out.
    `has_ended`: it ends as it should, and sends no further heartbeat.
    """

    ROUTE = Route(
        Kind.EVENT,
        by=("scheduler", "placement", "conductor", "compute", "ironic", "keeper"),
        heard_by=("scheduler",),
    )

    worker: Label
    role: Label
    release: Label
    started_at: Moment
    # By the worker's own clock: rates between two heartbeats go by it.
    told_at: Moment
    awaits: Annotated[str, Meta(max_length=1024)] = ""
    fails: Annotated[str, Meta(max_length=1024)] = ""
    handled: Counted = {}
    counts: Counted = {}
    stages: StageCounts = {}
    buried: Count = 0
    has_ended: bool = False


class RowFailed(Message, frozen=True, tag="row.failed"):
    """A `part` of a worker has met a bug at this `row`, and went on with its other rows. It stands in the queue of the worker's own
    role, where another process tries the row alone. If that one meets a bug, too, this is a dead letter.
    """

    ROUTE = Route(Kind.EVENT, by=("scheduler", "placement", "conductor", "compute", "ironic"))

    part: Label
    row: Label

    def about(self) -> tuple[int, ...]:
        return ()


class WorkerHeard(Value, frozen=True):
    """A worker, its last heartbeat, and when that came. It is `down` if that is long ago."""

    beat: WorkerAlive
    heard_at: Moment
    life: CellLife


class InstanceCount(Value, frozen=True):
    """How many instances of a cell are in a state. `cell` is empty for those without one."""

    state: Label
    cell: Label
    count: Natural


class HostCount(Value, frozen=True):
    """How many hosts of a cell are in a state: `up`, `draining`, `silent`, `down` (by order), `dead`, `must clean up`."""

    state: Label
    cell: Label
    count: Natural
    kind: Label = ""


class ClassUse(Value, frozen=True):
    """How much the hosts and pools of a cell have of a resource class, and how much of it is used.

    `capacity` is what may be used: without what is reserved, and with overcommitment. What is used may exceed it, if
    capacity shrank.
    """

    resource_class: ResourceClass
    cell: Label
    used: Count
    capacity: Integer


class CellFill(Value, frozen=True):
    """How full the hosts of a cell are, each by its fullest class: how many are below a tenth, two tenths, and so on. The
    last number is of those that are full.
    """

    cell: Label
    hosts: Annotated[tuple[Natural, ...], Meta(max_length=FILL_PARTS + 1)]


# How full a host is is one of the digits, or FULL; a host that cannot be used has a letter for why.
FULL = "f"
TILES_PER_PAGE_MAX = 5000
# What each letter stands for, with the state that `HostCount` has.
TILE_STATES = {"s": "silent", "r": "draining", "d": "down", "x": "dead", "c": "must clean up"}
# Placement has no provider of the host.
WITHOUT_PROVIDER = "?"


class WaitsForRoom(Value, frozen=True):
    """What waits for room, instances and moves: how many, and since when the oldest does."""

    count: Natural = 0
    oldest: Moment | None = None


class Durations(Value, frozen=True):
    """How many boots went through a stage in the last `seconds`, and how long half of them and 99 of 100 took at most."""

    seconds: Duration
    count: Count = 0
    p50_s: Duration = 0.0
    p99_s: Duration = 0.0


class StageTimes(Value, frozen=True):
    """A stage of boots, over all workers: `accept`, `choose`, `claim`, `place`, `spawn`, or `boot` for the whole way."""

    stage: Label
    minute: Durations
    hour: Durations


class AskTiles(StrictMessage, frozen=True, tag="tiles.query"):
    """Asks for a page of the hosts of a cell, one letter each, in the order of their names: from the one after `skipped`
    hosts. With `named`, their names, too.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="tiles.found", by=("admin",))

    in_cell: Label
    skipped: Natural = 0
    named: bool = False


class Tiles(AnswerMessage, frozen=True, tag="tiles.found"):
    """One letter for each host. 0 to 9: it is up, and so many tenths of its fullest class are used; `f`: it is full. `s`: silent,
    `r`: draining, `d`: down by order, `x`: dead, `c`: it must clean up, `?`: placement does not have it.

    `hosts` is the number of hosts of the cell. A page has at most 5,000, or as many as fit with their names, if these
    were asked for.
    """

    in_cell: Label
    made_at: Moment
    tiles: Annotated[str, Meta(max_length=TILES_PER_PAGE_MAX)]
    skipped: Natural = 0
    hosts: Natural = 0
    names: Annotated[tuple[Label, ...], Meta(max_length=TILES_PER_PAGE_MAX)] = ()


class AskOverview(StrictMessage, frozen=True, tag="overview.query"):
    """Asks for an overview of the whole cloud.

    A scheduler keeps an overview for a while, longer if it was costly to make. With `once`, for one that does not ask again and
    again, it makes a new one sooner.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="overview.found", by=("admin",))

    once: bool = False


class Overview(AnswerMessage, frozen=True, tag="overview.found"):
    """The whole cloud, as one scheduler knew it at `made_at`. An overview may be some seconds old: it was `age_s` old when the
    scheduler answered, by its clock.

    `instances` counts those that are not deleted. `uses` counts hosts and what they share, `fill` only hosts, of those that
    placement and the schedulers know. `workers_left_out` had no room in the message. `moving` counts the moves that are under way, by their kind.
    `stages` are those that boots went through in the last hour, as far as the scheduler has run so long. `shapes` are those of the
    requests that this scheduler got, the most frequent first.
    """

    made_at: Moment
    scheduler: Label
    cells: tuple[CellState, ...] = ()
    workers: tuple[WorkerHeard, ...] = ()
    instances: tuple[InstanceCount, ...] = ()
    hosts: tuple[HostCount, ...] = ()
    uses: tuple[ClassUse, ...] = ()
    fill: tuple[CellFill, ...] = ()
    waiting: WaitsForRoom = WaitsForRoom()
    moving: dict[Label, Natural] = {}
    workers_left_out: Natural = 0
    stages: tuple[StageTimes, ...] = ()
    shapes: tuple[ShapeRoom, ...] = ()
    age_s: Duration = 0.0
