"""Read consumers as an audit compares them: whole rows, by pages or by ids. Nothing is locked."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from bus.message import ConsumerId, ProviderId
from bus.messages.books import BookEntry
from bus.messages.placement import ResourceAmount
from bus.sql import among
from placement_worker.store_sql import log
from placement_worker.store_sql.amounts import NOTHING, Held, decode_held
from placement_worker.store_sql.name_cache import CachedVocabulary
from placement_worker.tables import change_log, consumers, providers


def books_page(
    connection: Connection, vocabulary: CachedVocabulary, after: ConsumerId | None, limit: int
) -> tuple[BookEntry, ...]:
    query = sa.select(consumers).where(consumers.c.held != NOTHING)
    if after is not None:
        query = query.where(consumers.c.uuid > after)
    return _entries(connection, vocabulary, query.order_by(consumers.c.uuid).limit(limit))


def book_entries(
    connection: Connection,
    vocabulary: CachedVocabulary,
    named: Sequence[ConsumerId],
    new_since: datetime | None,
) -> tuple[BookEntry, ...]:
    query = sa.select(consumers).where(among(connection, consumers.c.uuid, named))
    new = frozenset[ConsumerId]() if new_since is None else _claimed_since(connection, new_since)
    return _entries(connection, vocabulary, query.order_by(consumers.c.uuid), new)


def _claimed_since(connection: Connection, since: datetime) -> frozenset[ConsumerId]:
    entries = connection.scalars(sa.select(change_log.c.body).where(change_log.c.at >= since))
    return frozenset(holder.consumer for body in entries for holder in log.decode(body).claimed)


def _entries(
    connection: Connection,
    vocabulary: CachedVocabulary,
    query: sa.Select[Any],
    new: frozenset[ConsumerId] = frozenset(),
) -> tuple[BookEntry, ...]:
    rows = connection.execute(query).all()
    held = {row.id: decode_held(row.held) for row in rows}
    if vocabulary.classes.lack({one for of_one in held.values() for used in of_one.values() for one in used}):
        vocabulary.classes.load(connection)
    numbers = sorted({number for of_one in held.values() for number in of_one})
    found = sa.select(providers.c.id, providers.c.uuid).where(among(connection, providers.c.id, numbers))
    ids = {number: ProviderId(uuid) for number, uuid in connection.execute(found)} if numbers else {}
    names = vocabulary.classes.names
    return tuple([_entry(row, _amounts(held[row.id], ids, names), row.uuid in new) for row in rows])


def _amounts(held: Held, ids: dict[int, ProviderId], names: dict[int, str]) -> tuple[ResourceAmount, ...]:
    """Without what is held of providers that do not exist: the audit of the tables reports these."""
    return tuple(
        ResourceAmount(provider=ids[number], resource=names[class_id], amount=amount)
        for number, used in held.items()
        if number in ids
        for class_id, amount in used.items()
    )


def _entry(row: Row[Any], held: tuple[ResourceAmount, ...], is_new: bool) -> BookEntry:  # noqa: FBT001 - the row's mark
    return BookEntry(
        id=row.uuid,
        type=row.type,
        project=row.project_id,
        user=row.user_id,
        cell=row.cell,
        generation=row.generation,
        attempt=row.attempt,
        ended=row.ended_at is not None,
        host=row.host,
        group=row.server_group,
        held=held,
        is_new=is_new,
    )
