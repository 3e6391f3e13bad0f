"""Claims on PostgreSQL: consumers are locked by inserting them, and one statement writes a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from bus.clock import now
from bus.errors import Bug, Transient
from bus.message import GroupId
from bus.messages.placement import ServerGroup
from bus.sql import PostgresTransaction, array_of, columns_of
from placement_worker.core.ledger import ClaimChanges, GroupRow
from placement_worker.store_sql.claims.claim_locks import ClaimLocks
from placement_worker.store_sql.claims.claims import ConsumerRecord, ConsumerRow, LockedClaims
from placement_worker.store_sql.driver_rows import id_of

_MAKE_GROUPS = """
INSERT INTO server_groups (uuid, policy, max_per_host)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[])
ON CONFLICT (uuid) DO NOTHING
RETURNING uuid
"""

# Rows inserted here are locked already: no other transaction can see them.
_LOCK_GROUPS = """
SELECT uuid, policy, max_per_host, project_id FROM server_groups
WHERE uuid = ANY($1) ORDER BY uuid::text COLLATE "C" FOR UPDATE
"""

_WRITE_GROUPS = """
UPDATE server_groups
SET policy = new.policy, max_per_host = new.max_per_host, project_id = new.project_id
FROM unnest($1::uuid[], $2::text[], $3::int[], $4::text[]) AS new (uuid, policy, max_per_host, project_id)
WHERE server_groups.uuid = ANY (ARRAY[new.uuid])
"""
_DROP_GROUPS = "DELETE FROM server_groups WHERE uuid = ANY($1)"

# Waits for a transaction that has inserted the same consumer and has not committed yet. No other transaction can see rows
# inserted here, so they count as locked. They are inserted as they will be if their claim is granted: most rows are then
# written only once.
# A column with one value in all rows is sent as one element, and as none if it is NULL. In most batches this holds for most
# columns, and asyncpg takes half a microsecond for each element. unnest fills the rest with NULLs.
_MAKE_CONSUMERS = """
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
"""

_LOCK_CONSUMERS = """
SELECT uuid, id, type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group, held
FROM consumers
WHERE uuid = ANY($1::text::uuid[])
ORDER BY id + 0
FOR UPDATE
"""

_COUNT = "UPDATE providers SET consumers = $1 WHERE id = $2"
_FORGET = "DELETE FROM consumers WHERE id = ANY($1)"

_END_HOLDING = """
DELETE FROM holders USING unnest($1::text::bigint[], $2::text::bigint[]) AS old (provider_id, consumer_id)
WHERE holders.provider_id = ANY (ARRAY[old.provider_id]) AND holders.consumer_id = ANY (ARRAY[old.consumer_id])
"""

# The counts are compared with what was to be written: a missing row would be a lost update.
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
SELECT (SELECT count(*) FROM touched), (SELECT count(*) FROM kept)
"""


