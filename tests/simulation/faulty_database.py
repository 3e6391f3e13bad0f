"""A database in memory that injects faults where a transaction begins and ends: points where the process may die, and errors of
databases. Each commit is reported to the observer.

Rows outlive processes. If a process dies before its commit, cancellation undoes the transaction.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from cell_conductor.core.rows import CellHost, Instance
from cell_conductor.store_sql import ConductorTransaction
from compute_sim.core.attempts import AttemptRecord, BuildOrder, HostOrder
from engine.flavors import InstanceId
from engine.hosts import HostState
from ironic_sync.core.ring import NodeHandover
from ironic_sync.store_sql import GIVE, IronicStore, IronicTransaction, members, owned_of
from kit.errors import Transient, Unavailable
from kit.sql.databases import RowStatement
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, Quota, TreeChanges
from placement_worker.store_sql import PlacementTransaction, claims, log, trees
from placement_worker.store_sql.log import ChangeFeed
from scheduler_worker.core.aggregates import KeptAggregate
from scheduler_worker.core.instances.lifecycle import CellEvent
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.store_sql import Known, NewRequest, SchedulerStore, SchedulerTransaction
from tests.planted.replacing import replaced, replaced_in
from tests.simulation.faults import CURSED, CURSED_IDS
from tests.simulation.nodes_checker import NodesChecker
from tests.simulation.process import RUNNING, SimProcess
from tests.sqlite_memory import MemoryDatabase, MemoryTransaction, Tables

if TYPE_CHECKING:
    from engine.inventories import ProviderId
    from ironic_sync.core.rows import NodeRow


class CommitObserver(Protocol):
    """Is told what was committed."""

    def books_opened(self) -> None:
        """A transaction on the books begins; only one is open at a time."""

    def locks(self, kind: str, *, after: Sequence[str]) -> None:
        """A transaction locks rows of `kind`, after it has locked rows of the kinds in `after`."""

    def books_written(
        self, orders: Sequence[ClaimOrder], written: Sequence[ClaimChanges | TreeChanges]
    ) -> None: ...

    def quotas_written(self, written: Sequence[Quota]) -> None: ...

    def requests_written(self, rows: Iterable[InstanceRow], hosts: Sequence[HostState]) -> None: ...

    def aggregates_written(self, written: Sequence[KeptAggregate]) -> None: ...

    def cell_written(self, rows: Sequence[Instance], forgotten: Sequence[InstanceId]) -> None: ...

    def cell_hosts_written(self, hosts: Sequence[CellHost]) -> None: ...

    def attempts_changed(self, attempts: Sequence[AttemptRecord]) -> None: ...

    def disk_written(self, order: BuildOrder) -> None:
        """A host begins to write an instance's disk."""

    def cannot_give(self, order: HostOrder, words: str) -> None:
        """A host is told to give an instance what it does not have, or what another instance has."""


# The errors that kit/sql/dialects.py makes of a database's errors.
_PROBLEMS: dict[str, tuple[type[Transient], str]] = {
    "deadlock": (Transient, "deadlock detected"),
    "serialisation_failure": (Transient, "could not serialize access due to concurrent update"),
    "lost_before_commit": (Unavailable, "connection was closed in the middle of operation"),
    "lost_after_commit": (Unavailable, "connection was closed in the middle of operation"),
    "database_away": (Unavailable, "cannot connect"),
}


async def reach_database(process: SimProcess) -> None:
    """Wait until the database answers, or raise if it cannot be reached. A dead process never gets there."""
    if process.is_dead:
        await asyncio.Event().wait()
    await process.until_awake()
    if slow_s := process.slow_s():
        await asyncio.sleep(slow_s)
    if asyncio.get_running_loop().time() < process.database_away_until_s:
        _raise(process, "database_away")


def fail_if_armed(process: SimProcess, *problems: str) -> None:
    """Raise the error of the first of these faults that is armed on the process."""
    for problem in problems:
        if process.take_armed(problem):
            _raise(process, problem)


