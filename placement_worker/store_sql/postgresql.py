"""Claims on PostgreSQL: a constant number of statements for a batch, spoken to asyncpg directly.

No statement both locks and checks. In READ COMMITTED a statement that waited for a row sees that row anew, but
everything it joins as it was before it waited: checked there, a batch would be granted what others took meanwhile,
without any error (measured: 7,050 claims where 4,000 fit). So locks come first, and later statements read.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from bus.errors import Bug, Transient
from bus.sql import PostgresTransaction, array_of
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, Consumer, Ledger
from placement_worker.store_sql import log
from placement_worker.store_sql.claims import Books, named_by
from placement_worker.store_sql.names import Names
from placement_worker.store_sql.roots import KnownRoots

_MAKE_GROUPS = """
INSERT INTO server_groups (uuid, policy, max_per_host)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[])
ON CONFLICT (uuid) DO NOTHING
"""

_LOCK_GROUPS = "SELECT uuid FROM server_groups WHERE uuid = ANY($1) ORDER BY uuid FOR UPDATE"

_WRITE_GROUPS = """
UPDATE server_groups SET policy = new.policy, max_per_host = new.max_per_host
FROM unnest($1::uuid[], $2::text[], $3::int[]) AS new (uuid, policy, max_per_host)
WHERE server_groups.uuid = new.uuid
"""

# Waits for whoever has made the same consumer and not yet committed. Those made here nobody else can see, so they are
# as good as locked.
_MAKE_CONSUMERS = """
INSERT INTO consumers (uuid, type, project_id, user_id, cell, generation, attempt)
SELECT new.uuid, 'instance', '', '', '', 0, 0
FROM unnest($1::text::uuid[]) WITH ORDINALITY AS new (uuid, place)
ORDER BY new.place
ON CONFLICT (uuid) DO NOTHING
RETURNING uuid, id
"""

_LOCK_CONSUMERS = """
SELECT uuid, id, type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group
FROM consumers
WHERE uuid = ANY($1::text::uuid[])
ORDER BY id
FOR UPDATE
"""

_READ_HELD = """
SELECT allocations.consumer_id, providers.uuid, allocations.class_id, allocations.amount
FROM allocations
JOIN providers ON providers.id = allocations.provider_id
WHERE allocations.consumer_id = ANY($1)
ORDER BY allocations.consumer_id, allocations.provider_id, allocations.class_id
"""

_FIND_ROOTS = "SELECT uuid, root_id FROM providers WHERE uuid = ANY($1::text::uuid[])"

# Who waits for a row sees that row anew, and to see whether it still is one of those asked for, asks for all of them
# again: so what is asked for is only numbers.
_LOCK_ROOTS = "SELECT id FROM providers WHERE id = ANY($1::text::bigint[]) ORDER BY id FOR NO KEY UPDATE"

_READ_STANDING = """
SELECT asked.place - 1, providers.id, providers.root_id,
       CASE WHEN root.id <> providers.id THEN root.uuid END, providers.cell,
       providers.generation, root.shape,
       stock.class_id, stock.total, stock.reserved, stock.min_unit, stock.max_unit, stock.step_size,
       stock.allocation_ratio, stock.used
