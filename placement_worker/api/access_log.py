"""A line for each request, as JSON: what clients send stands in it, and cannot forge a second one."""

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
    # The id under which another service's request caused this one, if it said.
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
    """Where in the code it is said is the same for all: to look for that would cost more than the rest of it."""
    line = _encode(access).decode()
    log.handle(log.makeRecord(log.name, logging.INFO, __file__, 0, line, (), None, "note"))


def global_id(header: str) -> str:
    """What another service calls the request, if it has the form of such an id; the log is no place for anything else."""
    return header if _GLOBAL_ID.fullmatch(header) else ""
