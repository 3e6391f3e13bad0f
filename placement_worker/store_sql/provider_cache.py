"""A cache of providers: their internal id, their tree, and their inventories.

Most claims of a batch go to providers of a recent batch, and of such a provider only one row has changed since, the one
with its usage. So these two things are taken from the cache, and everything else is read:

- The internal id of a provider never changes, and no other provider ever gets it.
- Inventories and cell change only together with the column `base`, the revision at which they were last written. Each batch
  reads `base`, and reads them again if it differs from the cached one.

The cached root only says what to lock. After locking, the batch reads the rows. If a provider is in a tree that is not
locked, its entry is dropped and the batch starts again.

A transaction keeps what it reads to itself until it commits. Its writes may be rolled back, and then the same ids and
bases may come again with other contents.

Of providers whose usage this process wrote last, the whole row is remembered. That is a guess: the statement that relies on it
compares it with the row, and writes nothing if they differ (claim_statements.py).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from bus.messages.placement import LogPosition, MembersPage, RevisionsPage, SnapshotPage
from engine.capacity import InventoryLimits, limits_in
from engine.inventories import GroupMember, InventoryState, ProviderId
from kit.sql import Transaction, among
from placement_worker.store_sql.log import NOTHING_SEEN, Snapshot, come_to, read_log, unseen_by
from placement_worker.store_sql.names import CachedVocabulary, id_of
from placement_worker.store_sql.providers import read_states
from placement_worker.tables import change_log, consumers, feed, providers, server_groups

# Read providers in pages: all of them, those that changed since a cursor, and their revisions; and members of groups.


async def snapshot_page(
    transaction: Transaction, vocabulary: CachedVocabulary, after: int, limit: int
) -> SnapshotPage:
    following = await transaction.run(revisions_page, after, limit)
    published, cursor = await transaction.run(_reach)
    return SnapshotPage(
        providers=await read_states(transaction, vocabulary, following.internals),
        published=published,
        next=following.next,
        cursor=cursor,
    )


async def changes_page(
    transaction: Transaction, vocabulary: CachedVocabulary, since: str, after: int, limit: int
) -> SnapshotPage | None:
    read = await read_log(transaction, since)
    if read is None:
        return None
    touched = {*read.entry.providers, *read.entry.used}
    following = sorted(internal for internal in touched if internal > after)
    page = following[:limit]
    published, _ = await transaction.run(_reach)
    return SnapshotPage(
        providers=await read_states(transaction, vocabulary, page),
        published=published,
        next=page[-1] if len(following) > limit else None,
        since=since,
        cursor=read.cursor,
        gone=read.entry.gone,
        joined=read.entry.joined,
        left=read.entry.left,
    )


def revisions_page(connection: Connection, after: int, limit: int) -> RevisionsPage:
    # One row more than requested tells whether there is another page.
    rows = connection.execute(
        sa.select(providers.c.id, providers.c.revision)
        .where(providers.c.id > after)
        .order_by(providers.c.id)
        .limit(limit + 1)
    ).all()
    page = rows[:limit]
    return RevisionsPage(
        internals=tuple([row.id for row in page]),
        revisions=tuple([row.revision for row in page]),
        next=page[-1].id if len(rows) > limit else None,
    )


def members_page(connection: Connection, after: int, limit: int) -> MembersPage:
    number = consumers.c.id
    rows = connection.execute(
        sa.select(number, consumers.c.uuid, consumers.c.server_group, consumers.c.attempt, consumers.c.host)
        .where(consumers.c.server_group.is_not(None), consumers.c.host.is_not(None), number > after)
        # Most consumers are in no group: an index of all ids would be walked in vain.
        .order_by(number + 0)
        .limit(limit + 1)
    ).all()
    page = rows[:limit]
    return MembersPage(
        members=tuple(
            [
                GroupMember(group=row.server_group, consumer=row.uuid, attempt=row.attempt, host=row.host)
                for row in page
            ]
        ),
        next=page[-1].id if len(rows) > limit else None,
    )


def prune_groups(connection: Connection) -> int:
    """Delete server groups without members.

    They are locked first, and then looked at again: a claim may have joined one while the first statement waited.
    """
    is_empty = ~sa.exists().where(consumers.c.server_group == server_groups.c.uuid)
    empty = connection.scalars(
        sa.select(server_groups.c.uuid).where(is_empty).with_for_update(skip_locked=True)
    ).all()
    if not empty:
        return 0
    return connection.execute(
        sa.delete(server_groups).where(among(connection, server_groups.c.uuid, empty), is_empty)
    ).rowcount


def prune_log(connection: Connection, logged_before: datetime) -> int:
    """Delete the log rows that are published and older than this time, and note how far the log is pruned."""
    published, forgotten = connection.execute(sa.select(feed.c.cursor, feed.c.forgotten)).one()
    on_postgresql = connection.dialect.name == "postgresql"
    number = (
        sa.cast(sa.cast(change_log.c.written_by, sa.String), sa.BigInteger)
        if on_postgresql
        else change_log.c.position
    )
    pruned = connection.scalars(
        sa.delete(change_log)
        .where(change_log.c.at < logged_before, ~unseen_by(connection, published))
        .returning(number)
    ).all()
    if pruned:
        last = max(pruned)
        reached = (
            _forgotten_by(published, forgotten, last) if on_postgresql else max(last, int(forgotten or 0))
        )
        connection.execute(sa.update(feed).values(forgotten=str(reached)))
    return len(pruned)


def _forgotten_by(published: str, forgotten: str, last: int) -> Snapshot:
    """The snapshot that covers the transactions of all log rows pruned so far; `last` is the last one of those just
    pruned.

    It is the publisher's snapshot, ended after those transactions: only rows that the publisher has seen are pruned.
    """
    seen, before = Snapshot.of(published), Snapshot.of(forgotten or NOTHING_SEEN)
    assert seen is not None
    assert before is not None
    return seen.before(max(before.end, last + 1))


def _reach(connection: Connection) -> tuple[LogPosition, str]:
    """How far the log is published, and a cursor that covers everything this transaction sees of it."""
    term, position = connection.execute(sa.select(feed.c.term, feed.c.position)).one()
    return LogPosition(term=term, position=position), come_to(connection)


# About 1 kB each; a larger cloud reads some of them again.
PROVIDERS_MAX = 100_000

# internal id, public id, the root's internal id, the root's public id
FoundRow = Sequence[Any]
# id, root's id, base, generation, shape, used, consumers
UsageRow = tuple[int, int, int, int, int, str, int]
# Internal id, cell, and for each inventory (or NULLs, if there is none): class id, total, reserved, min_unit, max_unit,
# step_size, allocation_ratio.
StockRow = tuple[Any, ...]
NO_BASE = -1


class CachedProvider(Struct, frozen=True, gc=False):
    """A provider as it was at the revision `base`. If only its ids were read, `base` is NO_BASE.

    Everything else is then not known. `classes` has the names of the resource classes of its inventories, by class id.
    """

    number: int
    id: ProviderId
    root: int
    base: int = NO_BASE
    cell: str = ""
    classes: Mapping[int, str] = {}
    limits: Mapping[str, InventoryLimits] = {}


class ProviderCache:
    """The providers that committed transactions have read, by internal id and by public id.

    Public ids are keys as integers, since Python computes the hash of a UUID at each lookup.
    """

    def __init__(self) -> None:
        self.by_number: dict[int, CachedProvider] = {}
        self.by_id: dict[int, CachedProvider] = {}
        # By internal id: rows as this process wrote them last.
        self.usages: dict[int, UsageRow] = {}

    def forget(self, known: CachedProvider) -> None:
        self.by_number.pop(known.number, None)
        self.by_id.pop(known.id.int, None)
        self.usages.pop(known.number, None)

    def keep(self, learned: Collection[CachedProvider]) -> None:
        if len(self.by_number) + len(learned) > PROVIDERS_MAX:
            self.by_number.clear()
            self.by_id.clear()
            self.usages.clear()
        for known in learned:
            self.by_number[known.number] = known
            self.by_id[known.id.int] = known


class CachedProviders:
    """The cache of providers as one transaction sees it: an entry that it has used stays, even if other transactions drop
    it.
    """

    def __init__(self, known: ProviderCache) -> None:
        self._known = known
        self.usages = known.usages
        self._seen: dict[int, CachedProvider] = {}
        self._learned: dict[int, CachedProvider] = {}

    def by_id(self, provider: int) -> CachedProvider | None:
        """The cached provider with this public id (as an integer), or None.

        Providers that this transaction itself has just looked up are not found here, only by `by_number`.
        """
        return self._see(self._known.by_id.get(provider))

    def by_number(self, number: int) -> CachedProvider | None:
        return self._seen.get(number) or self._see(self._known.by_number.get(number))

    def of(self, number: int) -> CachedProvider:
        """The cached provider with this internal id, which this transaction must have looked up before."""
        return self._seen[number]

    def found(self, rows: Iterable[FoundRow]) -> None:
        """Add providers, and their roots, that were looked up in the database. Afterwards `by_number` finds them."""
        for number, uuid, root, root_uuid in rows:
            for one, id_ in ((number, uuid), (root, root_uuid)):
                if self.by_number(one) is None:
                    self._learn(CachedProvider(one, ProviderId(id_of(id_)), root))

    def read(self, bases: Mapping[int, int], rows: Iterable[StockRow], names: Mapping[int, str]) -> None:
        """Cache the cells and inventories of providers that were just read. `bases` has the revision at which each
        provider's were last written: while a provider has that `base`, they hold.
        """
        cells: dict[int, str] = {}
        stocks: dict[int, dict[int, InventoryState]] = {number: {} for number in bases}
        for number, cell, class_id, *stock in rows:
            cells[number] = cell
            if class_id is not None:
                stocks[number][class_id] = InventoryState(*stock)
        for number, base in bases.items():
            known = self._seen[number]
            classes = {class_id: names[class_id] for class_id in stocks[number]}
            limits = limits_in({classes[class_id]: stock for class_id, stock in stocks[number].items()})
            self._learn(
                CachedProvider(
                    number,
                    *(known.id, known.root, base, cells[number], classes, limits),
                )
            )

    def forget(self, known: CachedProvider) -> None:
        self._seen.pop(known.number, None)
        self._learned.pop(known.number, None)
        self._known.forget(known)

    def committed(self) -> None:
        if self._learned:
            self._known.keep(self._learned.values())

    def _see(self, known: CachedProvider | None) -> CachedProvider | None:
        """Use a cached provider in this transaction. None if the provider or its root is not cached."""
        if known is None or (known.root != known.number and self.by_number(known.root) is None):
            return None
        return self._seen.setdefault(known.number, known)

    def _learn(self, known: CachedProvider) -> None:
        self._seen[known.number] = self._learned[known.number] = known