def _raise(process: SimProcess, problem: str) -> NoReturn:
    process.fired(problem)
    kind, words = _PROBLEMS[problem]
    raise kind(f"database: {words}")


class FaultyTransaction(MemoryTransaction):
    def __init__(self, tables: Tables, process: SimProcess, observer: Any, *, writes: bool) -> None:
        super().__init__(tables, writes=writes)
        self.process = process
        self.observer = observer
        # Told to the observer once it has committed.
        self.told: list[Callable[[Any], None]] = []
        # What it has written of requests.
        self.rows: dict[InstanceId, InstanceRow] = {}
        self.hosts: list[HostState] = []
        # The rows of nodes that it has loaded and saved.
        self.loaded: dict[ProviderId, NodeRow] = {}
        self.saved: list[NodeRow] = []
        # Instances that have something to publish: by this transaction, since before, and in an outbox note.
        self.unsaid: set[InstanceId] = set()
        self.unsaid_before: set[InstanceId] = set()
        self.noted: set[InstanceId] = set()

    def requests_written(self, rows: Iterable[InstanceRow]) -> None:
        for row in rows:
            self.rows[row.id] = row
            if row.has_to_say and row.id not in self.unsaid_before:
                self.unsaid.add(row.id)

    def tell(self) -> None:
        observer = self.observer
        if self.rows or self.hosts:
            observer.requests_written(self.rows.values(), self.hosts)
        if self.saved:
            observer.saved(self.process, self.loaded, self.saved)
        for tell in self.told:
            tell(observer)


class FaultyDatabase(MemoryDatabase):
    """The database as one process reaches it."""

    def __init__(self, tables: Tables, process: SimProcess, observer: CommitObserver | NodesChecker) -> None:
        super().__init__(tables)
        self._process = process
        self._observer = observer

    @asynccontextmanager
    async def _one(self, *, writes: bool) -> AsyncIterator[FaultyTransaction]:
        process = self._process
        await reach_database(process)
        async with self.tables.queue:
            transaction = FaultyTransaction(self.tables, process, self._observer, writes=writes)
            try:
                yield transaction
                if writes:
                    assert transaction.unsaid <= transaction.noted, (
                        "a transaction writes an outbox note for everything it has to publish"
                    )
                    await process.point("before_commit")
                    fail_if_armed(process, "serialisation_failure", "lost_before_commit")
                await transaction.commit()
            except BaseException:
                await transaction.roll_back()
                raise
        if writes:
            transaction.tell()
            await process.until_awake()
            await process.point("after_commit")
            fail_if_armed(process, "lost_after_commit")


@contextmanager
def watched_stores(clock: Callable[[], datetime]) -> Iterator[None]:
    """The methods of stores that lock rows may fail, those for timers are points where a process may die, and those that write tell
    the observer what was committed. `clock` is that of the databases.
    """
    with ExitStack() as stack:
        stack.enter_context(replaced_in((claims, log, trees), "now", lambda _real: clock))
        for owner, name, watch in _WATCHES:
            stack.enter_context(replaced(owner, name, watch))
        yield


def _locks(real: Callable[..., Any]) -> Callable[..., Any]:
    async def lock(self: Any, *values: Any) -> Any:
        fail_if_armed(self._transaction.process, "deadlock")
        return await real(self, *values)

    return lock


def _is_timer(real: Callable[..., Any]) -> Callable[..., Any]:
    async def due(self: Any, *values: Any) -> Any:
        found = await real(self, *values)
        process = RUNNING.get()
        if found and process is not None:
            await process.point("in_timer")
        return found

    return due


def _cell_saved(real: Callable[..., Any]) -> Callable[..., Any]:
    async def save(self: Any, rows: Any, forgotten: Any, said: Any) -> Any:
        note = await real(self, rows, forgotten, said)
        if rows or forgotten:
            self._transaction.told.append(lambda observer: observer.cell_written(rows, forgotten))
        return note

    return save


