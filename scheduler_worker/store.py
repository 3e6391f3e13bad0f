"""The port to the scheduler's database. store_sql/ implements it.

Requests and instances are locked, each kind in the order of its ids, before they are decided (core/instances/). So the
row that is written is the row that was decided on, and only one of several workers with the same request decides.

A note names the rows of a transaction that have messages to send; it is deleted when all of these are confirmed. To find
such rows without notes would take an index that the database writes twice for each instance.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol, TypeVar
from uuid import UUID

from msgspec import Struct

from bus.messages.build import InstanceOrder
from bus.messages.cloud import InstanceCount
from bus.messages.moves import Change, MovePlace
from bus.messages.stored_names import KnownApplication, NamedImage
from bus.workers.handling import OutboxKey
from engine.flavors import DeviceProfile, Flavor, InstanceId, RequestId
from engine.hosts import Aggregate, HostState
from engine.inventories import AggregateId, GroupId, ProviderId, ServerGroup
from scheduler_worker.core.aggregates import KeptAggregate
from scheduler_worker.core.hosts import HostLoad
from scheduler_worker.core.instances.lifecycle import CellEvent
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
    left out; so they are in the order by hosts. The prefixes are the first digits of ids, `part` is a part of names. No more than
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

    With `instance`: the changes of that instance whose numbers are above `after`, the oldest first. Without: the moves
    of all instances, the newest first, beginning after the move `behind`. With `host`, only moves from that host or to
    it: in the cell before the name if there is one, otherwise in any cell. Without `ended`, only changes that go on.
    """

    instance: InstanceId | None = None
    after: int = 0
    host: str = ""
    ended: bool = False
    behind: MovePlace | None = None
    limit: int = 100


class WaitingInstance(Struct, frozen=True):
    """An instance that waits for room, with the digest of its spec, and its request, encoded."""

    id: InstanceId
    digest: bytes
    build: bytes
    turn: Turn


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


