"""Claims on PostgreSQL: consumers are locked by inserting them, and one statement writes a batch."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg
from sqlalchemy import Connection

from kit.errors import Transient
from kit.sql import (
    PostgresTransaction,
    RowColumns,
    SqliteTransaction,
    Values,
    array_of,
    columns_of,
    driver_of,
    moment_text,
)
from kit.times import now
from placement_worker.core.ledger import ClaimChanges, ClaimKeys, Ledger
from placement_worker.store import AtOnce
from placement_worker.store_sql import log
from placement_worker.store_sql.claims import (
    END_HOLDING,
    FIND_BY_ID,
    LOCK_CONSUMERS,
    LOCK_ROOTS,
    READ_PROVIDERS,
    ClaimLocks,
    ClaimRows,
    ConsumerRecord,
    ConsumerRow,
    check_written,
    classes_in,
)
from placement_worker.store_sql.provider_cache import UsageRow
from placement_worker.store_sql.quotas import LAST_QUOTA, ClaimQuotas
from placement_worker.tables import consumers, holders, providers

# Claims on SQLite. BEGIN IMMEDIATE has locked the whole file, so no rows are locked here.


_CONSUMER = (
    *("type", "project_id", "user_id", "cell", "generation", "attempt"),
    *("ended_at", "host", "server_group", "held"),
)
# An empty string stands for NULL: the driver takes longer to bind a None.
_NULLS = {name: f"NULLIF(new.{name}, '')" for name in ("ended_at", "host", "server_group")}
_ADD_CONSUMERS = RowColumns(consumers, "id", *_CONSUMER, "uuid").insert(**_NULLS)
_KEEP_CONSUMERS = RowColumns(consumers, "id", *_CONSUMER).update(**_NULLS)
_TOUCH = RowColumns(providers, "id", "generation", "used", "consumers").update(revision="kept.revision + 1")
_HOLD = RowColumns(holders, "provider_id", "consumer_id").insert()

_LOG = f"{log.ON_SQLITE} RETURNING {LAST_QUOTA}"

# The highest id ever given, also to rows that are deleted.
_LAST_CONSUMER = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'consumers'"


class SqliteClaims(ClaimLocks[SqliteTransaction]):
    """Reads and writes claims on SQLite, each row by a statement of its own."""

    async def _lock_consumers(self, locked: ClaimRows) -> Sequence[ConsumerRow]:
        rows = await LOCK_CONSUMERS.fetch(self._transaction, locked.keys.consumers)
        locked.consumer_ids.update((row[0].int, row[1]) for row in rows)
        return rows

    async def _write(self, locked: ClaimRows, changes: ClaimChanges) -> int:
        # In one piece: to enter the transaction for each statement would cost a lone boot more than its statements.
        return await self._transaction.run(_write, locked, changes)


def _write(connection: Connection, locked: ClaimRows, changes: ClaimChanges) -> int:
    driver, ids = driver_of(connection), locked.consumer_ids
    kept = locked.consumer_writes(changes, {})
    known = [one for one in kept.consumers if one.row.id.int in ids]
    if len(known) < len(kept.consumers):
        _add_consumers(driver, locked, [one for one in kept.consumers if one.row.id.int not in ids])
    touched = list(locked.touched(changes))
    rows = [(ids[one.row.id.int], *_values(one)) for one in known]
    written = (
        driver.executemany(_TOUCH.on_sqlite, touched).rowcount,
        driver.executemany(_KEEP_CONSUMERS.on_sqlite, rows).rowcount,
    )
    check_written(written, (len(touched), len(known)))
    ended, begun = locked.holders(kept)
    driver.executemany(END_HOLDING.on_sqlite, ended)
    driver.executemany(_HOLD.on_sqlite, begun)
    if (body := locked.log_body(changes)) is None:
        (last_quota,) = driver.execute(f"SELECT {LAST_QUOTA}").fetchone()
    else:
        (last_quota,) = driver.execute(_LOG, (moment_text(now()), body)).fetchone()
    return int(last_quota)


def _add_consumers(driver: sqlite3.Connection, locked: ClaimRows, new: Sequence[ConsumerRecord]) -> None:
    """Insert new consumers, with ids that are chosen here: SQLite returns the id of only one inserted row at a time."""
    (last,) = driver.execute(_LAST_CONSUMER).fetchone()
    ids = locked.consumer_ids
    ids.update((one.row.id.int, number) for number, one in enumerate(new, start=last + 1))
    rows = [(ids[one.row.id.int], *_values(one), one.row.id.hex) for one in new]
    driver.executemany(_ADD_CONSUMERS.on_sqlite, rows)


def _values(record: ConsumerRecord) -> Values:
    row = record.row
    return (
        *(row.type, row.project, row.user, row.cell, row.generation, row.attempt),
        "" if row.ended_at is None else moment_text(row.ended_at),
        "" if row.host is None else row.host.hex,
        "" if row.group is None else row.group.hex,
        record.text,
    )


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


class ClaimAtOnce:
    """A claim that is decided without locks, and written by one statement."""

    def __init__(
        self,
        transaction: PostgresTransaction,
        claims: ClaimRows,
        rows: Sequence[UsageRow],
        last_quota: int,
    ) -> None:
        self._transaction = transaction
        self._claims = claims
        self._rows = rows
        self._last_quota = last_quota

    @property
    def ledger(self) -> Ledger:
        return self._claims.ledger()

    async def is_written(self, changes: ClaimChanges) -> bool:
        """Write these changes, if they are those of a claim that is granted, and if it was decided by what is still true. Otherwise
        nothing is written.
        """
        claims, usages = self._claims, self._claims.providers.usages
        for number, *_ in self._rows:
            # The row changes now, or it is outdated already.
            usages.pop(number, None)
        (record,) = claims.optimistic_rows()
        touched = {each[0]: each for each in claims.touched(changes)} if _is_granted(changes, record) else {}
        if len(touched) != len(self._rows) or any(touched[row[0]][3] != row[6] for row in self._rows):
            return False
        after: list[UsageRow] = [
            (*row[:3], touched[row[0]][1], row[4], touched[row[0]][2], row[6]) for row in self._rows
        ]
        row = record.row
        numbers, _, bases, generations, shapes, used_before, counts = zip(*self._rows, strict=True)
        try:
            ((is_written,),) = await self._transaction.alone(
                CLAIM,
                *(row.id, row.type, row.project, row.user, row.cell, row.generation, record.text),
                *map(array_of, (numbers, bases, generations, shapes)),
                [*used_before],
                *map(array_of, (counts, [each[3] for each in after])),
                [each[5] for each in after],
                *(self._last_quota, now(), claims.log_body(changes)),
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


async def begun_at_once(
    transaction: PostgresTransaction, claims: ClaimRows, quotas: ClaimQuotas, names: Mapping[int, str]
) -> ClaimAtOnce | None:
    """The claim of these keys, ready to be decided.

    None if the keys are not of one new consumer on providers that are roots of their trees. Also None if some project has a limit, or
    if `names` lacks the name of a class of their inventories.
    """
    keys, last_quota = claims.keys, quotas.last_if_none()
    if len(keys.consumers) != 1 or len(keys.allocations) != 1 or not keys.providers or last_quota is None:
        return None
    (claimed,) = keys.allocations.values()
    if not claimed.judges_generation or claimed.generation is not None:
        return None
    rows = await _rows_of(transaction, claims, names)
    providers = claims.providers
    if len(rows) != len(keys.providers) or any(
        row[0] != row[1] or row[2] != providers.of(row[0]).base for row in rows
    ):
        return None
    claims.add_providers(rows)
    # The statement updates them, and so locks them, in this order: that of their internal ids.
    return ClaimAtOnce(transaction, claims, sorted(rows), last_quota)


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
