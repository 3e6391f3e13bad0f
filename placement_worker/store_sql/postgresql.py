"""Claims on PostgreSQL: a constant number of statements for a batch, spoken to asyncpg directly.

No statement both locks and checks. In READ COMMITTED a statement that waited for a row sees that row anew, but
everything it joins as it was before it waited: checked there, a batch would be granted what others took meanwhile,
without any error (measured: 7,050 claims where 4,000 fit). So locks come first, and later statements read.
"""

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from bus.errors import Bug, Transient
from bus.message import ProviderId
from bus.sql import PostgresTransaction, array_of, columns_of
from placement_worker.core.ledger import ClaimChanges, Ledger
from placement_worker.store_sql import log
from placement_worker.store_sql.claims import Books, KeptConsumer, StandingRow
from placement_worker.store_sql.known import Providers, classes_in
from placement_worker.store_sql.named import Named
from placement_worker.store_sql.names import Names

_MAKE_GROUPS = """
INSERT INTO server_groups (uuid, policy, max_per_host)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[])
ON CONFLICT (uuid) DO NOTHING
"""

_LOCK_GROUPS = (
    'SELECT uuid FROM server_groups WHERE uuid = ANY($1) ORDER BY uuid::text COLLATE "C" FOR UPDATE'
)

_WRITE_GROUPS = """
UPDATE server_groups SET policy = new.policy, max_per_host = new.max_per_host
FROM unnest($1::uuid[], $2::text[], $3::int[]) AS new (uuid, policy, max_per_host)
WHERE server_groups.uuid = ANY (ARRAY[new.uuid])
"""

# Waits for whoever has made the same consumer and not yet committed. Those made here nobody else can see, so they are
# as good as locked; and they are made as they will be if what is claimed for them is granted, so that most need not be
# written twice.
# A column that is the same all the way down has one element, or none if it is NULL: in most batches most of them are,
# and asyncpg takes half a microsecond for each element. unnest fills up with NULLs.
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

_FIND = """
SELECT providers.id, providers.uuid, root.id, root.uuid
FROM providers JOIN providers AS root ON root.id = ANY (ARRAY[providers.root_id])
"""
_FIND_BY_ID = _FIND + "WHERE providers.uuid = ANY($1::text::uuid[])"
_FIND_BY_NUMBER = _FIND + "WHERE providers.id = ANY($1::text::bigint[])"

# Who waits for a row sees that row anew, and to see whether it still is one of those asked for, asks for all of them
# again: so what is asked for is only numbers. What it returns is that row as it is now: this may be decided on. All else
# is read by later statements.
_STANDING = (
    "SELECT id, root_id, base, generation, shape, used, consumers FROM providers"
    " WHERE id = ANY($1::text::bigint[])"
)
_LOCK_ROOTS = _STANDING + " ORDER BY id + 0 FOR NO KEY UPDATE"

_READ_STOCKS = """
SELECT providers.id, providers.cell, stock.class_id, stock.total, stock.reserved, stock.min_unit, stock.max_unit,
       stock.step_size, stock.allocation_ratio
FROM providers LEFT JOIN inventories AS stock ON stock.provider_id = ANY (ARRAY[providers.id])
WHERE providers.id = ANY($1::text::bigint[])
ORDER BY providers.id + 0, stock.class_id
"""

_COUNT = "UPDATE providers SET consumers = $1 WHERE id = $2"
_FORGET = "DELETE FROM consumers WHERE id = ANY($1)"

_END_HOLDING = """
DELETE FROM holders USING unnest($1::text::bigint[], $2::text::bigint[]) AS old (provider_id, consumer_id)
WHERE holders.provider_id = ANY (ARRAY[old.provider_id]) AND holders.consumer_id = ANY (ARRAY[old.consumer_id])
"""

# What it counts is compared with what it was to write: a row that is not there is an update lost.
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


