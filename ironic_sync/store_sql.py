"""Nodes and daemons in SQL: on PostgreSQL for a ring of daemons, on SQLite for everything on one machine.

The tables must exist: `kit.sql.upgrade(url, "ironic_sync")` makes them. On PostgreSQL, a batch is a constant number
of statements.
"""

import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Literal
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import Struct, structs
from sqlalchemy import BigInteger, Boolean, Column, Connection, String

from engine.inventories import ProviderId
from ironic_sync.core.ring import Member, NodeHandover, Owned
from ironic_sync.core.rows import Alarms, NodeRow
from ironic_sync.tables import ironic_daemons, ironic_nodes
from kit.clock import SECOND_US, microseconds, moment
from kit.errors import Transient
from kit.sql import (
    POOL_SIZE,
    Database,
    DatabaseSettings,
    PostgresDatabase,
    RowColumns,
    Transaction,
    Values,
    among,
    insert,
    open_database,
    read_once,
    reads,
    write_once,
)

# Values that a daemon's store takes and gives.
#
# A row is written by compare-and-set on its version, so that any daemon may apply what it heard. An owner changes by
# compare-and-set on owner and epoch, and that too counts the version up: a daemon that lost a node cannot write what it
# read before. Leases are measured by the database's clock alone.


# A row may need a report or a read (`needs_report`, `needs_read` in core/rows.py).
Need = Literal["report", "read"]
# How long a daemon that has gone is still shown.
FORGOTTEN_AFTER = timedelta(days=1)
DAEMON_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}")


class DaemonNameTaken(Transient):
    """Another process has a lease under this daemon's name: it may have been killed, and then its lease runs out."""


class SavedRows(Struct, frozen=True):
    """Rows as they are stored now, and the nodes whose rows another daemon wrote first."""

    rows: tuple[NodeRow, ...] = ()
    lost: tuple[ProviderId, ...] = ()


class RingView(Struct, frozen=True, kw_only=True):
    """The parts of the ring that a daemon reads several times a second: members, owners, and its own unread nodes.

    All are read at one moment.
    """

    # In the order of their names, those whose leases are over too.
    members: tuple[Member, ...]
    # Every name that is the owner of a node; empty for nodes that no daemon has taken.
    owner_names: tuple[str, ...]
    # A page of the daemon's own nodes that it must read: those that others gave it are among them.
    unread: tuple[Owned, ...]


def check_name(name: str) -> None:
    if not DAEMON_NAME.fullmatch(name):
        raise ValueError(
            f"the daemon's name is {name!r}: it must be letters, digits, '.', '-' and '_', begin with a letter or digit, "
            "and have at most 63 characters"
        )


def name_taken(name: str, holder: Member) -> DaemonNameTaken:
    return DaemonNameTaken(
        f"daemon name {name!r} is taken: incarnation {holder.incarnation} has a lease for another "
        f"{holder.lease_left_s:.1f} s; give each daemon a name of its own. If that process is gone, its lease runs out"
    )


# The members of the ring as rows: written once for both databases. Their leases go by the database's clock.


_CLOCKS = {
    # Not that of the transaction's begin: a transaction may have waited since.
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
    # Of this machine, as that of all processes which share the file.
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}


def join(connection: Connection, name: str, incarnation: str, lease_s: float) -> None:
    at_us = _now_us(connection)
    forgotten_us = int(FORGOTTEN_AFTER.total_seconds()) * SECOND_US
    connection.execute(sa.delete(ironic_daemons).where(ironic_daemons.c.lease_ends_us < at_us - forgotten_us))
    new = insert(connection, ironic_daemons).values(
        name=name,
        incarnation=incarnation,
        lease_ends_us=at_us + _us(lease_s),
        is_draining=False,
        joined_us=at_us,
    )
    written = {column: new.excluded[column] for column in ironic_daemons.columns.keys() if column != "name"}  # noqa: SIM118 - no mapping
    upsert = new.on_conflict_do_update(
        index_elements=[ironic_daemons.c.name],
        set_=written,
        where=sa.or_(ironic_daemons.c.lease_ends_us <= at_us, ironic_daemons.c.incarnation == incarnation),
    )
    if connection.scalar(upsert.returning(ironic_daemons.c.name)) is None:
        raise name_taken(name, next(each for each in members(connection) if each.name == name))


