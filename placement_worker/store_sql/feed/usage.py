"""Read only what claims change of providers: most of what the feed publishes, so its query is as small as possible."""

from collections.abc import Collection
from uuid import UUID

from msgspec import convert

from bus.message import ProviderId
from bus.messages.placement import ProviderUsage
from bus.sql import Transaction
from placement_worker.store_sql.amounts import decode_used
from placement_worker.store_sql.driver_rows import portable, rows_of
from placement_worker.store_sql.name_cache import CachedNames

_READ = portable(
    "SELECT id, uuid, base, revision, generation, used, consumers FROM providers"
    " WHERE id = ANY ($1::text::bigint[]) ORDER BY id + 0"
)


async def read_usage(
    transaction: Transaction, classes: CachedNames, internal: Collection[int]
) -> tuple[ProviderUsage, ...]:
    """The usage of those that still exist, ordered by internal id."""
    rows = await rows_of(transaction, _READ, internal)
    ids = convert([row[1] for row in rows], list[UUID])
    used = [decode_used(row[5]) for row in rows]
    if classes.lack({class_id for amounts in used for class_id in amounts}):
        await transaction.run(classes.load)
    names = classes.names
    return tuple(
        [
            ProviderUsage(
                internal=number,
                id=ProviderId(uuid),
                base=base,
                revision=revision,
                generation=generation,
                used={names[class_id]: amount for class_id, amount in amounts.items()},
                consumers=consumers,
            )
            for (number, _, base, revision, generation, _, consumers), uuid, amounts in zip(
                rows, ids, used, strict=True
            )
        ]
    )
