"""The port to the scheduler's database. store_sql/ implements it, and so does tests/memory_stores; one contract suite tests both.

Requests and instances are locked, each kind in the order of its ids, before they are decided (core/instances/). So the
row that is written is the row that was decided on, and only one of several workers with the same request decides.

A note names the rows of a transaction that have messages to send; it is deleted when all of these are confirmed. To find
such rows without notes would take an index that the database writes twice for each instance.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol
from uuid import UUID

from msgspec import Struct

from bus.message import AggregateId, GroupId, ProviderId
from bus.messages.aggregates import Aggregate
from bus.messages.applications import KnownApplication
from bus.messages.build import InstanceId, RequestId
from bus.messages.hosts import HostState
from bus.messages.moves import Change, MovePlace
from bus.messages.placement import ServerGroup
from bus.workers.handling import OutboxKey
from scheduler_worker.core.aggregates.kept import KeptAggregate
from scheduler_worker.core.instances.lifecycle import CellEvent
from scheduler_worker.core.instances.rows import InstanceRow


class NewRequest(Struct, frozen=True):
    """A request as it would be accepted, with the rows of its instances, which may be decided already. The digest tells it
    from another request with the same id.
    """

    id: RequestId
    digest: bytes
    rows: tuple[InstanceRow, ...]


class Known(Struct, frozen=True):
    """The request is accepted, now or before, with the same content. These are its instances, locked."""

    rows: tuple[InstanceRow, ...]


class OtherContent(Struct, frozen=True):
    """The request is refused: its id belongs to a request with other content."""


class InstancesTaken(Struct, frozen=True):
    """The request is refused: its instances belong to another request."""

    instances: tuple[InstanceId, ...]


Acceptance = Known | OtherContent | InstancesTaken


class InstanceQuery(Struct, frozen=True):
    """These instances, or those of a request, or all. They come in the order of their ids, behind `after`; `project` and
    `state` leave out the others. With `host`, only instances in the states
    `LIVING` on the host of this name.
    """

    instances: tuple[InstanceId, ...] = ()
    request_id: RequestId | None = None
    after: InstanceId | None = None
    state: str = ""
    project: str = ""
    host: str = ""
    limit: int = 100


class HostQuery(Struct, frozen=True):
    """Only the hosts with these ids; with this name; behind this name; written since. None: whatever it is."""

    ids: tuple[ProviderId, ...] | None = None
    name: str | None = None
    after: str = ""
    changed_since: datetime | None = None
    limit: int | None = None


class KnownGroup(Struct, frozen=True):
    """A server group as it was created."""

    definition: ServerGroup
    name: str = ""
    project: str = ""


class GroupQuery(Struct, frozen=True):
    """The groups with these ids, or all. They come in the order of their ids, behind `after`; `project` leaves out the
    others.
    """

    ids: tuple[GroupId, ...] | None = None
    after: GroupId | None = None
    project: str = ""
    limit: int | None = None


class ChangeQuery(Struct, frozen=True):
    """The changes of an instance behind the number `after`, in their order; or, without one, moves of all instances, the newest
    first, behind the place `behind`. With `host`, only moves from there or to there; without `ended`, only what goes on.
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


class KnownCell(Struct, frozen=True):
    """A cell, and when a conductor of it that can work was last heard."""

    name: str
    heard_at: datetime


class CellCounts(Struct, frozen=True):
    """The instances of a cell, and how many of them have an order that it has not answered."""

    cell: str
    instances: int
    waiting: int


class Note(Struct, frozen=True):
    """A note: its name, and those of its rows that are still unsaid, in the order of their ids."""

    kept: OutboxKey
    rows: tuple[InstanceRow, ...]


