"""Takes out of Nova's messages what nobody else may know: tokens, passwords, and the addresses of brokers and databases, which have
passwords in them. Done when a message is read, and before one is logged, recorded or put among the dead letters.
"""

import functools
import re

import msgspec

from scheduler_worker.nova.refusals import RefusedError

# Nova's own messages have about 15 levels.
DEPTH_MAX = 64
HIDDEN = "***"
# The field of the envelope that has the message, as a JSON text.
MESSAGE = "oslo.message"
CONTEXT = "_context_"
# Kept of a request's context: its project, its user, the ids that its log lines have, and when it began.
CONTEXT_KEPT = frozenset(
    f"{CONTEXT}{name}" for name in ("request_id", "global_request_id", "project_id", "user_id", "timestamp")
)

_SECRET = re.compile(
    r"token|passw|secret|credential|admin_pass|transport_url|database_connection|user_data|key_data"
    r"|injected_files|service_catalog",
    re.IGNORECASE,
)
# An address with a user's name and password, wherever it stands.
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{1,20}://)[^/\s@]*@", re.IGNORECASE)


def without_secrets(value: object, path: str = "", depth: int = 0) -> object:
    """A copy of this JSON value in which secrets are replaced, and contexts have only what is kept of them."""
    if depth > DEPTH_MAX:
        raise RefusedError(path, value, f"it is nested more than {DEPTH_MAX} levels deep")
    if isinstance(value, dict):
        return {
            name: HIDDEN
            if is_secret(name) and item not in (None, "", [], {})
            else without_secrets(item, f"{path}.{name}" if path else name, depth + 1)
            for name, item in value.items()
            if not name.startswith(CONTEXT) or name in CONTEXT_KEPT
        }
    if isinstance(value, list):
        return [without_secrets(item, f"{path}[{number}]", depth + 1) for number, item in enumerate(value)]
    if isinstance(value, str) and "://" in value:
        return _URL.sub(rf"\g<scheme>{HIDDEN}@", value)
    return value


@functools.lru_cache(maxsize=10_000)
def is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def redacted(body: bytes) -> bytes:
    """The body of an AMQP message without its secrets. Of one that is no JSON only the length is told: where its secrets are
    is unknown.
    """
    try:
        outer = msgspec.json.decode(body)
        plain = without_secrets(outer)
        if isinstance(plain, dict) and isinstance(inner := outer.get(MESSAGE), str):
            plain[MESSAGE] = msgspec.json.encode(without_secrets(msgspec.json.decode(inner))).decode()
        return msgspec.json.encode(plain)
    except (msgspec.DecodeError, RecursionError, UnicodeError, RefusedError):
        return msgspec.json.encode({"unreadable": len(body)})
