"""The rows of applications: few, read and written whole."""

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from bus.messages.applications import KnownApplication
from scheduler_worker.tables import applications as table

_SAVE = sa.text(
    "INSERT INTO known_applications (name, body) VALUES (:name, :body) "
    "ON CONFLICT (name) DO UPDATE SET body = excluded.body"
)

_encode = msgspec.json.Encoder().encode
_application = msgspec.json.Decoder(KnownApplication).decode


def save_application(connection: Connection, application: KnownApplication) -> None:
    connection.execute(_SAVE, {"name": application.name, "body": _encode(application)})


def remove_application(connection: Connection, name: str) -> None:
    connection.execute(sa.delete(table).where(table.c.name == name))


def find_applications(connection: Connection) -> list[KnownApplication]:
    found = [_application(body) for body in connection.scalars(sa.select(table.c.body))]
    # Here, and not by the database: its order of texts depends on its locale.
    return sorted(found, key=lambda each: each.name)
