"""Claims on PostgreSQL: consumers are locked by inserting them, and one statement writes a batch. A claim that comes alone is
decided without locks and written by one statement.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from engine.inventories import CUSTOM
from kit.clock import now
from kit.errors import Transient
from kit.sql import PostgresTransaction, array_of, columns_of
from placement_worker.core.ledger import ClaimChanges, ClaimKeys
from placement_worker.store import AdminDecision, DecideAllocations
from placement_worker.store_sql.claims import (
    END_HOLDING,
    FIND_BY_ID,
    LOCK_CONSUMERS,
    LOCK_ROOTS,
    READ_PROVIDERS,
    ClaimLocks,
    check_written,
    log_body,
)
from placement_worker.store_sql.consumers import LAST_QUOTA
from placement_worker.store_sql.rows import (
    ClaimRows,
    ConsumerRecord,
    ConsumerRow,
    UsageRow,
    classes_in,
)

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

    async def decided_at_once(self, keys: ClaimKeys, decide: DecideAllocations) -> AdminDecision | None:
        seen = ClaimRows(keys, self._classes, self._providers)
        last_quota = self._quotas.last_if_none()
        if last_quota is None or not _is_new_consumer(keys):
            return None
        rows = await _seen_rows(self._transaction, seen, self._classes.names)
        if not rows:
            return None
        seen.add_providers(rows)
        decision = decide(seen.ledger())
        # The statement updates them, and so locks them, in this order: that of their internal ids.
        is_written = await write_at_once(self._transaction, seen, sorted(rows), last_quota, decision.changes)
        return decision if is_written else None

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
            log_body(locked, changes),
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


# The claim of one new consumer on PostgreSQL by one statement, which is a transaction of its own.
#
# A claim that comes alone costs four round trips otherwise: begin, lock, write, commit. Here it is decided by rows that are not
# locked, by the same rules: as this process wrote them last, or else as they are read. The statement then writes only if
# all of these rows are still the same. If they are not, or if the claim is not granted, nothing was written, and it is locked and
# decided anew.
#
# The statement compares twice. Before it inserts the consumer, it compares what it sees without waiting for anybody. That finds
# what was remembered too long. Then it updates the providers on the same condition. An update that has waited for a row evaluates
# its condition on that row as it is then. The condition has only columns of that row, so nothing is judged from before the wait. If
# the second comparison fails after the first one did not, somebody wrote in between: then the statement ends with an error, since
# the consumer is inserted already. The consumer comes first, then the providers in the order of their internal ids, as for all who lock.


_SAME = """
providers.id = ANY (ARRAY[seen.id]) AND providers.root_id = seen.id AND providers.base = seen.base
AND providers.generation = seen.generation AND providers.shape = seen.shape AND providers.used = seen.used
AND providers.consumers = seen.consumers
"""
_SEEN = """
unnest($8::text::bigint[], $9::text::bigint[], $10::text::bigint[], $11::text::bigint[], $12::text[],
       $13::text::bigint[], $14::text::bigint[], $15::text[])
AS seen (id, base, generation, shape, used, consumers, next_generation, next_used)
"""
_CHANGED = "somebody else wrote these providers meanwhile, so the claim is decided again: "
CLAIM = (
    """
WITH made AS (
    INSERT INTO consumers (uuid, type, project_id, user_id, cell, generation, attempt, held)
    SELECT $1::uuid, $2::text, $3::text, $4::text, $5::text, $6::bigint, 0, $7::text
    WHERE (SELECT count(*) FROM SEEN JOIN providers ON SAME) = cardinality($8::text::bigint[])
          AND LAST_QUOTA = $16::bigint
    ON CONFLICT (uuid) DO NOTHING
    RETURNING id
), touched AS (
    UPDATE providers
    SET generation = seen.next_generation, revision = providers.revision + 1, used = seen.next_used
    FROM SEEN
    WHERE (SELECT count(*) FROM made) = 1 AND SAME
    RETURNING 1
), held AS (
    INSERT INTO holders (provider_id, consumer_id)
    SELECT seen.id, made.id FROM SEEN, made
), logged AS (
    INSERT INTO change_log (written_by, at, body)
    SELECT pg_current_xact_id(), $17::timestamptz, $18::bytea FROM made
)
SELECT CASE
    WHEN (SELECT count(*) FROM made) = 0 THEN 0
    WHEN (SELECT count(*) FROM touched) = cardinality($8::text::bigint[]) THEN 1
    ELSE ('CHANGED' || (SELECT count(*) FROM touched))::integer
