"""The access log: one line of JSON for each request. JSON escapes what clients send, so they cannot forge a second line."""

import logging
import re
from typing import Final

import msgspec
from msgspec import Struct

from placement_worker.api.grammar.rendering import RenderedAnswer
from placement_worker.api.values.call import Call
from placement_worker.api.values.versions import version_text

log = logging.getLogger("placement_worker.api.access")

_encode = msgspec.json.Encoder().encode
_GLOBAL_ID: Final = re.compile(r"req-[0-9a-fA-F-]{36}")


class AccessLine(Struct, frozen=True, omit_defaults=True, gc=False):
    """The line of the log about one request. Fields that are not known are left out."""

    request_id: str
    client: str
    method: str
    target: str
    status: int
    sent_bytes: int
    took_ms: float
    global_request_id: str = ""
    version: str = ""
    user: str = ""
    project: str = ""


def note(call: Call, answer: RenderedAnswer, took_s: float) -> None:
    """Log one answered request, if an access log is kept."""
    if not log.isEnabledFor(logging.INFO):
        return
    query = call.scope["query_string"].decode("latin-1")
    # The id of another service's request that caused this one. Another form stays out of the log.
    cause = call.headers.get("x-openstack-request-id", "")
    line = AccessLine(
        request_id=call.request_id,
        client=call.client or "-",
        method=call.method,
        target=f"{call.prefix}{call.path}" + (f"?{query}" if query else ""),
        status=answer.status.value,
        sent_bytes=answer.length,
        took_ms=round(took_s * 1000, 2),
        global_request_id=cause if _GLOBAL_ID.fullmatch(cause) else "",
        version="" if call.version is None else version_text(call.version),
        user=call.caller.user,
        project=call.caller.project,
    )
    log.info(_encode(line).decode())
