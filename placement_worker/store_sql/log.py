"""The change log: one row for each write, committed together with it."""

from collections.abc import Iterable

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from bus.clock import now
from bus.messages.placement import GroupMember, Holder, ProviderGone
from placement_worker.tables import change_log

ON_SQLITE = "INSERT INTO change_log (written_by, at, body) VALUES (0, ?, ?)"


class LogEntry(Struct, frozen=True, omit_defaults=True):
    """The changes of one write, as the change log stores them, with the internal ids of providers.

    `used` are providers of which only the usage changed, by claims; `providers` are those that changed otherwise. Their
    states are read when the entry is published, so that many writes to a provider make one message.
    """

    providers: tuple[int, ...] = ()
    used: tuple[int, ...] = ()
    gone: tuple[ProviderGone, ...] = ()
    claimed: tuple[Holder, ...] = ()
    ended: tuple[Holder, ...] = ()
    joined: tuple[GroupMember, ...] = ()
    left: tuple[Holder, ...] = ()


_encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(LogEntry).decode


def body_of(entry: LogEntry) -> bytes | None:
    """The entry of the change log as it is stored; None if nothing changed."""
    of_providers = entry.providers or entry.used or entry.gone
    return (
        _encode(entry) if of_providers or entry.claimed or entry.ended or entry.joined or entry.left else None
    )


def decode_all(bodies: Iterable[bytes]) -> LogEntry:
    """Decode these entries of the change log, and join them into one entry, whose lists have all their items."""
    entries = [decode(body) for body in bodies]
    return LogEntry(
        *[
            tuple([one for entry in entries for one in getattr(entry, name)])
            for name in LogEntry.__struct_fields__
        ]
    )


def append(connection: Connection, entry: LogEntry) -> None:
    body = body_of(entry)
    if body is None:
        return
    on_postgresql = connection.dialect.name == "postgresql"
    written_by = sa.func.pg_current_xact_id() if on_postgresql else sa.literal(0)
    connection.execute(
        sa.insert(change_log).values(written_by=written_by, at=now(), body=body),
    )