END
""".replace("SEEN", _SEEN)
    .replace("SAME", _SAME)
    .replace("LAST_QUOTA", LAST_QUOTA)
    .replace("CHANGED", _CHANGED)
)


async def write_at_once(
    transaction: PostgresTransaction,
    claims: ClaimRows,
    rows: Sequence[UsageRow],
    last_quota: int,
    changes: ClaimChanges,
) -> bool:
    """Write these changes, if they are those of a claim that is granted, and if it was decided by what is still true. Otherwise
    nothing is written.
    """
    usages = claims.providers.usages
    for number, *_ in rows:
        # The row changes now, or it is outdated already.
        usages.pop(number, None)
    (record,) = claims.optimistic_rows()
    touched = {each[0]: each for each in claims.touched(changes)} if _is_granted(changes, record) else {}
    if len(touched) != len(rows) or any(touched[row[0]][3] != row[6] for row in rows):
        return False
    after: list[UsageRow] = [
        (*row[:3], touched[row[0]][1], row[4], touched[row[0]][2], row[6]) for row in rows
    ]
    row = record.row
    numbers, _, bases, generations, shapes, used_before, counts = zip(*rows, strict=True)
    try:
        ((is_written,),) = await transaction.alone(
            CLAIM,
            *(row.id, row.type, row.project, row.user, row.cell, row.generation, record.text),
            *map(array_of, (numbers, bases, generations, shapes)),
            [*used_before],
            *map(array_of, (counts, [each[3] for each in after])),
            [each[5] for each in after],
            *(last_quota, now(), log_body(claims, changes)),
        )
    except asyncpg.InvalidTextRepresentationError:
        # That is how the statement ends if somebody wrote between its two comparisons.
        return False
    if is_written:
        usages.update((each[0], each) for each in after)
    return bool(is_written)


def _is_granted(changes: ClaimChanges, record: ConsumerRecord) -> bool:
    """Whether the changes make this new consumer, and change nothing besides but the usage of providers."""
    plain = ClaimChanges(
        consumers=(record.row,), held=((record.row.id, record.amounts),), touched=changes.touched
    )
    return changes == plain


def _is_new_consumer(keys: ClaimKeys) -> bool:
    """Are these the keys of a claim of one consumer that has no row yet, as its writer says, and of standard classes alone?"""
    if (
        len(keys.consumers) != 1
        or len(keys.allocations) != 1
        or not keys.providers
        or any(name.startswith(CUSTOM) for name in keys.classes)
    ):
        return False
    (claimed,) = keys.allocations.values()
    return claimed.judges_generation and claimed.generation is None


async def _seen_rows(
    transaction: PostgresTransaction, claims: ClaimRows, names: Mapping[int, str]
) -> Sequence[UsageRow]:
    """The rows of the providers of the claim, without a lock. None if some provider is not the root of its tree, or if `names`
    lacks the name of a class of their inventories.
    """
    rows = await _rows_of(transaction, claims, names)
    of = claims.providers.of
    are_roots = all(row[0] == row[1] and row[2] == of(row[0]).base for row in rows)
    return rows if are_roots and len(rows) == len(claims.keys.providers) else ()


async def _rows_of(
    transaction: PostgresTransaction, claims: ClaimRows, names: Mapping[int, str]
) -> Sequence[UsageRow]:
    """The rows of the providers of the claim: as this process wrote them last, or else as they are read."""
    if unknown := claims.unknown():
        found = await transaction.alone(FIND_BY_ID.on_postgresql, array_of(unknown))
        if not found or not classes_in(found) <= names.keys():
            return ()
        claims.learn(found, names)
        if len(unknown) == len(claims.keys.providers):
            return [*{row[0]: (row[0], row[2], *row[4:9]) for row in found}.values()]
    usages, numbers = claims.providers.usages, [*claims.provider_ids.values()]
    rows: Sequence[UsageRow] = [usages[number] for number in numbers if number in usages]
    if len(rows) == len(numbers):
        return rows
    return [tuple(row) for row in await transaction.alone(READ_PROVIDERS.on_postgresql, array_of(numbers))]