FROM unnest($1::text::uuid[]) WITH ORDINALITY AS asked (uuid, place)
JOIN providers ON providers.uuid = asked.uuid
JOIN providers AS root ON root.id = providers.root_id
LEFT JOIN inventories AS stock ON stock.provider_id = providers.id
ORDER BY asked.place
"""

_FORGET = "DELETE FROM consumers WHERE id = ANY($1)"

_EMPTY = "DELETE FROM allocations WHERE consumer_id = ANY($1)"

# A column of the consumers that is the same all the way down has one element, or none if it is NULL: in most batches
# most of them are, and asyncpg takes half a microsecond for each element. unnest fills up with NULLs.
# What it counts is compared with what it was to write: a row that is not there is an update lost.
_WRITE = """
WITH touched AS (
    UPDATE providers SET generation = new.generation, revision = providers.revision + 1
    FROM unnest($1::text::bigint[], $2::text::bigint[]) AS new (id, generation)
    WHERE providers.id = new.id
    RETURNING 1
), counted AS (
    UPDATE inventories SET used = new.used
    FROM unnest($3::text::bigint[], $4::text::bigint[], $5::text::bigint[]) AS new (provider_id, class_id, used)
    WHERE inventories.provider_id = new.provider_id AND inventories.class_id = new.class_id
    RETURNING 1
), kept AS (
    UPDATE consumers
    SET type = COALESCE(new.type, ($7::text[])[1]),
        project_id = COALESCE(new.project_id, ($8::text[])[1]),
        user_id = COALESCE(new.user_id, ($9::text[])[1]),
        cell = COALESCE(new.cell, ($10::text[])[1]),
        generation = COALESCE(new.generation, ($11::bigint[])[1]),
        attempt = COALESCE(new.attempt, ($12::bigint[])[1]),
        ended_at = new.ended_at, host = new.host, server_group = new.server_group
    FROM unnest($6::text::bigint[], $7::text[], $8::text[], $9::text[], $10::text[], $11::bigint[], $12::bigint[],
                $13::timestamptz[], $14::text::uuid[], $15::text::uuid[])
         AS new (id, type, project_id, user_id, cell, generation, attempt, ended_at, host, server_group)
    WHERE consumers.id = new.id
    RETURNING 1
), held AS (
    INSERT INTO allocations (consumer_id, provider_id, class_id, amount)
    SELECT * FROM unnest($16::text::bigint[], $17::text::bigint[], $18::text::bigint[], $19::text::bigint[])
), logged AS (
    INSERT INTO change_log (written_by, at, body)
    SELECT pg_current_xact_id(), $20::timestamptz, $21::bytea
    WHERE $21::bytea IS NOT NULL
)
SELECT (SELECT count(*) FROM touched), (SELECT count(*) FROM counted), (SELECT count(*) FROM kept)
"""


class PostgresClaims:
    """The claims of one transaction: locked once, written from what was locked."""

    def __init__(self, transaction: PostgresTransaction, classes: Names, roots: KnownRoots) -> None:
        self._transaction = transaction
        self._classes = classes
        self._roots = roots
        self._books: Books | None = None

    async def lock(self, orders: Sequence[ClaimOrder]) -> Ledger:
        driver = await self._transaction.driver()
        named = named_by(orders)
        books = self._books = Books(named, self._classes)
        if named.groups:
            await driver.execute(_MAKE_GROUPS, *_group_columns(named.groups))
            await driver.fetch(_LOCK_GROUPS, [group.id for group in named.groups])
        await self._lock_consumers(driver, books)
        return await self._lock_standing(driver, books)

    async def _lock_consumers(self, driver: Any, books: Books) -> None:
        for uuid, number in await driver.fetch(_MAKE_CONSUMERS, array_of(books.named.consumers)):
            books.consumer_ids[uuid.int] = number
        known = [consumer for consumer in books.named.consumers if consumer.int not in books.consumer_ids]
        if not known:
            return
        rows = await driver.fetch(_LOCK_CONSUMERS, array_of(known))
        if len(rows) < len(known):
            raise Transient("a consumer was forgotten in the moment it was claimed for again")
        books.add_consumers(rows)
        held = await driver.fetch(_READ_HELD, [row[1] for row in rows])
        await self._learn({row[2] for row in held})
        books.add_held(held)

    async def _lock_standing(self, driver: Any, books: Books) -> Ledger:
        if unknown := self._roots.unknown_of(books.providers):
            self._roots.learn(await driver.fetch(_FIND_ROOTS, array_of(unknown)))
        locked = self._roots.of(books.providers)
        await driver.execute(_LOCK_ROOTS, array_of(locked))
        rows = await driver.fetch(_READ_STANDING, array_of(books.providers))
        if not {row[2] for row in rows}.issubset(locked):
            self._roots.forget(books.providers)
            raise Transient("a provider came into another tree while that was being locked")
        await self._learn({row[7] for row in rows} - {None})
        books.add_standing(books.providers, rows)
        return books.ledger()

    async def _learn(self, class_ids: AbstractSet[int]) -> None:
        if self._classes.lack(class_ids):
            await self._transaction.run(self._classes.load)

    async def write(self, changes: ClaimChanges) -> None:
        books = self._books
        assert books is not None, "claims are written only after they were locked"
        driver = await self._transaction.driver()
        if changes.groups:
            await driver.execute(_WRITE_GROUPS, *_group_columns(changes.groups))
        if changes.forgotten:
            await driver.execute(_FORGET, [books.consumer_ids[one.int] for one in changes.forgotten])
        if emptied := books.emptied(changes):
            await driver.execute(_EMPTY, emptied)
        if not (changes.consumers or changes.held or changes.generations):
            return
        generations, used = books.generations(changes), books.used(changes)
        ((touched, counted, kept),) = await driver.fetch(
            _WRITE,
            *_number_columns(generations, 2),
            *_number_columns(used, 3),
            *_consumer_columns(books, changes.consumers),
            *_number_columns(books.allocations(changes), 4),
            log.now(),
            books.log_body(changes),
        )
        if (touched, counted, kept) != (len(generations), len(used), len(changes.consumers)):
            raise Bug(
                f"claims not written: {touched} of {len(generations)} providers, {counted} of {len(used)}"
                f" inventories, {kept} of {len(changes.consumers)} consumers were there although locked"
            )


def _group_columns(groups: Sequence[Any]) -> tuple[list[Any], list[str], list[int]]:
    return (
        [group.id for group in groups],
        [group.policy for group in groups],
        [group.max_per_host for group in groups],
    )


def _consumer_columns(books: Books, consumers: Sequence[Consumer]) -> tuple[Any, ...]:
    return (
        array_of([books.consumer_ids[one.id.int] for one in consumers]),
        _once([one.type for one in consumers]),
        _once([one.project for one in consumers]),
        _once([one.user for one in consumers]),
        _once([one.cell for one in consumers]),
        _once([one.generation for one in consumers]),
        _once([one.attempt for one in consumers]),
        _none_if_null([one.ended_at for one in consumers]),
        array_of(_none_if_null([one.host for one in consumers])),
        array_of(_none_if_null([one.group for one in consumers])),
    )


def _number_columns(rows: Sequence[tuple[int, ...]], width: int) -> list[str]:
    return [array_of(column) for column in zip(*rows, strict=True)] if rows else ["{}"] * width


def _once(column: list[Any]) -> list[Any]:
    return column[:1] if column and column.count(column[0]) == len(column) else column


def _none_if_null(column: list[Any]) -> list[Any]:
    return [] if column.count(None) == len(column) else column
