"""The statements on nodes' rows that run most often, for PostgreSQL and asyncpg. A batch is passed as one array for
each column.
"""

from collections.abc import Sequence
from uuid import UUID

from bus.sql import PostgresTransaction, columns_of
from ironic_sync.core.ring import Move, Owned
from ironic_sync.store_sql.rows import Stored, Values, number, owned_of

# Rows are locked in the order in which they are named, that of their ids: two batches never wait for each other.
_LOAD = """
SELECT kept.owner, kept.epoch, kept.version, kept.body
FROM unnest($1::uuid[]) AS named (id)
CROSS JOIN LATERAL (
    SELECT owner, epoch, version, body FROM ironic_nodes WHERE id = named.id FOR UPDATE
) AS kept
"""
_NEW = """
unnest($1::uuid[], $2::text::text[], $3::text::text[], $4::text::bigint[], $5::text::bigint[], $6::text::boolean[],
       $7::text::bigint[], $8::text::boolean[], $9::text::boolean[], $10::bytea[])
    AS new (id, cell, owner, epoch, version, holds_instance, due_us, needs_report, needs_read, body)
"""
_ADD = f"""
INSERT INTO ironic_nodes (id, cell, owner, epoch, version, holds_instance, due_us, needs_report, needs_read, body)
SELECT new.id, new.cell, new.owner, new.epoch, new.version + 1, new.holds_instance, new.due_us, new.needs_report,
       new.needs_read, new.body
FROM {_NEW}
ON CONFLICT (id) DO NOTHING
RETURNING id
"""  # noqa: S608 - both pieces are constants
# A row that was not loaded in this transaction is locked by this; if another daemon writes it first, its version is
# looked at again.
_REPLACE = f"""
UPDATE ironic_nodes AS kept
SET cell = new.cell, owner = new.owner, epoch = new.epoch, version = kept.version + 1,
    holds_instance = new.holds_instance, due_us = new.due_us, needs_report = new.needs_report,
    needs_read = new.needs_read, body = new.body
FROM {_NEW}
WHERE kept.id = ANY (ARRAY[new.id]) AND kept.version = new.version
RETURNING kept.id
"""  # noqa: S608
# A row that a transaction has locked is left for the next look: a daemon that stands still in a transaction must not keep
# the others from all its nodes.
_GIVE = """
WITH moving AS MATERIALIZED (
    SELECT kept.id, move.to_owner, move.above
    FROM unnest($1::uuid[], $2::text::text[], $3::text::bigint[], $4::text::text[], $5::text::boolean[],
                $6::text::bigint[])
        AS move (id, owner, epoch, to_owner, only_free, above)
    CROSS JOIN LATERAL (
        SELECT id FROM ironic_nodes
        WHERE id = move.id AND owner = move.owner AND epoch = move.epoch AND NOT (move.only_free AND holds_instance)
        FOR UPDATE SKIP LOCKED
    ) AS kept
)
UPDATE ironic_nodes AS node
SET owner = moving.to_owner, epoch = greatest(node.epoch, moving.above) + 1, version = node.version + 1, needs_read = true
FROM moving
WHERE node.id = ANY (ARRAY[moving.id])
RETURNING node.id, node.owner, node.epoch, node.holds_instance
"""
# Rows that are locked are left for the next time, as above.
_FORGET = """
WITH old AS MATERIALIZED (
    SELECT kept.id
    FROM unnest($1::uuid[], $2::bigint[]) AS named (id, version)
    CROSS JOIN LATERAL (
        SELECT id FROM ironic_nodes WHERE id = named.id AND version = named.version FOR UPDATE SKIP LOCKED
    ) AS kept
)
DELETE FROM ironic_nodes USING old WHERE ironic_nodes.id = old.id
"""


class PostgresRows:
    """The statements on nodes' rows in one transaction on PostgreSQL."""

    def __init__(self, transaction: PostgresTransaction) -> None:
        self._transaction = transaction

    async def load(self, ids: Sequence[UUID]) -> Sequence[Stored]:
        return await self._transaction.fetch(_LOAD, ids)

    async def give(self, moves: Sequence[Move]) -> tuple[Owned, ...]:
        rows = [
            (each.id, each.owner, each.epoch, each.to, each.only_free, each.above)
            for each in sorted(moves, key=lambda each: number(each.id))
        ]
        return owned_of(await self._transaction.fetch(_GIVE, *columns_of(rows, 5, ids=1)))

    async def forget(self, ids: Sequence[UUID], versions: Sequence[int]) -> int:
        return await self._transaction.change(_FORGET, ids, versions)

    async def write(self, rows: Sequence[Values], *, are_new: bool) -> set[UUID]:
        written = await self._transaction.fetch(_ADD if are_new else _REPLACE, *columns_of(rows, 8, ids=1))
        return {id_ for (id_,) in written}