class SchedulerTransaction(Protocol):
    """One transaction on the schedulers' tables: all of its writes take effect, or none."""

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Acceptance]:
        """Write the new requests. Returns what is known of each, in their order. No id comes twice."""

    async def lock(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        """The rows that exist, locked and up to date, without their orders: a worker that changes a row does not send those."""

    async def decide(self, rows: Sequence[InstanceRow]) -> Mapping[InstanceId, InstanceRow]:
        """Write these rows, if the stored ones are still `accepted`. Returns the stored rows, locked, that another worker has
        decided meanwhile.
        """

    async def save(self, rows: Sequence[InstanceRow]) -> None:
        """Write these rows, which were locked; a row without a request is new. `Transient` if another worker was quicker."""

    async def apply_events(self, events: Sequence[CellEvent]) -> int:
        """Write these events over rows that are placed and have no later one. Each event is whole, so no row is read for
        it. Returns how many rows were written; the caller locks and decides the others, as if nothing had been written.
        """

    async def lock_moves(self) -> Sequence[Change]:
        """The moves that go on, in no order. Until the commit, nobody else is told."""

    async def lock_hosts(self, ids: Sequence[ProviderId], names: Sequence[str]) -> Sequence[HostState]:
        """The hosts with these ids or names that exist, locked and up to date."""

    async def save_hosts(self, hosts: Sequence[HostState], at: datetime) -> None:
        """Write these hosts, new or locked. `up` and other facts that follow from heartbeats are not kept."""

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
        """Write it, new or locked. A deleted one gives up its name. `Transient` if another worker has just given its name to
        another one.
        """

    async def forget_aggregate(self, aggregate: AggregateId) -> None:
        """Delete the row of this aggregate."""

    async def create_group(self, group: KnownGroup) -> KnownGroup | None:
        """Write the group, unless there is one with its id. Returns the one that is there then; None if it was deleted."""

    async def delete_group(self, group: GroupId, project: str, at: datetime) -> KnownGroup | None:
        """Delete the group, if it is of this project; an empty project stands for all. Returns it, or None. Its id stays
        taken until it is pruned.
        """

    async def lease_waking(self, holder: UUID, now: datetime, until: datetime) -> datetime | None:
        """Only one worker at a time tries waiting instances. None: this one, until then; otherwise the end of another one's
        lease. A lease that ends far behind `until` has the time of a clock that was wrong, and counts as over.
        """

    async def release_waking(self, holder: UUID) -> None:
        """End the lease to try waiting instances, if `holder` has it."""

    async def next_waiting(self, digests: Sequence[bytes], limit: int) -> Sequence[WaitingInstance]:
        """The next instances that wait for a host, of the kinds of request that these digests stand for: the highest priority
        first, then the oldest. Rows that another transaction has locked are skipped.
        """

    async def wake(self, instances: Sequence[InstanceId]) -> None:
        """Mark these, before they are tried: a claim for one may outlive the worker that made it."""

    async def woken(self, limit: int) -> Sequence[WaitingInstance]:
        """Marked instances, in their order. The holder of the lease finds only those whose trial was interrupted."""

    async def let_wait(self, instances: Sequence[InstanceId]) -> None:
        """Drop the marks of these instances, which were tried and go on waiting."""

    async def unlist(self, instances: Sequence[InstanceId]) -> None:
        """These wait no more. `accept`, `decide` and `save` do this by themselves for rows that `has_waited`."""

    async def note(self, groups: Sequence[Sequence[InstanceRow]]) -> Sequence[OutboxKey]:
        """Write one note for each group of rows that have something to say. A worker that writes an unsaid row notes it in
        the same transaction; otherwise its messages would be lost by a crash.
        """

    async def confirm(self, said: Sequence[OutboxKey]) -> None:
        """Delete these outbox notes: all of their messages have reached the broker."""

    async def drop_notes(self, names: Sequence[OutboxKey]) -> None:
        """Delete these outbox notes; other notes name their rows by now."""


class SchedulerStore(Protocol):
    def transaction(self) -> AbstractAsyncContextManager[SchedulerTransaction]:
        """Commits at its end, rolls back on any exception. May raise `Transient` at any step: try again."""

    async def instances(self, query: InstanceQuery) -> Sequence[InstanceRow]: ...

    async def overdue(self, now: datetime, limit: int) -> Sequence[InstanceId]:
        """The instances that are accepted or waiting, not decided, and past their deadline."""

    async def waiting_digests(self, instances: Collection[InstanceId] | None) -> Collection[bytes]:
        """The digests of the specs of these instances, or of all (None), as far as they wait."""

    async def one_waiting(self, digest: bytes) -> WaitingInstance | None:
        """Any waiting instance whose spec has this digest; None if there is none."""

    async def some_are_woken(self) -> bool: ...

    async def unsaid(self, before: datetime, after: OutboxKey | None, limit: int) -> Sequence[Note]:
        """The next notes behind `after`, in their order, with rows that were written before `before`. At least one, if
        there is one; it stops when they have `limit` rows.
        """

    async def hosts(self, query: HostQuery) -> Sequence[HostState]:
        """The hosts in the order of their names."""

    async def changes(self, query: ChangeQuery) -> Sequence[Change]: ...

    async def cells(self) -> Sequence[KnownCell]:
        """All cells, in the order of their names."""

    async def cell_counts(self) -> Sequence[CellCounts]:
        """The counts of each cell that has instances which are not deleted. Reads all rows."""

    async def applications(self) -> Sequence[KnownApplication]:
        """All applications, in the order of their names."""

    async def aggregates(self) -> Sequence[Aggregate]:
        """All aggregates that are not deleted, in the order of their names."""

    def ordering_aggregates(self) -> AbstractAsyncContextManager[None]:
        """In this context, no other worker is in it. May raise `Transient` at its start and at its end."""

    async def groups(self, query: GroupQuery) -> Sequence[KnownGroup]:
        """Groups that are not deleted."""

    async def prune(self, ended_before: datetime, limit: int) -> int:
        """Delete up to `limit` requests, with their instances, of which every instance was deleted before `ended_before` and
        has said so; and up to `limit` deletes whose request never came. Returns how many of both. Deletes groups that were
        deleted before then, too.
        """

    async def close(self) -> None: ...
