"""Claims on PostgreSQL: consumers are locked by inserting them, and one statement writes a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from bus.clock import now
from bus.errors import Transient
from bus.sql import PostgresTransaction, array_of, columns_of
from placement_worker.core.claim_keys import ClaimKeys
from placement_worker.core.ledger import ClaimChanges
from placement_worker.store import AtOnce
from placement_worker.store_sql.claims.at_once import begun_at_once
from placement_worker.store_sql.claims.claim_locks import (
    END_HOLDING,
    LOCK_CONSUMERS,
    LOCK_ROOTS,
    ClaimLocks,
    check_written,
)
from placement_worker.store_sql.claims.claims import ClaimRows, ConsumerRecord, ConsumerRow
from placement_worker.store_sql.quotas import LAST_QUOTA

# Waits for a transaction that has inserted the same consumer and has not committed yet. No other transaction can see rows
# inserted here, so they count as locked. They are inserted as they will be if their claim is granted: most rows are then
# written only once.
# A column with one value in all rows is sent as one element, and as none if it is NULL. In most batches this holds for most
# columns, and asyncpg takes half a microsecond for each element. unnest fills the rest with NULLs.
# If all consumers are new, which is nearly always so, the roots of their providers are locked by the same statement: a round trip
# is saved. The count of the new ones is known before the first root is read, so the order of locks is kept. If some consumers
# exist, these must be locked first, and the statement locks no root.
_MAKE_CONSUMERS = """
WITH made AS (
INSERT INTO consumers (uuid, type, project_id, user_id, cell, generation, attempt, host, server_group, held)
SELECT new.uuid, COALESCE(new.type, ($2::text[])[1]), COALESCE(new.project_id, ($3::text[])[1]),
       COALESCE(new.user_id, ($4::text[])[1]), COALESCE(new.cell, ($5::text[])[1]),
       COALESCE(new.generation, ($6::text::bigint[])[1]), COALESCE(new.attempt, ($7::text::bigint[])[1]),
       new.host, new.server_group, COALESCE(new.held, ($10::text::text[])[1])
FROM unnest($1::text::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text::bigint[],
            $7::text::bigint[], $8::text::uuid[], $9::text::uuid[], $10::text::text[])
     WITH ORDINALITY
     AS new (uuid, type, project_id, user_id, cell, generation, attempt, host, server_group, held, place)
ORDER BY new.place
ON CONFLICT (uuid) DO NOTHING
RETURNING id
), roots AS (
LOCK_ROOTS
)
SELECT id, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint FROM made
UNION ALL SELECT * FROM roots
""".replace(
    "LOCK_ROOTS",
    LOCK_ROOTS.on_postgresql.replace("$1", "$11").replace(
        " ORDER BY", " AND (SELECT count(*) FROM made) = cardinality($1::text::uuid[]) ORDER BY"
    ),
)

_WRITE = """
WITH touched AS (
    UPDATE providers
    SET generation = new.generation, revision = providers.revision + 1, used = new.used,
        consumers = new.consumers
    FROM unnest($1::text::bigint[], $2::text::bigint[], $3::text::text[], $19::text::bigint[])
         AS new (id, generation, used, consumers)
    WHERE providers.id = ANY (ARRAY[new.id])
    RETURNING 1
), kept AS (
    UPDATE consumers
    SET type = COALESCE(new.type, ($5::text[])[1]),
        project_id = COALESCE(new.project_id, ($6::text[])[1]),
        user_id = COALESCE(new.user_id, ($7::text[])[1]),
        cell = COALESCE(new.cell, ($8::text[])[1]),
        generation = COALESCE(new.generation, ($9::text::bigint[])[1]),
        attempt = COALESCE(new.attempt, ($10::text::bigint[])[1]),
        host = new.host, server_group = new.server_group,
        held = COALESCE(new.held, ($13::text::text[])[1]), ended_at = new.ended_at
    FROM unnest($4::text::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text::bigint[],
                $10::text::bigint[], $11::text::uuid[], $12::text::uuid[], $13::text::text[], $14::timestamptz[])
         AS new (id, type, project_id, user_id, cell, generation, attempt, host, server_group, held, ended_at)
    WHERE consumers.id = ANY (ARRAY[new.id])
    RETURNING 1
), held AS (
    INSERT INTO holders (provider_id, consumer_id)
    SELECT * FROM unnest($15::text::bigint[], $16::text::bigint[])
), logged AS (
    INSERT INTO change_log (written_by, at, body)
    SELECT pg_current_xact_id(), $17::timestamptz, $18::bytea
    WHERE $18::bytea IS NOT NULL
)
SELECT (SELECT count(*) FROM touched), (SELECT count(*) FROM kept), LAST_QUOTA
""".replace("LAST_QUOTA", LAST_QUOTA)


class PostgresClaims(ClaimLocks[PostgresTransaction]):
    """Locks and writes claims on PostgreSQL, by statements that go to asyncpg directly."""

    # Consumers inserted by this transaction, as they were inserted.
    _made: Mapping[int, ConsumerRecord] = {}

    async def at_once(self, keys: ClaimKeys) -> AtOnce | None:
        locked = ClaimRows(keys, self._classes, self._providers)
        return await begun_at_once(self._transaction, locked, self._quotas, self._classes.names)

    async def _lock_consumers(self, locked: ClaimRows) -> Sequence[ConsumerRow]:
        keys, ids = locked.keys, locked.consumer_ids
        if not keys.consumers:
            return ()
        optimistic_rows = locked.optimistic_rows()
        columns = _consumer_columns(optimistic_rows)
        locked_rows = await self._transaction.fetch(
            _MAKE_CONSUMERS, array_of(keys.consumers), *columns, array_of(self._roots_with_consumers(locked))
        )
        # Only the rows of roots have a root.
        made = [row[0] for row in locked_rows if row[1] is None]
        self._locked_roots = locked_rows[len(made) :]
        self._made = {record.row.id.int: record for record in optimistic_rows}
        if len(made) == len(keys.consumers):
            ids.update(zip(self._made, made, strict=True))
            return ()
        rows = await LOCK_CONSUMERS.fetch(self._transaction, keys.consumers)
        if len(rows) < len(keys.consumers):
            raise Transient(
                "a consumer was pruned at the moment of a new claim for it: the batch is tried again"
            )
        ids.update((row[0].int, row[1]) for row in rows)
        inserted = set(made)
        self._made = {number: record for number, record in self._made.items() if ids[number] in inserted}
        return [row for row in rows if row[1] not in inserted]

    def _roots_with_consumers(self, locked: ClaimRows) -> Sequence[int]:
        """The roots that are locked by the same statement as new consumers."""
        return sorted(locked.roots())

    async def _write(self, locked: ClaimRows, changes: ClaimChanges) -> int:
        kept = locked.consumer_writes(changes, self._made)
        ended, begun = locked.holders(kept)
        await END_HOLDING.change(self._transaction, ended)
        touched, consumers = list(locked.touched(changes)), kept.consumers
        ids, generations, used, living = columns_of(touched, plain=4) or _NO_ROWS
        ((*written, last_quota),) = await self._transaction.fetch(
            _WRITE,
            *(ids, generations, used),
            array_of([locked.consumer_ids[one.row.id.int] for one in consumers]),
            *_consumer_columns(consumers),
            _none_if_null([one.row.ended_at for one in consumers]),
            *(columns_of(begun, plain=2) or _NO_ROWS[:2]),
            now(),
            locked.log_body(changes),
            living,
        )
        check_written(tuple(written), (len(touched), len(consumers)))
        return int(last_quota)


_NO_ROWS = ("{}",) * 4


def _consumer_columns(kept: Sequence[ConsumerRecord]) -> tuple[Any, ...]:
    """The values of these consumers' rows as arrays, one for each column from `type` on."""
    rows = [one.row for one in kept]
    return (
        _once([row.type for row in rows]),
        _once([row.project for row in rows]),
        _once([row.user for row in rows]),
        _once([row.cell for row in rows]),
        array_of(_once([row.generation for row in rows])),
        array_of(_once([row.attempt for row in rows])),
        array_of(_none_if_null([row.host for row in rows])),
        array_of(_none_if_null([row.group for row in rows])),
        array_of(_once([one.text for one in kept])),
    )


def _once(column: list[Any]) -> list[Any]:
    return column[:1] if column and column.count(column[0]) == len(column) else column


def _none_if_null(column: list[Any]) -> list[Any]:
    return [] if column.count(None) == len(column) else column
