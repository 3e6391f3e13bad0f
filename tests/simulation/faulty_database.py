"""A database in memory that injects faults where a transaction begins and ends: points where the process may die, and errors of
databases. Each commit is reported to the checkers of the process's cloud.

Rows outlive processes. If a process dies before its commit, cancellation undoes the transaction.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

from sqlalchemy import Connection

from cell_conductor.store_sql import ConductorTransaction
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
from tests.planted.replacing import around, replaced, replaced_in
from tests.simulation.faults import CURSED, CURSED_IDS
from tests.simulation.process import RUNNING, SimProcess
from tests.sqlite_memory import MemoryDatabase, MemoryTransaction, Tables

if TYPE_CHECKING:
    from engine.inventories import ProviderId
    from ironic_sync.core.rows import NodeRow


P = ParamSpec("P")
T = TypeVar("T")
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
    def __init__(self, tables: Tables, process: SimProcess, *, writes: bool) -> None:
        super().__init__(tables, writes=writes)
        self.process = process
        # Told to the checkers once it has committed.
        self.told: list[Callable[[], None]] = []
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
        cloud = self.process.cloud
        if self.rows or self.hosts:
            cloud.requests_written(self.rows.values(), self.hosts)
        if self.saved:
            cloud.nodes.saved(self.process, self.loaded, self.saved)
        for tell in self.told:
            tell()


class KeeperTransaction(FaultyTransaction):
    """Most statements of a keeper lock rows."""

    async def run(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        fail_if_armed(self.process, "deadlock")
        return await super().run(work, *args, **kwargs)

    def tell(self) -> None:
        self.process.cloud.keeping.committed()


class FaultyDatabase(MemoryDatabase):
    """The database as one process reaches it."""

    transaction: type[FaultyTransaction] = FaultyTransaction

    def __init__(self, tables: Tables, process: SimProcess) -> None:
        super().__init__(tables)
        self._process = process

    @asynccontextmanager
    async def _one(self, *, writes: bool) -> AsyncIterator[FaultyTransaction]:
        process = self._process
        await reach_database(process)
        async with self.tables.queue:
            transaction = self.transaction(self.tables, process, writes=writes)
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


class KeeperDatabase(FaultyDatabase):
    transaction = KeeperTransaction


@contextmanager
def watched_stores(clock: Callable[[], datetime]) -> Iterator[None]:
    """The methods of stores that lock rows may fail, those for timers are points where a process may die, and those that write tell
    the checkers what was committed. `clock` is that of the databases.
    """
    with ExitStack() as stack:
        stack.enter_context(replaced_in((claims, log, trees), "now", lambda _real: clock))
        for owner, name, watch in _WATCHES:
            stack.enter_context(replaced(owner, name, around(watch)))
        yield


async def _locks(real: Any, self: Any, *values: Any) -> Any:
    fail_if_armed(self._transaction.process, "deadlock")
    return await real(self, *values)


async def _is_timer(real: Any, self: Any, *values: Any) -> Any:
    found = await real(self, *values)
    process = RUNNING.get()
    if found and process is not None:
        await process.point("in_timer")
    return found


async def _cell_saved(real: Any, self: Any, rows: Any, forgotten: Any, said: Any) -> Any:
    note = await real(self, rows, forgotten, said)
    if rows or forgotten:
        transaction = self._transaction
        transaction.told.append(lambda: transaction.process.cloud.cells.written(rows, forgotten))
    return note


async def _cell_hosts_saved(real: Any, self: Any, hosts: Any) -> None:
    await real(self, hosts)
    for host in hosts:
        transaction = self._transaction
        transaction.told.append(partial(transaction.process.cloud.hosts.set_in_cell, host))


async def _accepts(real: Any, self: Any, requests: Sequence[NewRequest]) -> Any:
    if any(_is_cursed(row) for request in requests for row in request.rows):
        raise Transient("database: this row is always refused")
    acceptances = await real(self, requests)
    for request, each in zip(requests, acceptances, strict=True):
        if isinstance(each, Known):
            self._transaction.rows |= {row.id: row for row in each.rows}
            self._transaction.requests_written([row for row in request.rows if row in each.rows])
    return acceptances


def _is_cursed(row: InstanceRow) -> bool:
    """Whether the database refuses this row of an intruder's request. Half of these requests are refused at their
    first write, because of their name; the others at every write.
    """
    request = row.told.request_id.int
    return row.told.name.startswith(CURSED) or (request in CURSED_IDS and request % 2 == 1)


async def _requests_locked(real: Any, self: Any, instances: Sequence[InstanceId]) -> Any:
    found = await real(self, instances)
    self._transaction.unsaid_before |= {row.id for row in found.values() if row.unsaid}
    return found


async def _requests_decided(real: Any, self: Any, rows: Sequence[InstanceRow]) -> Any:
    others = await real(self, rows)
    self._transaction.requests_written([row for row in rows if row.id not in others])
    return others


async def _requests_saved(real: Any, self: Any, rows: Sequence[InstanceRow]) -> None:
    await real(self, rows)
    self._transaction.requests_written(rows)


async def _events_applied(real: Any, self: Any, events: Sequence[CellEvent]) -> Any:
    told_of = [event.instance.id for event in events]
    before = await self.lock(told_of)
    applied = await real(self, events)
    after = await self.lock(told_of)
    self._transaction.rows |= {id_: row for id_, row in after.items() if row != before[id_]}
    return applied


async def _hosts_saved(real: Any, self: Any, hosts: Sequence[HostState], at: Any) -> None:
    await real(self, hosts, at)
    self._transaction.hosts += hosts


async def _aggregate_saved(real: Any, self: Any, aggregate: KeptAggregate) -> None:
    await real(self, aggregate)
    transaction = self._transaction
    transaction.told.append(lambda: transaction.process.cloud.demands.aggregates_written([aggregate]))


async def _nodes_loaded(real: Any, self: Any, ids: Any) -> Any:
    rows = await real(self, ids)
    self._transaction.loaded |= rows
    return rows


async def _nodes_saved(real: Any, self: Any, rows: Any) -> Any:
    saved = await real(self, rows)
    self._transaction.saved += saved.rows
    return saved


async def _nodes_given(real: Any, self: Any, transaction: Any, rows: Any, *shared: Any) -> Any:
    if self is not GIVE:
        return await real(self, transaction, rows, *shared)
    known = await transaction.run(members)
    given = await real(self, transaction, rows, *shared)
    moves, process = [NodeHandover(*row) for row in rows], transaction.process
    transaction.told.append(
        lambda: process.cloud.nodes.owners_changed(process, moves, owned_of(given), known)
    )
    return given


async def _noted(real: Any, self: Any, groups: Sequence[Sequence[InstanceRow]]) -> Any:
    self._transaction.noted |= {row.id for rows in groups for row in rows}
    return await real(self, groups)


def _books_opened(real: Any, self: Any, transaction: Any, *others: Any) -> None:
    real(self, transaction, *others)
    if isinstance(transaction, FaultyTransaction):
        _watch_books(self, transaction)


def _watch_books(books: Any, transaction: "FaultyTransaction") -> None:
    """Tell the checkers which rows a transaction on the books locks, and what it has committed. Rows that it has locked before
    do not count again.
    """
    process, cloud = transaction.process, transaction.process.cloud
    cloud.write_oracle.opened()
    locked: dict[str, set[object]] = {}
    orders: list[ClaimOrder] = []
    written: list[ClaimChanges | TreeChanges] = []
    quotas: list[Quota] = []

    def locks(name: str, kind: str, ids_of: Callable[[Any], Iterable[object]]) -> None:
        real = getattr(books, name)

        async def lock(keys: Any) -> Any:
            fail_if_armed(process, "deadlock")
            if new := {*ids_of(keys)} - locked.get(kind, set()):
                cloud.locks(kind, after=tuple(locked))
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

    def tell() -> None:
        cloud.books.quotas.limits_written(quotas)
        cloud.books_written(orders, written)

    transaction.told.append(tell)


async def _marks(real: Any, self: Any, *values: Any) -> Any:
    if (process := RUNNING.get()) is not None:
        await process.point("in_timer")
    return await real(self, *values)


_WATCHES: tuple[tuple[type, str, Callable[..., Any]], ...] = (
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
