"""The scheduler's rows in the memory of one process, for tests and simulation.

One transaction runs at a time. It works on a copy, which replaces the rows when it commits.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import Struct, structs

from bus.messages.cloud import InstanceCount
from bus.messages.moves import Change
from bus.messages.stored_names import KnownApplication
from bus.workers.handling import OutboxKey
from engine.flavors import InstanceId, RequestId
from engine.hosts import Aggregate, HostState, host_in_cell
from engine.inventories import AggregateId, GroupId, ProviderId
from kit.errors import Transient
from scheduler_worker.core.aggregates import KeptAggregate
from scheduler_worker.core.hosts import HostLoad, with_load
from scheduler_worker.core.instances.lifecycle import CellEvent, adopted, heard
from scheduler_worker.core.instances.rows import (
    ACCEPTED,
    DELETED,
    LIVING,
    NO_REQUEST,
    PLACED,
    InstanceRow,
)
from scheduler_worker.store import (
    Acceptance,
    AdoptedRow,
    ChangeQuery,
    GroupQuery,
    HostQuery,
    HostVersion,
    InstanceQuery,
    InstancesTaken,
    Known,
    KnownCell,
    KnownGroup,
    Named,
    NameQuery,
    NewRequest,
    OtherContent,
    OutboxNote,
    SchedulerTransaction,
    WaitingInstance,
    WorkCounts,
)


class _Request(Struct, frozen=True):
    digest: bytes
    instances: tuple[InstanceId, ...]


class _Note(Struct, frozen=True):
    """The sequence of each row that it names; None for placed rows."""

    at: datetime
    sequences: Mapping[InstanceId, int | None]


class _Listed(NamedTuple):
    """An instance that waits, in the order of the turns."""

    precedence: int
    since: datetime
    id: InstanceId
    digest: bytes
    build: bytes

    @property
    def shown(self) -> WaitingInstance:
        return WaitingInstance(self.id, self.digest, self.build)


class _Rows:
    def __init__(self, before: "_Rows | None" = None) -> None:
        """A copy of these rows, or none."""
        self.requests: dict[RequestId, _Request] = dict(before.requests) if before else {}
        self.instances: dict[InstanceId, InstanceRow] = dict(before.instances) if before else {}
        # The number of each adopted instance in its request.
        self.adopted_places: dict[tuple[RequestId, int], InstanceId] = (
            dict(before.adopted_places) if before else {}
        )
        # What waits, by its turn; and of these, what is being tried.
        self.waiting: dict[InstanceId, _Listed] = dict(before.waiting) if before else {}
        self.woken: set[InstanceId] = set(before.woken) if before else set()
        # By purpose.
        self.leases: dict[str, tuple[UUID, datetime]] = dict(before.leases) if before else {}
        # The open rows, so that looking for overdue ones costs nothing when there are none.
        self.open: dict[InstanceId, None] = dict(before.open) if before else {}
        # Each host, and when it was written.
        self.hosts: dict[ProviderId, tuple[HostState, datetime]] = dict(before.hosts) if before else {}
        self.loads: dict[ProviderId, HostLoad] = dict(before.loads) if before else {}
        self.cells: dict[str, datetime] = dict(before.cells) if before else {}
        self.applications: dict[str, KnownApplication] = dict(before.applications) if before else {}
        # When the latest order about each was sent.
        self.application_orders: dict[str, datetime] = dict(before.application_orders) if before else {}
        self.aggregates: dict[AggregateId, KeptAggregate] = dict(before.aggregates) if before else {}
        # Each group, and when it was deleted.
        self.groups: dict[GroupId, tuple[KnownGroup, datetime | None]] = dict(before.groups) if before else {}
        # Flavors and images, by their type and name.
        known = before.named if before else {}
        self.named: dict[type, dict[str, Any]] = {kind: dict(stored) for kind, stored in known.items()}
        self.changes: dict[tuple[InstanceId, int], Change] = dict(before.changes) if before else {}
        self.notes: dict[int, _Note] = dict(before.notes) if before else {}
        # Shared by all copies: a number is never used again.
        self.note_numbers: count[int] = before.note_numbers if before else count(1)

    def named_of(self, kind: type[Named]) -> dict[str, Named]:
        return self.named.setdefault(kind, {})

    def moves_going_on(self) -> list[Change]:
        known = self.changes.values()
        going = [each for each in known if each.ended_at is None and each.outcome != "waiting"]
        return [each for each in going if each.what not in ("rebuild", "delete")]


class MemorySchedulerTransaction:
    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Acceptance]:
        return [self._accept(request) for request in requests]

    def _accept(self, request: NewRequest) -> Acceptance:
        rows = self._rows
        known = rows.requests.get(request.id)
        if known is None:
            taken = tuple(
                row.id
                for row in request.rows
                if (there := rows.instances.get(row.id)) and there.told.request_id != NO_REQUEST
            )
            if taken:
                return InstancesTaken(taken)
            for row in request.rows:
                unseen = rows.instances.get(row.id)
                self._put(row if unseen is None else adopted(unseen, row))
            known = _Request(request.digest, tuple(row.id for row in request.rows))
            rows.requests[request.id] = known
        elif known.digest != request.digest:
            return OtherContent()
        return Known(tuple(rows.instances[instance] for instance in known.instances))

    async def adopt(self, rows: Sequence[AdoptedRow]) -> Sequence[InstanceId]:
        refused = []
        for each in sorted(rows, key=lambda adopted: adopted.row.id.int):
            place = (each.row.told.request_id, each.number)
            if each.row.id in self._rows.instances or place in self._rows.adopted_places:
                refused.append(each.row.id)
                continue
            self._rows.adopted_places[place] = each.row.id
            known = self._rows.requests.get(place[0])
            ids = () if known is None else known.instances
            self._rows.requests[place[0]] = _Request(each.digest, (*ids, each.row.id))
            self._put(each.row)
        return refused

    async def lock(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        found = self._rows.instances
        return {
            instance: structs.replace(found[instance], order=None)
            for instance in instances
            if instance in found
        }

    async def decide(self, rows: Sequence[InstanceRow]) -> Mapping[InstanceId, InstanceRow]:
        known = await self.lock([row.id for row in rows])
        others = {id_: row for id_, row in known.items() if row.told.state != ACCEPTED}
        await self.save([row for row in rows if row.id not in others])
        return others

    async def save(self, rows: Sequence[InstanceRow]) -> None:
        for row in rows:
            self._put(row)

    async def lease_waking(self, holder: UUID, now: datetime, until: datetime) -> datetime | None:
        return self._lease("waking", holder, now, until)

    async def lease_counting(self, holder: UUID, now: datetime, until: datetime) -> datetime | None:
        return self._lease("counting", holder, now, until)

    def _lease(self, purpose: str, holder: UUID, now: datetime, until: datetime) -> datetime | None:
        if (lease := self._rows.leases.get(purpose)) is not None:
            other, held_until = lease
            if other != holder and now < held_until <= until + (until - now):
                return held_until
        self._rows.leases[purpose] = holder, until
        return None

    async def release_waking(self, holder: UUID) -> None:
        self._rows.leases = {
            purpose: lease for purpose, lease in self._rows.leases.items() if lease[0] != holder
        }

    async def next_waiting(self, digests: Sequence[bytes], limit: int) -> Sequence[WaitingInstance]:
        found = [each for each in self._rows.waiting.values() if each.digest in digests]
        return [each.shown for each in sorted(found, key=_in_turn)[:limit]]

    async def wake(self, instances: Sequence[InstanceId]) -> None:
        self._rows.woken.update(instances)

    async def woken(self, limit: int) -> Sequence[WaitingInstance]:
        found = [self._rows.waiting[instance] for instance in self._rows.woken]
        return [each.shown for each in sorted(found, key=_in_turn)[:limit]]

    async def let_wait(self, instances: Sequence[InstanceId]) -> None:
        self._rows.woken.difference_update(instances)

    async def unlist(self, instances: Sequence[InstanceId]) -> None:
        for instance in instances:
            self._rows.waiting.pop(instance, None)
            self._rows.woken.discard(instance)

    async def apply_events(self, events: Sequence[CellEvent]) -> int:
        written = 0
        for event in events:
            said, row = event.instance, self._rows.instances.get(event.instance.id)
            if row is None or row.told.state != PLACED or row.told.sequence >= said.sequence:
                continue
            now = heard(row, event, row.issued_at)
            if now is not None:
                self._put(now)
                written += 1
        return written

    async def lock_moves(self) -> Sequence[Change]:
        return self._rows.moves_going_on()

    async def lock_hosts(self, ids: Sequence[ProviderId], names: Sequence[str]) -> Sequence[HostState]:
        return [host for host, _ in self._rows.hosts.values() if host.id in ids or host.name in names]

    async def save_hosts(self, hosts: Sequence[HostState], at: datetime) -> None:
        self._rows.hosts |= {host.id: (host, at) for host in hosts}
        for host in hosts:
            self._rows.loads.pop(host.id, None)

    async def save_loads(self, loads: Sequence[HostLoad]) -> int:
        written = 0
        for load in loads:
            host, at = self._rows.hosts.get(load.host, (None, None))
            if host is None or at is None or host.sequence != load.row:
                continue
            if (before := self._rows.loads.get(load.host)) is None or before.number <= load.number:
                self._rows.loads[load.host] = load
                self._rows.hosts[load.host] = with_load(host, load), at
                written += 1
        return written

    async def forget_hosts(self, hosts: Sequence[ProviderId]) -> None:
        for host in hosts:
            self._rows.hosts.pop(host, None)
            self._rows.loads.pop(host, None)

    async def save_cells(self, cells: Sequence[KnownCell]) -> None:
        for each in cells:
            before = self._rows.cells.get(each.name)
            self._rows.cells[each.name] = each.heard_at if before is None else max(before, each.heard_at)

    async def set_application(
        self, name: str, sent_at: datetime, application: KnownApplication | None
    ) -> KnownApplication | None:
        rows = self._rows
        if sent_at >= rows.application_orders.get(name, sent_at):
            rows.application_orders[name] = sent_at
            rows.applications.pop(name, None)
            if application is not None:
                rows.applications[name] = application
        return rows.applications.get(name)

    async def lock_aggregates(self) -> Sequence[KeptAggregate]:
        return _by_name(self._rows.aggregates)

    async def save_aggregate(self, aggregate: KeptAggregate) -> None:
        living = [each for each in self._rows.aggregates.values() if not each.deleted_us]
        others = [each.name for each in living if each.id != aggregate.id]
        if aggregate.name in others and not aggregate.deleted_us:
            raise Transient(f"another worker has just created an aggregate {aggregate.name!r}")
        self._rows.aggregates[aggregate.id] = aggregate

    async def forget_aggregate(self, aggregate: AggregateId) -> None:
        self._rows.aggregates.pop(aggregate, None)

    async def create_group(self, group: KnownGroup) -> KnownGroup | None:
        known, deleted_at = self._rows.groups.setdefault(group.definition.id, (group, None))
        return known if deleted_at is None else None

    async def delete_group(self, group: GroupId, project: str, at: datetime) -> KnownGroup | None:
        known, deleted_at = self._rows.groups.get(group, (None, None))
        if known is None or deleted_at is not None or project not in ("", known.project):
            return None
        self._rows.groups[group] = known, at
        return known

    async def create_named(self, named: Named) -> Named:
        return self._rows.named_of(type(named)).setdefault(named.name, named)

    async def lock_named(self, kind: type[Named], name: str) -> Named | None:
        return self._rows.named_of(kind).get(name)

    async def save_named(self, named: Named) -> None:
        stored = self._rows.named_of(type(named))
        assert named.name in stored, "it was locked"
        stored[named.name] = named

    async def delete_named(self, kind: type[Named], name: str) -> Named | None:
        return self._rows.named_of(kind).pop(name, None)

    async def note(self, groups: Sequence[Sequence[InstanceRow]]) -> Sequence[OutboxKey]:
        return [self._note(rows) for rows in groups]

    def _note(self, rows: Sequence[InstanceRow]) -> OutboxKey:
        number = next(self._rows.note_numbers)
        at = max(row.told.changed_at or row.issued_at for row in rows)
        sequences = {row.id: None if row.told.state == PLACED else row.told.sequence for row in rows}
        self._rows.notes[number] = _Note(at, sequences)
        return OutboxKey(number)

    async def confirm(self, said: Sequence[OutboxKey]) -> None:
        notes = [note for kept in said if (note := self._rows.notes.get(kept)) is not None]
        await self.drop_notes(said)
        for instance, sequence in [each for note in notes for each in note.sequences.items()]:
            row = self._rows.instances.get(instance)
            if row is not None and row.unsaid and sequence is not None:
                self._put(_confirmed(row, sequence))

    async def drop_notes(self, names: Sequence[OutboxKey]) -> None:
        for kept in names:
            self._rows.notes.pop(kept, None)

    def _put(self, row: InstanceRow) -> None:
        if row.kept is not None and row.told.waiting is not None:
            since = row.told.waiting.since or row.issued_at
            listed = _Listed(-row.told.waiting.priority, since, row.id, row.kept.digest, row.kept.build)
            self._rows.waiting.setdefault(row.id, listed)
        if row.has_waited:
            self._rows.waiting.pop(row.id, None)
            self._rows.woken.discard(row.id)
        for change in row.history:
            known = self._rows.changes.get((row.id, change.number))
            self._rows.changes[row.id, change.number] = _renewed(known, change) if known else change
        if row.kept is not None or row.has_waited or row.history:
            row = structs.replace(row, kept=None, has_waited=False, history=())
        self._rows.instances[row.id] = row
        self._rows.open.pop(row.id, None)
        if row.due_at is not None:
            self._rows.open[row.id] = None


class MemorySchedulerStore:
    def __init__(self) -> None:
        self._rows = _Rows()
        self._lock = asyncio.Lock()
        self._ordering = asyncio.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SchedulerTransaction]:
        async with self._lock:
            rows = _Rows(self._rows)
            yield MemorySchedulerTransaction(rows)
            self._rows = rows

    async def instances(self, query: InstanceQuery) -> Sequence[InstanceRow]:
        async with self._lock:
            rows = self._rows.instances
            named = query.instances
            if query.request_id is not None:
                request = self._rows.requests.get(query.request_id)
                named = request.instances if request else ()
            wanted = named if query.instances or query.request_id is not None else rows
            found = [
                row
                for instance in sorted(wanted, key=_in_order)
                if (row := rows.get(instance)) is not None
                and row.told.request_id != NO_REQUEST
                and (query.after is None or instance.int > query.after.int)
                and query.state in ("", row.told.state)
                and (
                    not query.host
                    or (
                        query.host in (row.told.host, host_in_cell(row.told.cell, row.told.host))
                        and row.told.state in LIVING
                    )
                )
                and query.project in ("", row.told.project)
                and query.name in ("", row.told.name)
                and instance.hex.startswith(query.id_prefix)
                and row.told.request_id.hex.startswith(query.request_prefix)
                and not (query.living and row.told.state == DELETED)
            ]
            return found[: query.limit]

    async def overdue(self, now: datetime, limit: int) -> Sequence[InstanceId]:
        async with self._lock:
            rows = self._rows
            due = [instance for instance in rows.open if _is_due(rows.instances[instance], now)]
            return sorted(due, key=lambda id_: rows.instances[id_].due_at or now)[:limit]

    async def waiting_digests(self, instances: Collection[InstanceId] | None) -> Collection[bytes]:
        async with self._lock:
            return {
                each.digest
                for each in self._rows.waiting.values()
                if instances is None or each.id in instances
            }

    async def one_waiting_of_each(self, digests: Sequence[bytes]) -> Sequence[WaitingInstance]:
        async with self._lock:
            by_digest = {each.digest: each.shown for each in self._rows.waiting.values()}
            return [by_digest[digest] for digest in digests if digest in by_digest]

    async def some_are_woken(self) -> bool:
        async with self._lock:
            return bool(self._rows.woken)

    async def unconfirmed(
        self, before: datetime, after: OutboxKey | None, limit: int
    ) -> Sequence[OutboxNote]:
        async with self._lock:
            found: list[OutboxNote] = []
            count = 0
            for number, note in sorted(self._rows.notes.items()):
                if note.at < before and (after is None or number > after) and count < limit:
                    count += len(note.sequences)
                    found.append(OutboxNote(OutboxKey(number), self._unsaid_of(note)))
            return found

    def _unsaid_of(self, note: _Note) -> tuple[InstanceRow, ...]:
        rows = [self._rows.instances.get(instance) for instance in sorted(note.sequences, key=_in_order)]
        return tuple(row for row in rows if row is not None and row.unsaid)

    async def hosts(self, query: HostQuery) -> Sequence[HostState]:
        async with self._lock:
            found = [
                host
                for host, _ in self._rows.hosts.values()
                if (query.ids is None or host.id in query.ids)
                and query.name in (None, host.name)
                and host.name > query.after
            ]
            return sorted(found, key=lambda host: (host.name, host.id.int))[: query.limit]

    async def host_versions(self, changed_since: datetime) -> Sequence[tuple[ProviderId, HostVersion]]:
        async with self._lock:
            rows = self._rows.hosts.values()
            return [(host.id, (at, host.sequence)) for host, at in rows if at >= changed_since]

    async def host_loads(self) -> Sequence[HostLoad]:
        async with self._lock:
            return list(self._rows.loads.values())

    async def changes(self, query: ChangeQuery) -> Sequence[Change]:
        async with self._lock:
            found = [
                change
                for change in self._rows.changes.values()
                if (query.ended or change.ended_at is None)
                and query.host
                in (
                    *("", change.source, change.destination),
                    host_in_cell(change.cell, change.source),
                    host_in_cell(change.cell, change.destination),
                )
            ]
            if query.instance is not None:
                of_one = [
                    each for each in found if each.instance == query.instance and each.number > query.after
                ]
                return sorted(of_one, key=lambda each: each.number)[: query.limit]
            moves = [each for each in found if each.what not in ("rebuild", "delete")]
            moves.sort(key=lambda each: each.instance.int)
            moves.sort(key=lambda each: each.asked_at, reverse=True)
            if (place := query.behind) is not None:
                moves = [
                    each
                    for each in moves
                    if each.asked_at < place.asked_at
                    or (each.asked_at == place.asked_at and each.instance.int > place.instance.int)
                ]
            return moves[: query.limit]

    async def cells(self) -> Sequence[KnownCell]:
        return [KnownCell(*each) for each in sorted(self._rows.cells.items())]

    async def instance_counts(self) -> Sequence[InstanceCount]:
        told = [row.told for row in self._rows.instances.values()]
        counted = Counter((each.state, each.cell) for each in told if each.state != DELETED)
        return [
            InstanceCount(state=state, cell=cell, count=count)
            for (state, cell), count in sorted(counted.items())
        ]

    async def work_counts(self) -> WorkCounts:
        moves = Counter(each.what for each in self._rows.moves_going_on())
        waiting = self._rows.waiting.values()
        return WorkCounts(len(waiting), min((each.since for each in waiting), default=None), moves)

    async def applications(self) -> Sequence[KnownApplication]:
        async with self._lock:
            return [each for _, each in sorted(self._rows.applications.items())]

    async def aggregates(self) -> Sequence[Aggregate]:
        async with self._lock:
            return [each.told for each in _by_name(self._rows.aggregates) if not each.deleted_us]

    @asynccontextmanager
    async def ordering_aggregates(self) -> AsyncIterator[None]:
        async with self._ordering:
            yield

    async def groups(self, query: GroupQuery) -> Sequence[KnownGroup]:
        async with self._lock:
            found = [
                known
                for id_, (known, deleted_at) in self._rows.groups.items()
                if deleted_at is None
                and (query.ids is None or id_ in query.ids)
                and (query.after is None or id_.int > query.after.int)
                and query.project in ("", known.project)
                and query.name in ("", known.name)
                and id_.hex.startswith(query.id_prefix)
            ]
            return sorted(found, key=lambda each: each.definition.id.int)[: query.limit]

    async def named(self, kind: type[Named], query: NameQuery) -> Sequence[Named]:
        async with self._lock:
            stored = self._rows.named_of(kind)
            names = sorted(stored.keys() if query.names is None else stored.keys() & set(query.names))
            return [stored[name] for name in names if name > query.after][: query.limit]

    async def prune(self, ended_before: datetime, limit: int) -> int:
        async with self._lock:
            rows = self._rows
            for group, (_, deleted_at) in list(rows.groups.items()):
                if deleted_at is not None and deleted_at < ended_before:
                    del rows.groups[group]

            def is_over(instance: InstanceId) -> bool:
                row = rows.instances[instance]
                ended_at = row.told.changed_at or row.issued_at
                return row.told.state == DELETED and not row.unsaid and ended_at < ended_before

            over = [id_ for id_, request in rows.requests.items() if all(map(is_over, request.instances))]
            for id_ in over[:limit]:
                for instance in rows.requests.pop(id_).instances:
                    del rows.instances[instance]
                    rows.changes = {key: each for key, each in rows.changes.items() if key[0] != instance}
            unseen = [
                row.id
                for row in rows.instances.values()
                if row.told.request_id == NO_REQUEST and is_over(row.id)
            ]
            for instance in unseen[:limit]:
                del rows.instances[instance]
                rows.changes = {key: each for key, each in rows.changes.items() if key[0] != instance}
            return len(over[:limit]) + len(unseen[:limit])

    async def close(self) -> None:
        """Nothing to close."""


def _by_name(aggregates: Mapping[AggregateId, KeptAggregate]) -> list[KeptAggregate]:
    return sorted(aggregates.values(), key=lambda each: each.name)


def _in_turn(listed: _Listed) -> tuple[int, datetime, int]:
    return listed.precedence, listed.since, listed.id.int


def _in_order(instance: InstanceId) -> int:
    return instance.int


def _renewed(known: Change, news: Change) -> Change:
    """A stored change, completed with what a later step says."""
    if known.outcome == "waiting":
        known = structs.replace(known, outcome="", failure="")
    return structs.replace(
        known,
        destination=news.destination or known.destination,
        ended_at=news.ended_at or known.ended_at,
        ended_by=news.ended_by or known.ended_by,
        outcome=news.outcome or known.outcome,
        failure=news.failure or known.failure,
        size=known.size or news.size,
    )


def _is_due(row: InstanceRow, now: datetime) -> bool:
    return row.due_at is not None and row.due_at <= now


def _confirmed(row: InstanceRow, sequence: int) -> InstanceRow:
    """The row after the broker has confirmed its messages up to this sequence. It is for messages that no later event
    of a cell confirms.
    """
    return row if row.told.sequence > sequence else structs.replace(row, unsaid=False)
