"""What claims change of providers, read by itself: most of what the feed tells, and so as narrow as it goes."""

from collections.abc import Collection, Iterable
from typing import Any
from uuid import UUID

from bus.message import ProviderId
from bus.messages.placement import ProviderUsage
from bus.sql import Transaction
from placement_worker.store_sql.names import Names
from placement_worker.store_sql.raw import rows_of

_READ = """
SELECT providers.id, providers.uuid, providers.base, providers.revision, providers.generation,
       stock.class_id, stock.used
FROM providers
JOIN inventories AS stock ON stock.provider_id = providers.id
"""
_ON_POSTGRESQL = _READ + "WHERE providers.id = ANY(('{' || $1 || '}')::bigint[]) ORDER BY providers.id"
_ON_SQLITE = _READ + "WHERE providers.id IN (SELECT value FROM json_each('[' || ? || ']')) ORDER BY 1"  # noqa: S608 - no words but ours


async def read_usage(
    transaction: Transaction, classes: Names, internal: Collection[int]
) -> tuple[ProviderUsage, ...]:
    """Of those of them that still exist, by internal id."""
    if not internal:
        return ()
    rows = await rows_of(transaction, _ON_POSTGRESQL, _ON_SQLITE, ",".join(map(str, internal)))
    if classes.lack({row[5] for row in rows}):
        await transaction.run(classes.load)
    return tuple(_usages(rows, classes.names))


def _usages(rows: Iterable[Any], names: dict[int, str]) -> Iterable[ProviderUsage]:
    """One for all rows of a provider, which follow each other."""
    last = -1
    used: dict[str, int] = {}
    for number, uuid, base, revision, generation, class_id, amount in rows:
        if number != last:
            last, used = number, {}
            yield ProviderUsage(
                internal=number,
                id=ProviderId(uuid if isinstance(uuid, UUID) else UUID(uuid)),
                base=base,
                revision=revision,
                generation=generation,
                used=used,
            )
        used[names[class_id]] = amount
