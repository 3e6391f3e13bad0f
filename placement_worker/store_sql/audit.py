"""Do the books contradict themselves? Each question finds rows that must not be, and a sentence to say so.

Asked of one view of the books, without locks: it may be asked at any time, beside everything else.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Select

from placement_worker.tables import (
    allocations,
    consumers,
    inventories,
    providers,
    resource_classes,
)

_parent = providers.alias("parent")
_root = providers.alias("root")

_SUMS = (
    sa.select(
        allocations.c.provider_id,
        allocations.c.class_id,
        sa.func.sum(allocations.c.amount).label("amount"),
    )
    .group_by(allocations.c.provider_id, allocations.c.class_id)
    .subquery("sums")
)

_QUESTIONS: tuple[tuple[str, Select[Any]], ...] = (
    (
        "provider {} has {} of {} in use by its inventory, but its allocations sum up to {}",
        sa.select(
            providers.c.uuid,
            inventories.c.used,
            resource_classes.c.name,
            sa.func.coalesce(_SUMS.c.amount, 0),
        )
        .select_from(inventories)
        .join(providers, providers.c.id == inventories.c.provider_id)
        .join(resource_classes, resource_classes.c.id == inventories.c.class_id)
        .outerjoin(
            _SUMS,
            sa.and_(
                _SUMS.c.provider_id == inventories.c.provider_id, _SUMS.c.class_id == inventories.c.class_id
            ),
        )
        .where(inventories.c.used != sa.func.coalesce(_SUMS.c.amount, 0))
        .order_by(providers.c.id, inventories.c.class_id),
    ),
    (
        "{} of class {} are allocated from provider {}, which has no inventory of it (by internal ids)",
        sa.select(_SUMS.c.amount, _SUMS.c.class_id, _SUMS.c.provider_id)
        .outerjoin(
            inventories,
            sa.and_(
                _SUMS.c.provider_id == inventories.c.provider_id, _SUMS.c.class_id == inventories.c.class_id
            ),
        )
        .where(inventories.c.provider_id.is_(None))
        .order_by(_SUMS.c.provider_id, _SUMS.c.class_id),
    ),
    (
        "{} allocations are of consumer {}, which does not exist (by its internal id)",
        sa.select(sa.func.count(), allocations.c.consumer_id)
        .outerjoin(consumers, consumers.c.id == allocations.c.consumer_id)
        .where(consumers.c.id.is_(None))
        .group_by(allocations.c.consumer_id)
        .order_by(allocations.c.consumer_id),
    ),
    (
        "consumer {} ended with attempt {}, and still holds {} allocations",
        sa.select(consumers.c.uuid, consumers.c.attempt, sa.func.count())
        .join(allocations, allocations.c.consumer_id == consumers.c.id)
        .where(consumers.c.ended_at.is_not(None))
        .group_by(consumers.c.id, consumers.c.uuid, consumers.c.attempt)
        .order_by(consumers.c.id),
    ),
    (
        "consumer {} lives by attempt {}, and holds nothing",
        sa.select(consumers.c.uuid, consumers.c.attempt)
        .outerjoin(allocations, allocations.c.consumer_id == consumers.c.id)
        .where(consumers.c.ended_at.is_(None), allocations.c.consumer_id.is_(None))
        .order_by(consumers.c.id),
    ),
    (
        "consumer {} holds something at generation 0",
        sa.select(consumers.c.uuid)
        .where(
            consumers.c.generation == 0,
            sa.exists().where(allocations.c.consumer_id == consumers.c.id),
        )
        .order_by(consumers.c.id),
    ),
    (
        "consumer {} lives on host {}, which is not the root of a tree",
        sa.select(consumers.c.uuid, consumers.c.host)
        .outerjoin(providers, providers.c.uuid == consumers.c.host)
        .where(
            consumers.c.ended_at.is_(None),
            consumers.c.attempt > 0,
            sa.or_(providers.c.id.is_(None), providers.c.id != providers.c.root_id),
        )
        .order_by(consumers.c.id),
    ),
    (
        "provider {} stands in another tree than its parent {}",
        sa.select(providers.c.uuid, _parent.c.uuid)
        .join(_parent, _parent.c.id == providers.c.parent_id)
        .where(_parent.c.root_id != providers.c.root_id)
        .order_by(providers.c.id),
    ),
    (
        "provider {} has the root {}, but no way leads there",
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


def audit(connection: Connection) -> tuple[str, ...]:
    return tuple(
        sentence.format(*row) for sentence, question in _QUESTIONS for row in connection.execute(question)
    )
