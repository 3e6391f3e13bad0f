"""What a scheduler asks of its database. Two implementations, one contract suite: store_memory.py and store_sql.py.

Requests and instances are locked, each kind in the order of its ids, before they are judged (instances.py); so what is
written is what was judged, and of several workers that hold the same request one decides.

What a transaction says is noted beside the rows, in as few notes as can be, and a note is gone when all of it is confirmed.
To ask the rows themselves would take an index that the database writes twice for each instance.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from bus.handling import Kept
from bus.message import ProviderId
from bus.messages.applications import KnownApplication
from bus.messages.build import InstanceId, RequestId
from bus.messages.hosts import HostState
from scheduler_worker.core.instances.lifecycle import CellEvent
from scheduler_worker.core.instances.rows import InstanceRow


class NewRequest(Struct, frozen=True):
    """A request as it would be accepted: what tells it from another with the same id, and its instances' rows. These may
    be decided already.
    """

    id: RequestId
    digest: bytes
    rows: tuple[InstanceRow, ...]


class Known(Struct, frozen=True):
    """Accepted, now or before, with the same content: these are its instances, locked."""

    rows: tuple[InstanceRow, ...]


class OtherContent(Struct, frozen=True):
    """The id belongs to a request that asks for something else."""


class InstancesTaken(Struct, frozen=True):
    """These instances belong to another request."""

    instances: tuple[InstanceId, ...]


Acceptance = Known | OtherContent | InstancesTaken


class InstanceQuery(Struct, frozen=True):
    """These instances; or those of a request; or all, in the order of their ids, after `after`; with `project`, of these
    only the instances of that project.
    """

    instances: tuple[InstanceId, ...] = ()
    request_id: RequestId | None = None
    after: InstanceId | None = None
    state: str = ""
    project: str = ""
    limit: int = 100


class Noted(Struct, frozen=True):
    """A note, under its name, and the rows of it that are still unsaid, in the order of their ids."""

    kept: Kept
    rows: tuple[InstanceRow, ...]


class SchedulerTransaction(Protocol):
    """All or nothing."""

    async def accept(self, requests: Sequence[NewRequest]) -> Sequence[Acceptance]:
        """Write down those that are new; what is known of each, in their order. No id comes twice."""

    async def lock(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        """Those that exist, locked and as they are now, but for their orders: who changes a row does not say them."""

    async def decide(self, rows: Sequence[InstanceRow]) -> Mapping[InstanceId, InstanceRow]:
        """Write these over rows that are still open. What the others were decided to be meanwhile, locked."""

    async def save(self, rows: Sequence[InstanceRow]) -> None:
        """Write these, which were locked; but what is of no request is new. `Transient` if somebody was quicker."""

    async def hear(self, words: Sequence[CellEvent]) -> int:
        """Write what these words make of rows that are placed and have heard nothing later: each word is whole, so no
        row is read for it. How many there were; the others are to be locked and judged, as if nothing had been heard.
        """

    async def lock_hosts(self, ids: Sequence[ProviderId], names: Sequence[str]) -> Sequence[HostState]:
        """The hosts of these ids or names that exist, locked and as they are now."""

    async def save_hosts(self, hosts: Sequence[HostState], at: datetime) -> None:
        """Write these, new or locked; `up` and what follows from heartbeats is not kept."""

    async def forget_hosts(self, hosts: Sequence[ProviderId]) -> None:
        """Delete these, which were locked."""

    async def hear_of_application(self, name: str, sent_at: datetime) -> bool:
        """Is this order about an application not older than every other that was heard? Then others that are, will be."""

    async def application(self, name: str) -> KnownApplication | None: ...

    async def save_application(self, application: KnownApplication) -> None:
        """Write it, new or over what is known of it."""

    async def remove_application(self, name: str) -> None:
        """Forget it, if there is one of this name."""

    async def note(self, groups: Sequence[Sequence[InstanceRow]]) -> Sequence[Kept]:
        """Each group of rows has something to say, and is kept under one name until that is confirmed. Whoever writes an
        unsaid row notes it in the same transaction, or nobody would say it after a crash.
        """

    async def confirm(self, said: Sequence[Kept]) -> None:
        """All that is kept under these names has reached the broker."""

    async def drop_notes(self, names: Sequence[Kept]) -> None:
        """Their rows are noted elsewhere by now."""


class SchedulerStore(Protocol):
    def transaction(self) -> AbstractAsyncContextManager[SchedulerTransaction]:
        """Commits when left in peace, rolls back on any exception. May raise `Transient` at any step: try again."""

    async def instances(self, query: InstanceQuery) -> Sequence[InstanceRow]: ...

    async def overdue(self, now: datetime, limit: int) -> Sequence[InstanceId]:
        """Accepted, not decided, and past their deadline."""

    async def unsaid(self, before: datetime, after: Kept | None, limit: int) -> Sequence[Noted]:
        """The next notes behind `after`, in their order, of rows that were written before. At least one if there is one;
        no more when they have so many rows.
        """

    async def hosts(self, name: str, after: str, limit: int) -> Sequence[HostState]:
        """In the order of their names, after `after`; or the one called `name`."""

    async def hosts_changed(self, since: datetime) -> Sequence[HostState]: ...

    async def hosts_of(self, ids: Sequence[ProviderId]) -> Sequence[HostState]:
        """Those of them that there are, as they are now."""

    async def applications(self) -> Sequence[KnownApplication]:
        """All of them, in the order of their names."""

    async def prune(self, ended_before: datetime, limit: int) -> int:
        """Forget up to so many requests of which every instance was deleted before, and has said so, with their
        instances; and so many deletes whose request never came. How many of both went.
        """

    async def close(self) -> None: ...