def renew(connection: Connection, name: str, incarnation: str, lease_s: float) -> bool:
    at_us = _now_us(connection)
    renewed = sa.update(ironic_daemons).where(
        ironic_daemons.c.name == name,
        ironic_daemons.c.incarnation == incarnation,
        ironic_daemons.c.lease_ends_us > at_us,
    )
    return connection.execute(renewed.values(lease_ends_us=at_us + _us(lease_s))).rowcount > 0


def leave(connection: Connection, name: str, incarnation: str) -> None:
    connection.execute(
        sa.delete(ironic_daemons).where(
            ironic_daemons.c.name == name, ironic_daemons.c.incarnation == incarnation
        )
    )


def set_draining(
    connection: Connection,
    name: str,
    draining: bool,  # noqa: FBT001 - run by its position
    incarnation: str | None,
) -> bool:
    is_it = (
        ironic_daemons.c.name == name,
        ironic_daemons.c.incarnation == (incarnation or ironic_daemons.c.incarnation),
    )
    return (
        connection.execute(sa.update(ironic_daemons).where(*is_it).values(is_draining=draining)).rowcount > 0
    )


def members(connection: Connection) -> tuple[Member, ...]:
    left_us = ironic_daemons.c.lease_ends_us - _now_us(connection)
    query = sa.select(
        ironic_daemons.c.name,
        ironic_daemons.c.incarnation,
        left_us,
        ironic_daemons.c.is_draining,
        ironic_daemons.c.joined_us,
    ).order_by(ironic_daemons.c.name)
    found = (
        Member(
            name=name,
            incarnation=incarnation,
            lease_left_s=left_us / SECOND_US,
            is_draining=is_draining,
            joined_at=moment(joined_us),
        )
        for name, incarnation, left_us, is_draining, joined_us in connection.execute(query)
    )
    # By the bytes of their names, whatever order the database has for texts.
    return tuple(sorted(found, key=lambda each: each.name))


def _us(seconds: float) -> int:
    return round(seconds * SECOND_US)


def _now_us(connection: Connection) -> sa.ColumnElement[Any]:
    return sa.literal_column(_CLOCKS[connection.dialect.name], sa.BigInteger())


# A node's columns, the statements on nodes that run most often, and how a node's row is encoded.


_READ = ("owner", "epoch", "version", "body")
_ROW = RowColumns(
    ironic_nodes,
    *("id", "cell", "owner", "epoch", "version", "holds_instance", "due_us", "needs_report", "needs_read"),
    *("is_older", "unasked_us", "body"),
)
LOAD = RowColumns(ironic_nodes, *_READ).lock()
ADD = _ROW.insert("ON CONFLICT (id) DO NOTHING", returning=("id",), version="new.version + 1")
# A row that was not loaded in this transaction is locked by this; if another daemon writes it first, its version is
# looked at again.
REPLACE = _ROW.update("kept.version = new.version", returning=("id",), version="kept.version + 1")

