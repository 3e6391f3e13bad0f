"""Compute again what placement stores although it follows from what consumers hold.

That is each provider's usage, the number of consumers whose host it is, and the table of which consumer holds something of
which provider.

Claims lock the root of each tree that they touch before they write. So when the roots are locked here, each claim on
these trees is either committed, and counted, or has not begun to write.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Select

from bus.sql import among
from placement_worker.store_sql import log
from placement_worker.store_sql.amounts import held_sums, living, missing_holders, stale_holders
from placement_worker.store_sql.driver_rows import Used, decode_used, encode_amounts
from placement_worker.store_sql.log import LogEntry
from placement_worker.tables import holders, inventories, providers

Pair = tuple[int, int]


# The usage of a provider, and how many consumers live on it: as stored, or as it should be.
_Numbers = tuple[Used, int]


class _Wrong(Struct, frozen=True):
    """The differences between the stored numbers and what follows from the holdings of consumers.

    `numbers` has the right numbers of each provider whose stored ones are wrong. `stale` are rows of the table
    `holders` to delete, and `missing` those to insert.
    """

    numbers: dict[int, _Numbers]
    stale: frozenset[Pair]
    missing: frozenset[Pair]

    @property
    def providers(self) -> set[int]:
        return {*self.numbers, *(provider for provider, _ in self.stale | self.missing)}


def recount(connection: Connection) -> None:
    found = _wrong(connection)
    if not found.providers:
        return
    of_wrong = sa.select(providers.c.root_id).where(
        among(connection, providers.c.id, sorted(found.providers))
    )
    roots = sorted({*connection.scalars(of_wrong)})
    rows = sa.select(providers.c.id).where(among(connection, providers.c.id, roots))
    connection.execute(rows.order_by(providers.c.id).with_for_update()).all()
    in_trees = sa.select(providers.c.id).where(among(connection, providers.c.root_id, roots))
    # A holder row may name a provider that does not exist.
    ours = {*connection.scalars(in_trees)} | {provider for provider, _ in found.stale}
    _write(connection, _wrong(connection, ours))


def _wrong(connection: Connection, only: Collection[int] | None = None) -> _Wrong:
    """What is wrong, of all providers or of these.

    Each statement reads what is committed by then. Of trees that are not locked, some numbers are therefore right by now; and a
    provider that one statement finds and another does not is left out.
    """
    right = _right_numbers(connection)
    stored = connection.execute(sa.select(providers.c.id, providers.c.used, providers.c.consumers))
    numbers = {
        number: expected
        for number, used, count in stored
        if (only is None or number in only)
        and (expected := right.get(number)) is not None
        and (decode_used(used), count) != expected
    }

    def pairs(query: Select[Any]) -> frozenset[Pair]:
        found = ((provider, consumer) for provider, consumer in connection.execute(query))
        return frozenset(pair for pair in found if only is None or pair[0] in only)

    return _Wrong(numbers, pairs(stale_holders(connection)), pairs(missing_holders(connection)))


def _right_numbers(connection: Connection) -> dict[int, _Numbers]:
    ids = {uuid: number for number, uuid in connection.execute(sa.select(providers.c.id, providers.c.uuid))}
    used: dict[int, Used] = {number: {} for number in ids.values()}
    for number, class_id in connection.execute(sa.select(inventories.c.provider_id, inventories.c.class_id)):
        if number in used:
            used[number][class_id] = 0
    for number, class_id, amount in connection.execute(sa.select(held_sums(connection))):
        # A held amount of a class without an inventory is not counted, and stays a contradiction.
        if class_id in used.get(number, {}):
            used[number][class_id] = int(amount)
    counts = Counter(
        {ids[host]: count for host, count in connection.execute(sa.select(living)) if host in ids}
    )
    return {number: (of_one, counts[number]) for number, of_one in used.items()}


def _write(connection: Connection, wrong: _Wrong) -> None:
    for number, (used, count) in sorted(wrong.numbers.items()):
        connection.execute(
            sa.update(providers)
            .where(providers.c.id == number)
            .values(
                used=encode_amounts(used),
                consumers=count,
                revision=providers.c.revision + 1,
            )
        )
    for provider, consumer in sorted(wrong.stale):
        connection.execute(
            sa.delete(holders).where(holders.c.provider_id == provider, holders.c.consumer_id == consumer)
        )
    if wrong.missing:
        connection.execute(
            sa.insert(holders),
            [{"provider_id": one, "consumer_id": consumer} for one, consumer in sorted(wrong.missing)],
        )
    # Pictures learn the right numbers by the change log.
    log.append(connection, LogEntry(used=tuple(sorted(wrong.numbers))))
