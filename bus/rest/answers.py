"""An answer of a REST API, and the error in it."""

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import httpx
import msgspec
from msgspec import Struct

from bus.unreadable import NOT_AS_EXPECTED

MESSAGE_MAX = 1_000
ERRORS = 400
NOT_FOUND = 404


class RestAnswer(Struct, frozen=True):
    status: int
    body: bytes
    headers: httpx.Headers

    @property
    def message(self) -> str:
        """The text of the error in the answer. If the answer has none in a form of OpenStack's, the beginning of its body."""
        try:
            text = _message_in(msgspec.json.decode(self.body))
        except NOT_AS_EXPECTED:
            text = self.body[:MESSAGE_MAX].decode(errors="replace")
        # It becomes a reason of instances, and no database text may have a NUL in it.
        return text[:MESSAGE_MAX].replace("\0", "\N{REPLACEMENT CHARACTER}")


def _message_in(body: object) -> str:
    """Ironic's `error_message` is an object, or a text with that object in it. Nova's error has the name of its kind."""
    if not isinstance(body, dict):
        raise TypeError(body)
    if "error_message" in body:
        error = body["error_message"]
        fault = msgspec.json.decode(error) if isinstance(error, str) else error
        return str(fault["faultstring"])
    [fault] = body.values()
    if not isinstance(fault, Mapping):
        raise TypeError(fault)
    return str(fault["message"])


def marker_of(link: str) -> str:
    """The id after which the next page begins, from the link to that page; empty if the link names none."""
    try:
        return dict(parse_qsl(urlsplit(link).query)).get("marker", "")
    except ValueError:
        return ""