class PostgresClaims(ClaimLocks[PostgresTransaction]):
    """Locks and writes claims on PostgreSQL, by statements that go to asyncpg directly."""

    # Consumers inserted by this transaction, as they were inserted.
    _made: Mapping[int, ConsumerRecord] = {}
    # The groups inserted by it.
    _made_groups: Sequence[GroupId] = ()

    async def _lock_groups(self, groups: Sequence[ServerGroup]) -> Sequence[GroupRow]:
        """Lock server groups by inserting those that have no row yet, as the batch first defines each."""
        new = await self._transaction.fetch(_MAKE_GROUPS, *_group_columns(groups))
        made = {id_of(row[0]) for row in new}
        self._made_groups = [each.id for each in groups if each.id in made]
        rows = await self._transaction.fetch(_LOCK_GROUPS, [group.id for group in groups])
        if len(rows) < len(groups):
            raise Transient(
                "a server group was pruned at the moment of a new claim in it: the batch is tried again"
            )
        known = [
            GroupRow(ServerGroup(id=GroupId(id_of(row[0])), policy=row[1], max_per_host=row[2]), row[3])
            for row in rows
        ]
        return [each for each in known if each.definition.id not in made]

    async def _lock_consumers(self, locked: LockedClaims) -> Sequence[ConsumerRow]:
        keys, ids = locked.keys, locked.consumer_ids
        if not keys.consumers:
            return ()
        optimistic_rows = locked.optimistic_rows()
        columns = _consumer_columns(optimistic_rows)
        new = await self._transaction.fetch(_MAKE_CONSUMERS, array_of(keys.consumers), *columns)
        made = [row[0] for row in new]
        self._made = {record.row.id.int: record for record in optimistic_rows}
        if len(made) == len(keys.consumers):
            ids.update(zip(self._made, made, strict=True))
            return ()
        rows = await self._transaction.fetch(_LOCK_CONSUMERS, array_of(keys.consumers))
        if len(rows) < len(keys.consumers):
            raise Transient(
                "a consumer was pruned at the moment of a new claim for it: the batch is tried again"
            )
        ids.update((row[0].int, row[1]) for row in rows)
        inserted = set(made)
        self._made = {number: record for number, record in self._made.items() if ids[number] in inserted}
        return [row for row in rows if row[1] not in inserted]

    async def write(self, changes: ClaimChanges) -> None:
        locked = self._locked
        assert locked is not None, "claims are written only after they were locked"
        transaction = self._transaction
        await self._write_groups(changes.groups)
        if changes.forgotten:
            await transaction.change(_FORGET, [locked.consumer_ids[one.int] for one in changes.forgotten])
        if changes.counted:
            await (await transaction.driver()).executemany(_COUNT, locked.counted(changes))
        if not (changes.consumers or changes.held or changes.touched):
            return
        kept = locked.consumer_writes(changes, self._made)
        ended, begun = locked.holders(kept)
        if ended:
            await transaction.change(_END_HOLDING, *_number_columns(ended))
        touched, consumers = list(locked.touched(changes)), kept.consumers
        ids, generations, used, living = columns_of(touched, plain=4) or _NO_ROWS
        ((touched_rows, kept_rows),) = await transaction.fetch(
            _WRITE,
            *(ids, generations, used),
            array_of([locked.consumer_ids[one.row.id.int] for one in consumers]),
            *_consumer_columns(consumers),
            _none_if_null([one.row.ended_at for one in consumers]),
            *_number_columns(begun),
            now(),
            locked.log_body(changes),
            living,
        )
        if (touched_rows, kept_rows) != (len(touched), len(consumers)):
            raise Bug(
                f"claims not written: {touched_rows} of {len(touched)} providers and {kept_rows} of {len(consumers)}"
                " consumers exist, although all of them were locked"
            )

    async def _write_groups(self, groups: Sequence[GroupRow]) -> None:
        """Write the server groups as the granted claims define them. Those that this transaction has inserted, and that no
        granted claim is in, are deleted.
        """
        if groups:
            definitions = [each.definition for each in groups]
            projects = [each.project for each in groups]
            await self._transaction.change(_WRITE_GROUPS, *_group_columns(definitions), projects)
        granted = {each.definition.id for each in groups}
        if unused := [group for group in self._made_groups if group not in granted]:
            await self._transaction.change(_DROP_GROUPS, unused)


_NO_ROWS = ("{}",) * 4


def _group_columns(groups: Sequence[ServerGroup]) -> tuple[list[Any], list[str], list[int]]:
    return (
        [group.id for group in groups],
        [group.policy for group in groups],
        [group.max_per_host for group in groups],
    )


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


def _number_columns(rows: Sequence[tuple[int, int]]) -> tuple[Any, ...]:
    return columns_of(rows, plain=2) or _NO_ROWS[:2]


def _once(column: list[Any]) -> list[Any]:
    return column[:1] if column and column.count(column[0]) == len(column) else column


def _none_if_null(column: list[Any]) -> list[Any]:
    return [] if column.count(None) == len(column) else column