def _cell_hosts_saved(real: Callable[..., Any]) -> Callable[..., Any]:
    async def save_hosts(self: Any, hosts: Any) -> None:
        await real(self, hosts)
        if hosts:
            self._transaction.told.append(lambda observer: observer.cell_hosts_written(hosts))

    return save_hosts


def _accepts(real: Callable[..., Any]) -> Callable[..., Any]:
    async def accept(self: Any, requests: Sequence[NewRequest]) -> Any:
        if any(_is_cursed(row) for request in requests for row in request.rows):
            raise Transient("database: this row is always refused")
        acceptances = await real(self, requests)
        for request, each in zip(requests, acceptances, strict=True):
            if isinstance(each, Known):
                self._transaction.rows |= {row.id: row for row in each.rows}
                self._transaction.requests_written([row for row in request.rows if row in each.rows])
        return acceptances

    return accept


def _is_cursed(row: InstanceRow) -> bool:
    """Whether the database refuses this row of an intruder's request. Half of these requests are refused at their
    first write, because of their name; the others at every write.
    """
    request = row.told.request_id.int
    return row.told.name.startswith(CURSED) or (request in CURSED_IDS and request % 2 == 1)


def _requests_locked(real: Callable[..., Any]) -> Callable[..., Any]:
    async def lock(self: Any, instances: Sequence[InstanceId]) -> Any:
        found = await real(self, instances)
        self._transaction.unsaid_before |= {row.id for row in found.values() if row.unsaid}
        return found

    return lock


def _requests_decided(real: Callable[..., Any]) -> Callable[..., Any]:
    async def decide(self: Any, rows: Sequence[InstanceRow]) -> Any:
        others = await real(self, rows)
        self._transaction.requests_written([row for row in rows if row.id not in others])
        return others

    return decide


def _requests_saved(real: Callable[..., Any]) -> Callable[..., Any]:
    async def save(self: Any, rows: Sequence[InstanceRow]) -> None:
        await real(self, rows)
        self._transaction.requests_written(rows)

    return save


def _events_applied(real: Callable[..., Any]) -> Callable[..., Any]:
    async def apply_events(self: Any, events: Sequence[CellEvent]) -> Any:
        told_of = [event.instance.id for event in events]
        before = await self.lock(told_of)
        applied = await real(self, events)
        after = await self.lock(told_of)
        self._transaction.rows |= {id_: row for id_, row in after.items() if row != before[id_]}
        return applied

    return apply_events


def _hosts_saved(real: Callable[..., Any]) -> Callable[..., Any]:
    async def save_hosts(self: Any, hosts: Sequence[HostState], at: Any) -> None:
        await real(self, hosts, at)
        self._transaction.hosts += hosts

    return save_hosts


def _aggregate_saved(real: Callable[..., Any]) -> Callable[..., Any]:
    async def save_aggregate(self: Any, aggregate: KeptAggregate) -> None:
        await real(self, aggregate)
        self._transaction.told.append(lambda observer: observer.aggregates_written([aggregate]))

    return save_aggregate


def _nodes_loaded(real: Callable[..., Any]) -> Callable[..., Any]:
    async def load(self: Any, ids: Any) -> Any:
        rows = await real(self, ids)
        self._transaction.loaded |= rows
        return rows

    return load


def _nodes_saved(real: Callable[..., Any]) -> Callable[..., Any]:
    async def save(self: Any, rows: Any) -> Any:
        saved = await real(self, rows)
        self._transaction.saved += saved.rows
        return saved

    return save


def _nodes_given(real: Callable[..., Any]) -> Callable[..., Any]:
    async def fetch(self: Any, transaction: Any, rows: Any, *shared: Any) -> Any:
        if self is not GIVE:
            return await real(self, transaction, rows, *shared)
        known = await transaction.run(members)
        given = await real(self, transaction, rows, *shared)
        moves = [NodeHandover(*row) for row in rows]
        transaction.told.append(
            lambda nodes: nodes.owners_changed(transaction.process, moves, owned_of(given), known)
        )
        return given

    return fetch


