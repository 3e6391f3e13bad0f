"""Read what consumers hold: by consumer, by provider, by project and user. Nothing is locked."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import ConsumerState, TypeUsage
from bus.messages.placement import ResourceAmount
from bus.sql import among
from placement_worker.store_sql.amounts import NOTHING, decode_held
from placement_worker.store_sql.name_cache import CachedVocabulary
from placement_worker.tables import consumers, holders, providers


def consumer(connection: Connection, vocabulary: CachedVocabulary, which: ConsumerId) -> ConsumerState | None:
    states = _states(connection, vocabulary, sa.select(consumers).where(consumers.c.uuid == which))
    return next(iter(states), None)


def holders_of(
    connection: Connection,
    vocabulary: CachedVocabulary,
    provider: ProviderId,
    after: ConsumerId | None,
    limit: int,
) -> tuple[ConsumerState, ...]:
    query = (
        sa.select(consumers)
        .join(holders, holders.c.consumer_id == consumers.c.id)
        .join(providers, providers.c.id == holders.c.provider_id)
        .where(providers.c.uuid == provider)
        .order_by(consumers.c.uuid)
        .limit(limit)
    )
    if after is not None:
        query = query.where(consumers.c.uuid > after)
    return _states(connection, vocabulary, query)


def usages(
    connection: Connection, vocabulary: CachedVocabulary, project: str, user: str
) -> tuple[TypeUsage, ...]:
    """From one pass over the consumers. The database counts those that hold the same, and the JSON is read here: that costs
    less than to let the database unfold it into a row for each amount.
    """
    theirs = [consumers.c.held != NOTHING, consumers.c.project_id == project]
    if user:
        theirs.append(consumers.c.user_id == user)
    alike = sa.select(consumers.c.type, consumers.c.held, sa.func.count()).where(*theirs)
    counts: Counter[str] = Counter()
    used: dict[str, Counter[int]] = {}
    for kind, text, count in connection.execute(alike.group_by(consumers.c.type, consumers.c.held)):
        counts[kind] += count
        of_kind = used.setdefault(kind, Counter())
        for of_provider in decode_held(text).values():
            for class_id, amount in of_provider.items():
                of_kind[class_id] += amount * count
    if vocabulary.classes.lack({class_id for of_kind in used.values() for class_id in of_kind}):
        vocabulary.classes.load(connection)
    names = vocabulary.classes.names
    return tuple(
        TypeUsage(
            type=kind,
            consumers=counts[kind],
            used={names[class_id]: amount for class_id, amount in used[kind].items()},
        )
        for kind in sorted(counts)
    )


def _states(
    connection: Connection, vocabulary: CachedVocabulary, query: sa.Select[Any]
) -> tuple[ConsumerState, ...]:
    """The consumers that hold something."""
    rows = [row for row in connection.execute(query) if row.held != NOTHING]
    held = {row.id: decode_held(row.held) for row in rows}
    numbers = {number for of_one in held.values() for number in of_one}
    if vocabulary.classes.lack({one for of_one in held.values() for used in of_one.values() for one in used}):
        vocabulary.classes.load(connection)
    names = vocabulary.classes.names
    ids = _ids(connection, sorted(numbers))
    return tuple(
        _state(
            row,
            tuple(
                ResourceAmount(provider=ids[number], resource=names[class_id], amount=amount)
                for number, used in held[row.id].items()
                for class_id, amount in used.items()
            ),
        )
        for row in rows
    )


def _ids(connection: Connection, numbers: Sequence[int]) -> dict[int, ProviderId]:
    if not numbers:
        return {}
    query = sa.select(providers.c.id, providers.c.uuid).where(among(connection, providers.c.id, numbers))
    return {row.id: row.uuid for row in connection.execute(query)}


def _state(row: Row[Any], held: tuple[ResourceAmount, ...]) -> ConsumerState:
    return ConsumerState(
        id=row.uuid,
        project=row.project_id,
        user=row.user_id,
        type=row.type,
        generation=row.generation,
        attempt=row.attempt,
        held=held,
    )
