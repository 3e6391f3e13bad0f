"""Does placement's data contradict itself? Each query finds rows that must not exist, with a sentence that reports them.

All queries read one snapshot and take no locks, so an audit may run at any time.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Select, Subquery
from sqlalchemy.dialects.postgresql import JSONB

from bus.messages.audit import BESIDE_INSTANCES
from kit.sql import among
from placement_worker.core.limits import wrong_quota
from placement_worker.store_sql.consumers import wrong_quotas
from placement_worker.store_sql.log import LogEntry
from placement_worker.store_sql.names import CachedVocabulary
from placement_worker.store_sql.rows import NOTHING, Used, decode_used, encode_amounts
from placement_worker.tables import consumers, holders, inventories, providers, resource_classes

# What follows from the amounts that consumers hold, for the audit that compares and for the recount that corrects.
#
# To sum over many providers or consumers, the database unfolds their JSON (rows.py) into rows.


def used_amounts(connection: Connection) -> Subquery:
    """A subquery with the usage of all providers: one row of provider_id, class_id and used for each class."""
    used = _each(connection, providers.c.used, "used_of")
    return (
        sa.select(
            providers.c.id.label("provider_id"),
            _number(used.c.key, "class_id"),
            _number(used.c.value, "used"),
        )
        .join_from(providers, used, sa.true())
        .subquery("used")
    )


def held_amounts(connection: Connection) -> Subquery:
    """A subquery with what all consumers hold, one row for each class of each provider.

    Its columns are consumer_id, provider_id, class_id and amount.
    """
    of_consumer = _each(connection, consumers.c.held, "held_by")
    of_provider = _each(connection, of_consumer.c.value, "held_of")
    return (
        sa.select(
            consumers.c.id.label("consumer_id"),
            _number(of_consumer.c.key, "provider_id"),
            _number(of_provider.c.key, "class_id"),
            _number(of_provider.c.value, "amount"),
        )
        .join_from(consumers, of_consumer, sa.true())
        .join(of_provider, sa.true())
        .subquery("held")
    )


def held_sums(connection: Connection) -> Subquery:
    """A subquery with what consumers hold in all: one row of provider_id, class_id and amount for each class of a provider."""
    held = held_amounts(connection)
    sums = sa.select(held.c.provider_id, held.c.class_id, sa.func.sum(held.c.amount).label("amount"))
    return sums.group_by(held.c.provider_id, held.c.class_id).subquery("sums")


def missing_holders(connection: Connection) -> Select[tuple[int, int]]:
    """The rows that the table of holders lacks: a provider, and a consumer that holds something of it."""
    held = held_amounts(connection)
    pairs = sa.select(held.c.provider_id, held.c.consumer_id).distinct()
    return pairs.outerjoin(holders, _same_pair(held)).where(holders.c.provider_id.is_(None))


def stale_holders(connection: Connection) -> Select[tuple[int, int]]:
    """The rows of the table of holders whose consumer holds nothing of the provider."""
    held = held_amounts(connection)
    pairs = sa.select(holders.c.provider_id, holders.c.consumer_id)
    return pairs.outerjoin(held, _same_pair(held)).where(held.c.provider_id.is_(None))


def _same_pair(held: Subquery) -> sa.ColumnElement[bool]:
    return sa.and_(holders.c.provider_id == held.c.provider_id, holders.c.consumer_id == held.c.consumer_id)


# How many consumers that hold something have each host.
living = (
    sa.select(consumers.c.host, sa.func.count().label("number"))
    .where(consumers.c.held != NOTHING, consumers.c.host.is_not(None))
    .group_by(consumers.c.host)
    .subquery("living")
)


def _each(connection: Connection, column: sa.ColumnElement[str], name: str) -> sa.TableValuedAlias:
    """A SQL expression with one row for each key of the JSON object in this column."""
    if connection.dialect.name == "postgresql":
        each = sa.func.jsonb_each_text(sa.cast(column, JSONB))
    else:
        each = sa.func.json_each(column)
    return each.table_valued(sa.column("key", sa.Text), sa.column("value", sa.Text), name=name)


def _number(text: sa.ColumnElement[str], name: str) -> sa.Label[int]:
    return sa.cast(text, sa.BigInteger).label(name)


_parent = providers.alias("parent")
_root = providers.alias("root")

Question = tuple[str, Select[Any]]


def audit(connection: Connection, vocabulary: CachedVocabulary) -> tuple[str, ...]:
    questions = (
        *_of_usage(connection),
        *_of_holding(connection),
        *_OF_CONSUMERS,
        *_OF_HOSTS,
        *_OF_TREES,
    )
    found = [
        sentence.format(*row) for sentence, question in questions for row in connection.execute(question)
    ]
    of_quotas = [wrong_quota(quota, used) for quota, used in wrong_quotas(connection, vocabulary)]
    return (*found, *of_quotas)


def _of_usage(connection: Connection) -> Iterator[Question]:
    used, sums = used_amounts(connection), held_sums(connection)
    in_all = sa.func.coalesce(sums.c.amount, 0)
    yield (
        "provider {} has {} of {} in use by its own row, but what consumers hold of it sums up to {}",
        sa.select(providers.c.uuid, used.c.used, resource_classes.c.name, in_all)
        .join_from(used, providers, providers.c.id == used.c.provider_id)
        .join(resource_classes, resource_classes.c.id == used.c.class_id)
        .outerjoin(sums, _same_stock(sums, used))
        .where(used.c.used != in_all)
        .order_by(providers.c.id, used.c.class_id),
    )
    yield (
        "{} of class {} are held of provider {}, whose row does not say that any is in use (by internal ids)",
        sa.select(sums.c.amount, sums.c.class_id, sums.c.provider_id)
        .outerjoin(used, _same_stock(sums, used))
        .where(used.c.provider_id.is_(None))
        .order_by(sums.c.provider_id, sums.c.class_id),
    )
    yield (
        "provider {} has {} of class {} in use, and no inventory of it (the class by its internal id)",
        sa.select(providers.c.uuid, used.c.used, used.c.class_id)
        .join_from(used, providers, providers.c.id == used.c.provider_id)
        .outerjoin(inventories, _same_stock(inventories, used))
        .where(inventories.c.provider_id.is_(None))
        .order_by(providers.c.id, used.c.class_id),
    )
    yield (
        "provider {} has an inventory of class {}, and does not say how much of it is in use (the class by its internal id)",
        sa.select(providers.c.uuid, inventories.c.class_id)
        .join_from(inventories, providers, providers.c.id == inventories.c.provider_id)
        .outerjoin(used, _same_stock(inventories, used))
        .where(used.c.provider_id.is_(None))
        .order_by(providers.c.id, inventories.c.class_id),
    )


def _same_stock(one: sa.FromClause, other: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(one.c.provider_id == other.c.provider_id, one.c.class_id == other.c.class_id)


def _of_holding(connection: Connection) -> Iterator[Question]:
    missing, stale = missing_holders(connection).subquery("missing"), stale_holders(connection)
    yield (
        "consumer {} holds something of provider {}, which does not know it as a holder (by its internal id)",
        sa.select(consumers.c.uuid, missing.c.provider_id)
        .join_from(missing, consumers, consumers.c.id == missing.c.consumer_id)
        .order_by(missing.c.provider_id, consumers.c.uuid),
    )
    yield (
        "provider {} knows consumer {} as a holder, which holds nothing of it (by internal ids)",
        stale.order_by(holders.c.provider_id, holders.c.consumer_id),
    )


_HOLDS = consumers.c.held != NOTHING

_OF_CONSUMERS: tuple[Question, ...] = (
    (
        "consumer {} ended with attempt {}, and still holds {}",
        sa.select(consumers.c.uuid, consumers.c.attempt, consumers.c.held)
        .where(consumers.c.ended_at.is_not(None), _HOLDS)
        .order_by(consumers.c.id),
    ),
    (
        "consumer {} has a live attempt, {}, and holds nothing",
        sa.select(consumers.c.uuid, consumers.c.attempt)
        .where(consumers.c.ended_at.is_(None), ~_HOLDS)
        .order_by(consumers.c.id),
    ),
    (
        "consumer {} holds something at generation 0",
        sa.select(consumers.c.uuid).where(consumers.c.generation == 0, _HOLDS).order_by(consumers.c.id),
    ),
    (
        # A host that became a part of another tree is still its host. The rest that a move on one host holds
        # has none.
        "consumer {} has a live attempt, but no host",
        sa.select(consumers.c.uuid, consumers.c.host)
        .where(consumers.c.ended_at.is_(None), consumers.c.attempt > 0, consumers.c.host.is_(None))
        .where(consumers.c.type.not_in(BESIDE_INSTANCES))
        .order_by(consumers.c.id),
    ),
)

_OF_HOSTS: tuple[Question, ...] = (
    (
        "provider {} counts {} consumers, but is the host of {}",
        sa.select(providers.c.uuid, providers.c.consumers, sa.func.coalesce(living.c.number, 0))
        .outerjoin(living, living.c.host == providers.c.uuid)
        .where(providers.c.consumers != sa.func.coalesce(living.c.number, 0))
        .order_by(providers.c.id),
    ),
)

_OF_TREES: tuple[Question, ...] = (
    (
        "provider {} is in another tree than its parent {}",
        sa.select(providers.c.uuid, _parent.c.uuid)
        .join(_parent, _parent.c.id == providers.c.parent_id)
        .where(_parent.c.root_id != providers.c.root_id)
        .order_by(providers.c.id),
    ),
    (
        "provider {} has the root {}, but no parents lead there",
        sa.select(providers.c.uuid, _root.c.uuid)
        .join(_root, _root.c.id == providers.c.root_id)
        .where(
            sa.or_(
                _root.c.root_id != _root.c.id,
                (providers.c.parent_id.is_(None)) != (providers.c.root_id == providers.c.id),
            )
        )
        .order_by(providers.c.id),
    ),
)

# Compute again what placement stores although it follows from what consumers hold.
#
# That is each provider's usage, the number of consumers whose host it is, and the table of which consumer holds something of
# which provider.
#
# Claims lock the root of each tree that they touch before they write. So when the roots are locked here, each claim on
# these trees is either committed, and counted, or has not begun to write.


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


def recount(connection: Connection) -> LogEntry:
    """Correct what is wrong. Returns the entry of the change log, by which pictures learn the right numbers."""
    found = _wrong(connection)
    if not found.providers:
        return LogEntry()
    of_wrong = sa.select(providers.c.root_id).where(
        among(connection, providers.c.id, sorted(found.providers))
    )
    roots = sorted({*connection.scalars(of_wrong)})
    rows = sa.select(providers.c.id).where(among(connection, providers.c.id, roots))
    connection.execute(rows.order_by(providers.c.id).with_for_update()).all()
    in_trees = sa.select(providers.c.id).where(among(connection, providers.c.root_id, roots))
    # A holder row may name a provider that does not exist.
    ours = {*connection.scalars(in_trees)} | {provider for provider, _ in found.stale}
    wrong = _wrong(connection, ours)
    _write(connection, wrong)
    return LogEntry(used=tuple(sorted(wrong.numbers)))


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