def _noted(real: Callable[..., Any]) -> Callable[..., Any]:
    async def note(self: Any, groups: Sequence[Sequence[InstanceRow]]) -> Any:
        self._transaction.noted |= {row.id for rows in groups for row in rows}
        return await real(self, groups)

    return note


def _books_opened(real: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, transaction: Any, *others: Any) -> None:
        real(self, transaction, *others)
        if isinstance(transaction, FaultyTransaction):
            _watch_books(self, transaction)

    return init


def _watch_books(books: Any, transaction: "FaultyTransaction") -> None:
    """Tell the observer which rows a transaction on the books locks, and what it has committed. Rows that it has locked before
    do not count again.
    """
    process, observer = transaction.process, transaction.observer
    observer.books_opened()
    locked: dict[str, set[object]] = {}
    orders: list[ClaimOrder] = []
    written: list[ClaimChanges | TreeChanges] = []
    quotas: list[Quota] = []

    def locks(name: str, kind: str, ids_of: Callable[[Any], Iterable[object]]) -> None:
        real = getattr(books, name)

        async def lock(keys: Any) -> Any:
            fail_if_armed(process, "deadlock")
            if new := {*ids_of(keys)} - locked.get(kind, set()):
                observer.locks(kind, after=tuple(locked))
                locked.setdefault(kind, set()).update(new)
            if kind == "consumers":
                orders[:] = [each for each in keys.owned if isinstance(each, ClaimOrder)]
            return await real(keys)

        setattr(books, name, lock)

    def writes(name: str, note: Callable[[Any], None]) -> None:
        real = getattr(books, name)

        async def write(changes: Any) -> None:
            note(changes)
            await real(changes)

        setattr(books, name, write)

    locks("lock_claims", "consumers", lambda keys: keys.consumers)
    locks("lock_quotas", "quotas", lambda keys: keys[0])
    locks("lock_trees", "trees", lambda keys: keys.trees)
    locks("lock_names", "names", lambda keys: keys["classes"] | keys["traits"])
    writes("write_claims", written.append)
    writes("write_trees", written.append)
    writes("write_quotas", quotas.extend)

    def tell(observer: CommitObserver) -> None:
        if quotas:
            observer.quotas_written(quotas)
        observer.books_written(orders, written)

    transaction.told.append(tell)


def _marks(real: Callable[..., Any]) -> Callable[..., Any]:
    async def mark(self: Any, *values: Any) -> Any:
        if (process := RUNNING.get()) is not None:
            await process.point("in_timer")
        return await real(self, *values)

    return mark


_WATCHES: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (ConductorTransaction, "load", _locks),
    (ConductorTransaction, "take_due", _locks),
    (ConductorTransaction, "take_due", _is_timer),
    (ConductorTransaction, "save", _cell_saved),
    (ConductorTransaction, "save_hosts", _cell_hosts_saved),
    (SchedulerTransaction, "accept", _accepts),
    (SchedulerTransaction, "lock", _requests_locked),
    (SchedulerTransaction, "decide", _requests_decided),
    (SchedulerTransaction, "save", _requests_saved),
    (SchedulerTransaction, "apply_events", _events_applied),
    (SchedulerTransaction, "save_hosts", _hosts_saved),
    (SchedulerTransaction, "save_aggregate", _aggregate_saved),
    (SchedulerTransaction, "note", _noted),
    (PlacementTransaction, "__init__", _books_opened),
    (ChangeFeed, "mark", _marks),
    (IronicTransaction, "load", _locks),
    (IronicTransaction, "load", _nodes_loaded),
    (IronicTransaction, "save", _nodes_saved),
    (RowStatement, "fetch", _nodes_given),
    (IronicStore, "due", _is_timer),
    (SchedulerStore, "overdue", _is_timer),
    (SchedulerStore, "unconfirmed", _is_timer),
    *(
        (SchedulerTransaction, name, _locks)
        for name in ("accept", "lock", "lock_hosts", "save_loads", "next_waiting")
    ),
)
