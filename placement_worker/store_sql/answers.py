"""Stores pages of messages that were too long for one: the later pages of answers, and the earlier pages of large claims."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID, uuid5

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.clock import now
from bus.sql import insert
from placement_worker.store import KeptPage
from placement_worker.tables import kept_answers


def keep_answer(connection: Connection, answer: UUID, pages: Sequence[bytes]) -> None:
    rows = [
        {
            "answer": answer,
            "page": number,
            "is_last": number == len(pages),
            "kept_at": now(),
            "body": body,
        }
        for number, body in enumerate(pages, 1)
    ]
    connection.execute(insert(connection, kept_answers).on_conflict_do_nothing(), rows)


def kept_page(connection: Connection, answer: UUID, page: int) -> KeptPage | None:
    query = sa.select(kept_answers.c.body, kept_answers.c.is_last)
    row = connection.execute(
        query.where(kept_answers.c.answer == answer, kept_answers.c.page == page)
    ).first()
    return None if row is None else KeptPage(row.body, row.is_last)


def keep_page(connection: Connection, claim: UUID, page: int, body: bytes) -> None:
    row = {"answer": _key_of(claim), "page": page, "is_last": False, "kept_at": now(), "body": body}
    connection.execute(insert(connection, kept_answers).on_conflict_do_nothing(), [row])


def kept_pages(connection: Connection, claim: UUID) -> dict[int, bytes]:
    query = sa.select(kept_answers.c.page, kept_answers.c.body).where(kept_answers.c.answer == _key_of(claim))
    return {row.page: row.body for row in connection.execute(query)}


def _key_of(claim: UUID) -> UUID:
    """The id under which a claim's pages are stored, in the same table as the pages of answers.

    It is derived from the claim's id, so that no sender can choose one that is the id of an answer.
    """
    return uuid5(claim, "pages")


def prune_answers(connection: Connection, kept_before: datetime) -> int:
    return connection.execute(sa.delete(kept_answers).where(kept_answers.c.kept_at < kept_before)).rowcount