class SchedulerTransaction(Protocol):
    """One transaction on the schedulers' tables: all of its writes take effect, or none."""

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Acceptance]:
        """Write the new requests, of which no two have one id. Returns, for each in its place, whether it is accepted."""

    async def adopt(self, rows: Sequence[AdoptedRow]) -> Sequence[InstanceId]:
        """Write the rows of instances that are taken over from another cloud. Returns those instances that have a row already, and
        those whose number in their request belongs to another instance: nothing is written of these.
        """

    async def lock(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        """The rows of those instances that exist, locked and up to date. The orders that a row still has to send to its
        cell are left out: a worker that changes a row does not send them.
        """

    async def decide(self, rows: Sequence[InstanceRow]) -> Mapping[InstanceId, InstanceRow]:
        """Write these rows, if the stored ones are still `accepted`. Returns the stored rows, locked, that another worker has
        decided meanwhile.
        """

    async def save(self, rows: Sequence[InstanceRow]) -> None:
        """Write rows that this transaction has locked. A row that belongs to no request is inserted; `Transient` is
        raised if another worker has inserted it meanwhile.
        """

    async def apply_events(self, events: Sequence[CellEvent]) -> int:
        """Write cells' events into the rows of their instances, except rows without a host and rows that have a later
        event.

        An event says everything that the row shows, so the row need not be read first. Returns how many rows were
        written. If that is fewer than the events, the caller locks the rows and decides each event by itself, as if
        nothing had been written.
        """

    async def lock_moves(self) -> Sequence[Change]:
        """The moves that go on, in no order, without those that wait for room. Until this transaction commits, other transactions that call this wait."""

    async def lock_hosts(self, ids: Sequence[ProviderId], names: Sequence[str]) -> Sequence[HostState]:
        """The hosts with these ids or names that exist, locked and up to date."""

    async def save_hosts(self, hosts: Sequence[HostState], at: datetime) -> None:
        """Write these hosts: each is new, or this transaction has locked its row. `up` and other facts that follow from
        heartbeats are not stored.
        """

    async def save_loads(self, loads: Sequence[HostLoad]) -> int:
        """Write these loads beside the rows of their hosts: of each host whose row still is the one that the load names, and
        has no later load. Returns how many were written. If
        that is fewer than the loads, the caller locks the rows and decides each report by itself, as if nothing had been
        written.
        """

    async def forget_hosts(self, hosts: Sequence[ProviderId]) -> None:
        """Delete these hosts, which were locked."""

    async def save_cells(self, cells: Sequence[KnownCell]) -> None:
        """Write when these cells were last heard, except where a later time is stored."""

    async def set_application(
        self, name: str, sent_at: datetime, application: KnownApplication | None
    ) -> KnownApplication | None:
        """Write the application, or delete it (None), unless a later order was sent before. Returns it as it is then."""

    async def lock_aggregates(self) -> Sequence[KeptAggregate]:
        """All aggregates, deleted ones too, in the order of their names, locked and up to date."""

    async def save_aggregate(self, aggregate: KeptAggregate) -> None:
        """Write this aggregate, which is new, or was locked. The name of a deleted aggregate becomes free. `Transient`
        is raised if another worker has just created an aggregate with the same name.
        """

    async def forget_aggregate(self, aggregate: AggregateId) -> None:
        """Delete the row of this aggregate."""

    async def create_group(self, group: KnownGroup) -> KnownGroup | None:
        """Write the server group, unless there is a group with its id. Returns the group that is stored then, or None
        if a group with this id was deleted.
        """

    async def count_groups(self, project: str, new: GroupId, limit: int) -> int:
        """How many groups the project has, with those that were deleted and not pruned yet; counting stops at `limit`. 0 if the group
        `new` is there.
        """

    async def delete_group(self, group: GroupId, project: str, at: datetime) -> KnownGroup | None:
        """Delete the server group, if it belongs to this project; an empty project allows every group. Returns the
        deleted group, or None. No new group can have the id until `prune` removes the row.
        """

    async def create_named(self, named: Named) -> Named:
        """Write the flavor or the image, unless there is one with its name. Returns the one that is stored then."""

    async def lock_named(self, kind: type[Named], name: str) -> Named | None: ...

    async def save_named(self, named: Named) -> None:
        """Write anew what was locked."""

    async def delete_named(self, kind: type[Named], name: str) -> Named | None:
        """Delete the flavor or the image. Returns it, or None if there was none."""

    async def lease_waking(self, holder: UUID, now: datetime, until: datetime) -> datetime | None:
        """Take the lease to try waiting instances, which one worker has at a time. Returns None if `holder` has it
        until `until`; otherwise when the lease of the other worker ends.

        A lease that ends far later than `until` was written by a worker with a wrong clock, and is taken over.
        """

    async def lease_counting(self, holder: UUID, now: datetime, until: datetime) -> datetime | None:
        """Take the lease to count the cloud for the metrics, in the same way."""

    async def release_waking(self, holder: UUID) -> None:
        """End the lease to try waiting instances, if `holder` has it."""

    async def next_waiting(self, digests: Sequence[bytes], limit: int) -> Sequence[WaitingInstance]:
        """The next instances that wait for a host, of those whose specs have these digests: the highest priority first,
        then the oldest. Rows that another transaction has locked are skipped.
        """

    async def wake(self, instances: Sequence[InstanceId]) -> None:
        """Mark these instances before a host is sought for them. If the worker dies after a claim was granted, the mark
        shows that the instance must be tried again.
        """

    async def woken(self, limit: int) -> Sequence[WaitingInstance]:
        """Marked instances, in the order of `next_waiting`. The holder of the lease finds only those whose trial was
        interrupted.
        """

    async def let_wait(self, instances: Sequence[InstanceId]) -> None:
        """Drop the marks of these instances, which were tried and go on waiting."""

    async def unlist(self, instances: Sequence[InstanceId]) -> None:
        """Remove these instances from the list of those that wait for a host. `accept`, `decide` and `save` do this by
        themselves for rows that `has_waited`.
        """

    async def note(self, groups: Sequence[Sequence[InstanceRow]]) -> Sequence[OutboxKey]:
        """Write one outbox note for each group of rows that have messages to send. A worker that writes rows with
        messages also notes them in the same transaction; otherwise a crash would lose the messages. Returns the notes'
        names.
        """

    async def confirm(self, said: Sequence[OutboxKey]) -> None:
        """Delete these outbox notes: all of their messages have reached the broker."""

    async def drop_notes(self, names: Sequence[OutboxKey]) -> None:
        """Delete these outbox notes, although their messages are not confirmed: newer notes name the same rows."""


class SchedulerStore(Protocol):
    def transaction(self) -> AbstractAsyncContextManager[SchedulerTransaction]:
        """A new transaction. It commits at the end of its context, and rolls back on any exception. Any step may raise
        `Transient`; the caller then tries the whole transaction again.
        """

    async def instances(self, query: InstanceQuery) -> Sequence[InstanceRow]:
        """The instances of the first page."""

    async def instance_page(self, query: InstanceQuery) -> InstancePage | None:
        """None if the row of the instance `after` is not there any more."""

    async def counted(self, query: InstanceQuery) -> tuple[int, bool]:
        """How many instances are found on all pages, among the rows that are read; and whether there are rows that were not."""

    async def unplaced(self, project: str, limit: int) -> tuple[int, int]:
        """How many instances of the project have no host, since they are open or in error; and how many were deleted without one, and
        are not pruned yet. Counting stops at `limit`.
        """

    async def put_names_in_order(self, limit: int) -> int:
        """Complete rows that release 0.1.0 has written, so that they are found by their names. Returns how many were completed, at
        most `limit`.
        """

    async def overdue(self, now: datetime, limit: int) -> Sequence[InstanceId]:
        """The instances that are accepted or waiting, not decided, and past their deadline."""

    async def waiting_digests(self, instances: Collection[InstanceId] | None) -> Collection[bytes]:
        """The digests of the specs for which instances wait: of all waiting instances (None), or of those among
        `instances`.
        """

    async def one_waiting_of_each(self, digests: Sequence[bytes]) -> Sequence[WaitingInstance]:
        """For each of these digests any waiting instance whose spec has it; for some there may be none."""

    async def find_waiting(self, instances: Sequence[InstanceId]) -> Sequence[WaitingInstance]:
        """Those of these instances that wait."""

    async def some_are_woken(self) -> bool: ...

    async def unconfirmed(
        self, before: datetime, after: OutboxKey | None, limit: int
    ) -> Sequence[OutboxNote]:
        """A page of the outbox notes that were written before `before`, in the order of their names, after the note
        `after`.

        Each has those of its rows whose messages are not confirmed yet; there may be none. The page ends with the note
        that brings it to `limit` rows, or earlier. It has at least one note, if there is one.
        """

    async def hosts(self, query: HostQuery) -> Sequence[HostState]:
        """The hosts in the order of their names, with their last loads."""

    async def host_versions(self, changed_since: datetime) -> Sequence[tuple[ProviderId, HostVersion]]:
        """The hosts whose rows were written since then, each with the version of its row."""

    async def host_loads(self) -> Sequence[HostLoad]:
        """All loads that are written beside rows of hosts."""

    async def changes(self, query: ChangeQuery) -> Sequence[Change]: ...

    async def cells(self) -> Sequence[KnownCell]:
        """All cells, in the order of their names."""

    async def instance_counts(self) -> Sequence[InstanceCount]:
        """The counts of the instances that are not deleted, in the order of states and cells. Reads all rows."""

    async def work_counts(self) -> WorkCounts: ...

    async def applications(self) -> Sequence[KnownApplication]:
        """All applications, in the order of their names."""

    async def aggregates(self) -> Sequence[Aggregate]:
        """All aggregates that are not deleted, in the order of their names."""

    def ordering_aggregates(self) -> AbstractAsyncContextManager[None]:
        """A context in which a worker follows an order about an aggregate: only one worker at a time can be in it.

        May raise `Transient` at its start and at its end.
        """

    async def groups(self, query: GroupQuery) -> Sequence[KnownGroup]:
        """Groups that are not deleted."""

    async def named(self, kind: type[Named], query: NameQuery) -> Sequence[Named]: ...

    async def prune(self, ended_before: datetime, limit: int) -> int:
        """Delete requests with their instances, if every instance was deleted before `ended_before` and has no message
        left to send; and deletes of that time whose request never came. At most `limit` of each. Returns how many of
        both.

        Server groups that were deleted before then are deleted, too.
        """

    async def close(self) -> None: ...
