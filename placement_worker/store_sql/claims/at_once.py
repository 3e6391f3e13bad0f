"""The claim of one new consumer on PostgreSQL by one statement, which is a transaction of its own.

A claim that comes alone costs four round trips otherwise: begin, lock, write, commit. Here it is decided by rows that are not
locked, by the same rules: as this process wrote them last, or else as they are read. The statement then writes only if
all of these rows are still the same. If they are not, or if the claim is not granted, nothing was written, and it is locked and
decided anew.

The statement compares twice. Before it inserts the consumer, it compares what it sees without waiting for anybody. That finds
what was remembered too long. Then it updates the providers on the same condition. An update that has waited for a row evaluates
its condition on that row as it is then. The condition has only columns of that row, so nothing is judged from before the wait. If
the second comparison fails after the first one did not, somebody wrote in between: then the statement ends with an error, since
the consumer is inserted already. The consumer comes first, then the providers in the order of their internal ids, as for all who lock.
"""

from collections.abc import Mapping, Sequence

import asyncpg

from bus.clock import now
from bus.sql import PostgresTransaction, array_of
from placement_worker.core.ledger import ClaimChanges, Ledger
from placement_worker.store_sql.claims.claim_locks import FIND_BY_ID, READ_PROVIDERS
from placement_worker.store_sql.claims.claims import ClaimRows, ConsumerRecord, classes_in
from placement_worker.store_sql.provider_cache import UsageRow
from placement_worker.store_sql.quotas import LAST_QUOTA, ClaimQuotas

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