# PostgreSQL leaves out rows that another transaction has locked, until the next look: a daemon that stands still in a
# transaction must not keep the others from all its nodes. On SQLite a writer has the file to itself.
_MOVE = RowColumns(
    ironic_nodes,
    *("id", "owner", "epoch"),
    *(Column("to_owner", String), Column("only_free", Boolean), Column("above", BigInteger)),
)
GIVE = _MOVE.statement(
    f"""
    WITH moving AS MATERIALIZED (
        SELECT kept.id, new.to_owner, new.above
        FROM {_MOVE.new}
        CROSS JOIN LATERAL (
            SELECT id FROM ironic_nodes
            WHERE id = new.id AND owner = new.owner AND epoch = new.epoch AND NOT (new.only_free AND holds_instance)
            FOR UPDATE SKIP LOCKED
        ) AS kept
    )
    UPDATE ironic_nodes AS node
    SET owner = moving.to_owner, epoch = greatest(node.epoch, moving.above) + 1, version = node.version + 1,
        needs_read = true
    FROM moving
    WHERE node.id = ANY (ARRAY[moving.id])
    RETURNING node.id, node.owner, node.epoch, node.holds_instance
    """,  # noqa: S608 - of constants
    """
    UPDATE ironic_nodes SET owner = ?4, epoch = max(epoch, ?6) + 1, version = version + 1, needs_read = 1
    WHERE id = ?1 AND owner = ?2 AND epoch = ?3 AND NOT (?5 AND holds_instance)
    RETURNING id, owner, epoch, holds_instance
    """,
    returning=("id", "owner", "epoch", "holds_instance"),
)
_VERSION = RowColumns(ironic_nodes, "id", "version")
FORGET = _VERSION.statement(
    f"""
    WITH old AS MATERIALIZED (
        SELECT kept.id
        FROM {_VERSION.new}
        CROSS JOIN LATERAL (
            SELECT id FROM ironic_nodes WHERE id = new.id AND version = new.version FOR UPDATE SKIP LOCKED
        ) AS kept
    )
    DELETE FROM ironic_nodes USING old WHERE ironic_nodes.id = old.id
    """,  # noqa: S608
    "DELETE FROM ironic_nodes WHERE id = ? AND version = ?",
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(NodeRow).decode


def values(row: NodeRow) -> Values:
    """The values of a row's columns. The version is the one that was read."""
    due_at = row.due_at
    return (
        row.id,
        row.cell,
        row.owner,
        row.epoch,
        row.version,
        row.holds_instance,
        microseconds(due_at) if due_at else None,
        row.needs_report,
        row.needs_read,
        row.older_than is not None,
        None if row.unasked_at is None else microseconds(row.unasked_at),
        # These three are in columns alone, since a node changes its owner without its body.
        _encode(structs.replace(row, owner="", epoch=0, version=0)),
    )


def row_of(stored: Values) -> NodeRow:
    """The row, from its owner, epoch, version and body."""
    owner, epoch, version, body = stored
    return structs.replace(_decode(body), owner=owner, epoch=epoch, version=version)


def rows_of(stored: Iterable[Values]) -> tuple[NodeRow, ...]:
    return tuple(map(row_of, stored))


def owned_of(found: Iterable[Values]) -> tuple[Owned, ...]:
    """The owners of nodes, from rows of id, owner, epoch and whether the node holds an instance."""
    return tuple(
        Owned(ProviderId(id_), owner, epoch, bool(holds_instance))
        for id_, owner, epoch, holds_instance in found
    )


# Queries that take no lock, shared by both databases.


_ROWS = sa.select(ironic_nodes.c.owner, ironic_nodes.c.epoch, ironic_nodes.c.version, ironic_nodes.c.body)
_OWNED = sa.select(
    ironic_nodes.c.id, ironic_nodes.c.owner, ironic_nodes.c.epoch, ironic_nodes.c.holds_instance
)
_VERSIONS = sa.select(ironic_nodes.c.id, ironic_nodes.c.version)
_NEEDS = {"report": ironic_nodes.c.needs_report, "read": ironic_nodes.c.needs_read}
# From one name to the next by the index: it costs as much as there are names, not as there are nodes.
_NAMES = sa.text(
    """
    WITH RECURSIVE names (owner) AS (
        SELECT min(owner) FROM ironic_nodes
        UNION ALL
        SELECT (SELECT min(owner) FROM ironic_nodes WHERE owner > names.owner) FROM names
        WHERE names.owner IS NOT NULL
    )
    SELECT owner FROM names WHERE owner IS NOT NULL
    """
)


def read(connection: Connection, ids: Collection[ProviderId]) -> tuple[NodeRow, ...]:
    return rows_of(
        connection.execute(_ROWS.where(among(connection, ironic_nodes.c.id, ids)).order_by(ironic_nodes.c.id))
    )


def page_of(
    connection: Connection,
    owner: str,
    limit: int,
    after: ProviderId | None = None,
    *,
    needs: Need | None = None,
) -> tuple[NodeRow, ...]:
    return rows_of(connection.execute(_page(_ROWS, owner, limit, after, needs)))


def _page(
    of: sa.Select[Any], owner: str, limit: int, after: ProviderId | None, needs: Need | None
) -> sa.Select[Any]:
    query = of.where(ironic_nodes.c.owner == owner).order_by(ironic_nodes.c.id).limit(limit)
    if needs is not None:
        query = query.where(_NEEDS[needs])
    return query if after is None else query.where(ironic_nodes.c.id > after)


def due(
    connection: Connection, owner: str, now: datetime, beyond: datetime, limit: int
) -> tuple[NodeRow, ...]:
    is_due = sa.or_(ironic_nodes.c.due_us <= microseconds(now), ironic_nodes.c.due_us > microseconds(beyond))
    # SQLite takes the partial index only where its condition stands in so many words.
    query = _ROWS.where(ironic_nodes.c.owner == owner, ironic_nodes.c.due_us.is_not(None), is_due)
    return rows_of(connection.execute(query.order_by(ironic_nodes.c.due_us, ironic_nodes.c.id).limit(limit)))


def owners(connection: Connection, names: Collection[str] | None = None) -> tuple[Owned, ...]:
    query = _OWNED.order_by(ironic_nodes.c.id)
    if names is not None:
        query = query.where(among(connection, ironic_nodes.c.owner, names))
    return owned_of(connection.execute(query))


def versions(connection: Connection) -> dict[ProviderId, int]:
    """The version of each node's row: a reader that kept the rows reads only those again that have another one."""
    return {ProviderId(id_): version for id_, version in connection.execute(_VERSIONS)}


def alarms(connection: Connection, since: datetime) -> Alarms:
    has_order = ironic_nodes.c.unasked_us > microseconds(since)
    found = sa.select(sa.func.count().filter(ironic_nodes.c.is_older), sa.func.count().filter(has_order))
    older, unasked = connection.execute(found.where(sa.or_(ironic_nodes.c.is_older, has_order))).one()
    return Alarms(older, unasked)


def unread_of(connection: Connection, owner: str, limit: int, after: ProviderId | None) -> tuple[Owned, ...]:
    return owned_of(connection.execute(_page(_OWNED, owner, limit, after, "read")))


def owner_names(connection: Connection) -> tuple[str, ...]:
    return tuple(sorted(connection.scalars(_NAMES)))


def has_tables(connection: Connection) -> bool:
    """Do the tables exist? `moor db upgrade` creates them."""
    return sa.inspect(connection).has_table(ironic_nodes.name)


class _Leasing(DatabaseSettings, frozen=True):
    # A daemon that stands still inside a transaction is thrown out of it before its lease is over.
    IDLE_IN_TRANSACTION_S = 5.0


SETTINGS = _Leasing()
# For leases: one renews while another looks.
LEASE_SESSIONS = 2
# All daemons lock rows in the order of these ids.
_by_id = attrgetter("id")


class IronicTransaction:
    """One transaction on the nodes' rows: all of its writes take effect, or none."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def load(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        """The rows that exist, locked until the transaction ends. Load once in a transaction: rows are locked in the
        order of their ids, and two transactions that go back in that order may wait for each other.
        """
        return {row.id: row for row in map(row_of, await LOAD.fetch(self._transaction, ids))}

    async def save(self, rows: Sequence[NodeRow]) -> SavedRows:
        """Save rows. Each has the version that was read, 0 for a new row, and is stored with the next version.

        A row that another daemon wrote since is left as it is, and its id is in `lost`.
        """
        assert len({row.id for row in rows}) == len(rows), "a row is saved twice at once"
        ordered = sorted(rows, key=_by_id)
        written = set[UUID]()
        for statement, are_new in ((REPLACE, False), (ADD, True)):
            if some := [values(row) for row in ordered if (not row.version) == are_new]:
                written.update(id_ for (id_,) in await statement.fetch(self._transaction, some))
        return SavedRows(
            tuple(structs.replace(row, version=row.version + 1) for row in rows if row.id in written),
            tuple(row.id for row in rows if row.id not in written),
        )

    async def forget(self, rows: Sequence[NodeRow]) -> int:
        """Delete these rows, but those that another daemon wrote since. Returns how many were deleted."""
        ordered = sorted(rows, key=_by_id)
        return await FORGET.change(self._transaction, [(row.id, row.version) for row in ordered])


class IronicStore:
    """The rows of nodes, the members of the ring, and the owner of each node. A page is in the order of ids, begins after `after`,
    and has at most `limit` rows.
    """

    def __init__(
        self, url: str | Database, *, pool_size: int = POOL_SIZE, settings: DatabaseSettings = SETTINGS
    ) -> None:
        if not isinstance(settings, _Leasing):
            # An operator's settings say nothing about leases.
            settings = _Leasing(**structs.asdict(settings))
        self._database = open_database(url, pool_size=pool_size, settings=settings)
        # Of their own, so that a renewal never waits behind the rows of nodes. SQLite has one writer anyway.
        own = open_database(url, pool_size=LEASE_SESSIONS, settings=settings)
        self._leases = own if isinstance(own, PostgresDatabase) else self._database

    @asynccontextmanager
    async def transaction(self, *, is_lazy: bool = False) -> AsyncIterator[IronicTransaction]:
        """A transaction: it commits at its end, and rolls back on any exception. May raise `Transient` at any step:
        then try again.

        A lazy commit does not wait for the disk (kit/sql/databases.py): it is only for changes that are made again if
        they are lost.
        """
        async with self._database.writing(is_lazy=is_lazy) as transaction:
            yield IronicTransaction(transaction)

    async def read(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        """The existing rows of these nodes, not locked."""
        return {row.id: row for row in await read_once(self._database, read, ids)}

    page_of = reads(page_of)
    """A page of the owner's rows; with `needs`, of those that must be reported or read."""
    due = reads(due)
    """The owner's rows whose `due_at` has come, those that are due for longest first, then those due after
    `beyond`.

    No daemon waits longer than until `beyond`. So a later time was written by a daemon whose clock was ahead.
    """

    async def join(self, name: str, incarnation: str, lease_s: float) -> None:
        """Become a member that does not drain; may be repeated. Raises NameTaken while another incarnation has a lease."""
        check_name(name)
        await write_once(self._leases, join, name, incarnation, lease_s)

    async def renew(self, name: str, incarnation: str, lease_s: float) -> bool:
        """Make the lease last `lease_s` from now. False if it was over already, or is another incarnation's: then the
        daemon must join again.
        """
        return await write_once(self._leases, renew, name, incarnation, lease_s)

    async def leave(self, name: str, incarnation: str) -> None:
        await write_once(self._leases, leave, name, incarnation)

    async def set_draining(self, name: str, *, draining: bool, incarnation: str | None = None) -> bool:
        """Set whether this member drains; with an incarnation, only if it is that one. False if there is no such member. A daemon that
        joins again does not drain.
        """
        return await write_once(self._leases, set_draining, name, draining, incarnation)

    async def members(self) -> tuple[Member, ...]:
        """All members of the ring in the order of their names, also those whose leases are over."""
        return await read_once(self._leases, members)

    async def look(self, name: str, limit: int, after: ProviderId | None = None) -> RingView:
        """Read what the daemon `name` looks at several times a second: the members of the ring, the names of all owners
        of nodes, and the daemon's own nodes that it must read.

        Of the latter (`unread`), the answer has at most `limit` nodes, with ids above `after`.
        """
        return await read_once(self._leases, _look, name, limit, after)

    owners = reads(owners)
    """The owner of each node, in the order of the nodes' ids. With `names`, only the nodes that these daemons own."""

    async def give(self, moves: Sequence[NodeHandover]) -> tuple[Owned, ...]:
        """Carry out these moves. Returns the nodes that moved, as they are now: each has the next epoch and version,
        and must be read.

        A node is left where it is if it has another owner or epoch by now, or if it has an instance and the move is
        only for free nodes. It is left, too, while another transaction has its row locked: then try again soon.
        """
        if not moves:
            return ()
        async with self._database.writing() as transaction:
            rows = [
                (each.id, each.owner, each.epoch, each.to, each.only_free, each.above)
                for each in sorted(moves, key=_by_id)
            ]
            return owned_of(await GIVE.fetch(transaction, rows))

    alarms = reads(alarms)
    """Of all nodes; the orders that daemons gave by themselves count from `since` on."""
    versions = reads(versions)
    has_tables = reads(has_tables)

    async def close(self) -> None:
        await self._database.close()
        if self._leases is not self._database:
            await self._leases.close()


def _look(connection: Connection, name: str, limit: int, after: ProviderId | None) -> RingView:
    return RingView(
        members=members(connection),
        owner_names=owner_names(connection),
        unread=unread_of(connection, name, limit, after),
    )


async def pages_of(
    store: IronicStore, owner: str, limit: int, *, needs: Need | None = None
) -> AsyncIterator[tuple[NodeRow, ...]]:
    """All rows of this owner, in pages of `limit` rows; with `needs`, only those that must be reported or read."""
    after: ProviderId | None = None
    while page := await store.page_of(owner, limit, after, needs=needs):
        yield page
        after = page[-1].id
