"""What goes into the scheduler's store and comes out of it: questions, answers, and rows."""

from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

from msgspec import Struct

from bus.messages.build import InstanceOrder
from bus.messages.catalog import NamedImage
from bus.messages.moves import MovePlace
from bus.workers.handlers import OutboxKey
from engine.flavors import DeviceProfile, Flavor, InstanceId, RequestId
from engine.inventories import GroupId, ProviderId, ServerGroup
from scheduler_worker.core.instances.rows import InstanceRow, Turn


class NewRequest(Struct, frozen=True):
    """A request to be accepted, with the rows of its instances. A row may already have its host, if one was chosen
    before the request was written. The digest tells the request from another one with the same id.
    """

    id: RequestId
    digest: bytes
    rows: tuple[InstanceRow, ...]


class Known(Struct, frozen=True):
    """The request is accepted: it was written just now, or was written before with the same content. These are the rows
    of its instances, locked.
    """

    rows: tuple[InstanceRow, ...]


class OtherContent(Struct, frozen=True):
    """The request is refused: its id belongs to a request with other content."""


class InstancesTaken(Struct, frozen=True):
    """The request is refused: its instances belong to another request."""

    instances: tuple[InstanceId, ...]


Acceptance = Known | OtherContent | InstancesTaken


class AdoptedRow(Struct, frozen=True):
    """The row of an instance that is taken over, with its number in its request. The digest is that of what was ordered."""

    row: InstanceRow
    number: int
    digest: bytes


# How many rows of instances are read for one question, whatever the table has: about as many as take 20 ms.
READ_MAX = 10_000


class InstanceQuery(Struct, frozen=True):
    """Which instances to read: those with the ids in `instances`, or those of the request `request_id`, or all.

    They come in the `order` of `AskInstances`, beginning after the instance `after`. With `project` or `state`, only instances of
    that project or in that state are read. With `host`, only instances in one of the states `LIVING`, on the host of
    this name: in the cell before it if there is one (`c1/h1`), otherwise in any cell. With `living`, deleted instances are
    left out; so they are in the order by hosts. The prefixes are the first digits of ids, `part` is a part of names. With `died`, only those that have stopped by themselves and are stopped. No more than
    `read_max` rows are read.
    """

    instances: tuple[InstanceId, ...] = ()
    request_id: RequestId | None = None
    after: InstanceId | None = None
    state: str = ""
    project: str = ""
    host: str = ""
    name: str = ""
    id_prefix: str = ""
    request_prefix: str = ""
    living: bool = False
    limit: int = 100
    cell: str = ""
    part: str = ""
    flavor: str = ""
    image: str = ""
    died: bool = False
    order: InstanceOrder = "id"
    backwards: bool = False
    read_max: int = READ_MAX


class InstancePage(Struct, frozen=True):
    """The instances of a page. `next` is the id behind which the next page begins, be this one full or not; None on the last page."""

    rows: tuple[InstanceRow, ...]
    next: InstanceId | None


class HostQuery(Struct, frozen=True):
    """Which hosts to read: those with these ids, with this name, with names that sort after `after`. A field that is None does
    not restrict.
    """

    ids: tuple[ProviderId, ...] | None = None
    name: str | None = None
    after: str = ""
    limit: int | None = None


# When a host's row was written, and its sequence. A row is not written again with the same two.
HostVersion = tuple[datetime, int]


class KnownGroup(Struct, frozen=True):
    """A server group as it was created."""

    definition: ServerGroup
    name: str = ""
    project: str = ""


class GroupQuery(Struct, frozen=True):
    """Which server groups to read: those with these ids, or all. They come in the order of their ids, beginning after
    the id `after`. With `project`, only groups of that project are read. The prefix is the first digits of ids.
    """

    ids: tuple[GroupId, ...] | None = None
    after: GroupId | None = None
    project: str = ""
    name: str = ""
    id_prefix: str = ""
    limit: int | None = None


# What is stored under names, for requests to name.
Named = TypeVar("Named", Flavor, NamedImage, DeviceProfile)


class NameQuery(Struct, frozen=True):
    """Which stored names to read: these, or all. They come in their order, beginning after `after`."""

    names: tuple[str, ...] | None = None
    after: str = ""
    limit: int | None = None


class ChangeQuery(Struct, frozen=True):
    """Which changes of instances (moves, rebuilds and so on) to read.

    With `instance`: the changes of that instance whose numbers are above `after`, the oldest first; with `request_id` only those by this order. Without: the moves
    of all instances, the newest first, beginning after the move `behind`. With `host`, only moves from that host or to
    it: in the cell before the name if there is one, otherwise in any cell. Without `ended`, only changes that go on.
    """

    instance: InstanceId | None = None
    request_id: RequestId | None = None
    after: int = 0
    host: str = ""
    ended: bool = False
    behind: MovePlace | None = None
    limit: int = 100


class WaitingInstance(Struct, frozen=True):
    """An instance that waits for room: its order and its needs, both encoded, and the digest of the needs. Release 0.1.0 wrote no
    needs.
    """

    id: InstanceId
    digest: bytes
    build: bytes
    turn: Turn
    needs: bytes | None = None


class KnownCell(Struct, frozen=True):
    """A cell, and when a conductor of it that can work was last heard."""

    name: str
    heard_at: datetime


class WorkCounts(Struct, frozen=True):
    """How much waits for room, instances and moves, and since when the oldest does; and the moves under way, by kind."""

    waiting: int = 0
    oldest_wait: datetime | None = None
    moves: Mapping[str, int] = {}


class OutboxNote(Struct, frozen=True):
    """An outbox note: its name, and those of its rows whose messages are not confirmed yet, in the order of their ids."""

    kept: OutboxKey
    rows: tuple[InstanceRow, ...]
