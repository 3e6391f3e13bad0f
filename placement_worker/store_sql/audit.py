"""Does placement's data contradict itself? Each query finds rows that must not exist, with a sentence that reports them.

All queries read one snapshot and take no locks, so an audit may run at any time.
"""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Select

from bus.messages.books import BESIDE_INSTANCES
from placement_worker.core.quotas import wrong_quota
from placement_worker.store_sql.amounts import held_sums, living, missing_holders, stale_holders, used_amounts
from placement_worker.store_sql.driver_rows import NOTHING
from placement_worker.store_sql.name_cache import CachedVocabulary
from placement_worker.store_sql.quotas import wrong_quotas
from placement_worker.tables import (
    consumers,
    holders,
    inventories,
    providers,
    resource_classes,
)

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
