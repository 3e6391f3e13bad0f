"""Rows of applications: few, read and written whole."""

from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from bus.messages.applications import KnownApplication
from bus.sql.types import Moment
from scheduler_worker.tables import applications as table

_SAVE = sa.text(
    "INSERT INTO known_applications (name, body) VALUES (:name, :body) "
    "ON CONFLICT (name) DO UPDATE SET body = excluded.body"
)

_LATEST = sa.text(
    "INSERT INTO application_orders (name, sent_at) VALUES (:name, :sent_at) "
    "ON CONFLICT (name) DO UPDATE SET sent_at = excluded.sent_at "
    "WHERE application_orders.sent_at <= excluded.sent_at RETURNING name"
).bindparams(sa.bindparam("sent_at", type_=Moment()))

_encode = msgspec.json.Encoder().encode
_application = msgspec.json.Decoder(KnownApplication).decode


def set_application(
    connection: Connection, name: str, sent_at: datetime, application: KnownApplication | None
) -> KnownApplication | None:
    if connection.execute(_LATEST, {"name": name, "sent_at": sent_at}).first() is not None:
        if application is None:
            connection.execute(sa.delete(table).where(table.c.name == name))
        else:
            connection.execute(_SAVE, {"name": name, "body": _encode(application)})
    body = connection.scalar(sa.select(table.c.body).where(table.c.name == name))
    return None if body is None else _application(body)


def find_applications(connection: Connection) -> list[KnownApplication]:
    found = [_application(body) for body in connection.scalars(sa.select(table.c.body))]
    # Sorted here: a database's order of texts depends on its locale.
    return sorted(found, key=lambda each: each.name)
