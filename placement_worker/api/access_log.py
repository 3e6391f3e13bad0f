"""The access log: one line of JSON for each request. JSON escapes what clients send, so they cannot forge a second line."""

import logging
import re
from typing import Final

import msgspec
from msgspec import Struct

log = logging.getLogger("placement_worker.api.access")

_encode = msgspec.json.Encoder().encode
_GLOBAL_ID: Final = re.compile(r"req-[0-9a-fA-F-]{36}")


class Access(Struct, frozen=True, kw_only=True, omit_defaults=True):
    request_id: str
    # The id of another service's request that caused this one, if the client sent it.
    global_request_id: str = ""
    client: str
    method: str
    target: str
    status: int
    sent_bytes: int
    took_ms: float
    version: str = ""
    user: str = ""
    project: str = ""


def is_kept() -> bool:
    return log.isEnabledFor(logging.INFO)


def note(access: Access) -> None:
    """Writes the record directly: to look up the caller's position in the code would cost more than the rest."""
    line = _encode(access).decode()
    log.handle(log.makeRecord(log.name, logging.INFO, __file__, 0, line, (), None, "note"))


def global_id(header: str) -> str:
    """The other service's request id, if it has the form of one. Anything else stays out of the log."""
    return header if _GLOBAL_ID.fullmatch(header) else ""