class PostgresClaims:
    """The claims of one transaction: locked once, written from what was locked."""

    def __init__(self, transaction: PostgresTransaction, classes: Names, providers: Providers) -> None:
        self._transaction = transaction
        self._classes = classes
        self._providers = providers
        self._books: Books | None = None
        # Those that were made just now, as they were made.
        self._made: dict[int, KeptConsumer] = {}

    async def lock(self, named: Named) -> Ledger:
        driver = await self._transaction.driver()
        books = self._books = Books(named, self._classes, self._providers)
        if unknown := books.unknown():
            await self._find(driver, books, unknown)
        if named.groups:
            await driver.execute(_MAKE_GROUPS, *_group_columns(named.groups))
            await driver.fetch(_LOCK_GROUPS, [group.id for group in named.groups])
        if named.consumers:
            await self._lock_consumers(driver, books)
        await self._lock_standing(driver, books)
        return books.ledger()

    async def _find(self, driver: Any, books: Books, providers: Sequence[ProviderId]) -> int:
        """Which numbers they have, and where they stand; how many there are of them."""
        rows = await driver.fetch(_FIND_BY_ID, array_of(providers))
        self._providers.found(rows)
        books.found([row[0] for row in rows])
        return len(rows)

    async def _lock_consumers(self, driver: Any, books: Books) -> None:
        consumers, ids = books.named.consumers, books.consumer_ids
        hopes = books.hopes()
        columns = _consumer_columns(hopes)
        made = [row[0] for row in await driver.fetch(_MAKE_CONSUMERS, array_of(consumers), *columns)]
        self._made = {hope.row.id.int: hope for hope in hopes}
        if len(made) == len(consumers):
            ids.update(zip(self._made, made, strict=True))
            return
        rows = await driver.fetch(_LOCK_CONSUMERS, array_of(consumers))
        if len(rows) < len(consumers):
            raise Transient("a consumer was forgotten in the moment it was claimed for again")
        new = set(made)
        ids.update((row[0].int, row[1]) for row in rows)
        self._made = {number: hope for number, hope in self._made.items() if ids[number] in new}
        if unknown := books.add_consumers([row for row in rows if row[1] not in new]):
            self._providers.found(await driver.fetch(_FIND_BY_NUMBER, array_of(unknown)))
        if books.lacks_classes():
            await self._transaction.run(self._classes.load)
        books.find_held()
        if hosts := books.unknown_hosts():
            await self._find(driver, books, hosts)

    async def _lock_standing(self, driver: Any, books: Books) -> None:
        known, numbers = self._providers, books.provider_ids.values()
        roots = {known.of(number).root for number in numbers}
        standing = {row[0]: row for row in await self._lock_rows(driver, numbers, roots)}
        await self._look_for_lost(driver, books, standing, roots)
        # They are locked and read already; `numbers` has them now, too.
        books.add_roots([standing[number] for number in numbers])
        moved = {
            number: standing[number][2] for number in numbers if known.of(number).base != standing[number][2]
        }
        if moved:
            stocks = await driver.fetch(_READ_STOCKS, array_of([*moved]))
            if self._classes.lack(classes_in(stocks)):
                await self._transaction.run(self._classes.load)
            known.read(moved, stocks, self._classes.names)
        books.add_standing([standing[number] for number in numbers])

    async def _lock_rows(
        self, driver: Any, numbers: Collection[int], roots: Collection[int]
    ) -> list[StandingRow]:
        rows: list[StandingRow] = await driver.fetch(_LOCK_ROOTS, array_of(sorted(roots)))
        if below := [number for number in numbers if number not in roots]:
            rows += await driver.fetch(_STANDING, array_of(below))
        return rows

    async def _look_for_lost(self, driver: Any, books: Books, standing: Any, roots: AbstractSet[int]) -> None:
        """Of those that are not where they were known to be, what was known is forgotten."""
        known = self._providers
        lost = [known.of(one) for one in books.provider_ids.values() if one not in standing]
        astray = [known.of(row[0]) for row in standing.values() if row[1] not in roots]
        for one in (*lost, *astray):
            known.forget(one)
            books.provider_ids.pop(one.id.int, None)
        # What is found under an id that was another's is not locked.
        if astray or (lost and await self._find(driver, books, [one.id for one in lost])):
            raise Transient("a provider came into another tree while that was being locked")

    async def write(self, changes: ClaimChanges) -> None:
        books = self._books
        assert books is not None, "claims are written only after they were locked"
        driver = await self._transaction.driver()
        if changes.groups:
            await driver.execute(_WRITE_GROUPS, *_group_columns(changes.groups))
        if changes.forgotten:
            await driver.execute(_FORGET, [books.consumer_ids[one.int] for one in changes.forgotten])
        if changes.counted:
            await driver.executemany(_COUNT, books.counted(changes))
        if not (changes.consumers or changes.held or changes.touched):
            return
        kept = books.kept(changes, self._made)
        ended, begun = books.holders(kept)
        if ended:
            await driver.execute(_END_HOLDING, *_number_columns(ended))
        touched, consumers = list(books.touched(changes)), kept.consumers
        ids, generations, used, living = columns_of(touched, plain=4) or _NO_ROWS
        ((touched_rows, kept_rows),) = await driver.fetch(
            _WRITE,
            *(ids, generations, used),
            array_of([books.consumer_ids[one.row.id.int] for one in consumers]),
            *_consumer_columns(consumers),
            _none_if_null([one.row.ended_at for one in consumers]),
            *_number_columns(begun),
            log.now(),
            books.log_body(changes),
            living,
        )
        if (touched_rows, kept_rows) != (len(touched), len(consumers)):
            raise Bug(
                f"claims not written: {touched_rows} of {len(touched)} providers and {kept_rows} of {len(consumers)}"
                " consumers were there although locked"
            )


_NO_ROWS = ("{}",) * 4


def _group_columns(groups: Sequence[Any]) -> tuple[list[Any], list[str], list[int]]:
    return (
        [group.id for group in groups],
        [group.policy for group in groups],
        [group.max_per_host for group in groups],
    )


def _consumer_columns(kept: Sequence[KeptConsumer]) -> tuple[Any, ...]:
    """From the type on."""
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
