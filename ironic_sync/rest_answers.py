"""Answers of Ironic's REST API, and the forms that their bodies must have."""

from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import httpx
import msgspec
from msgspec import Struct

from bus.message import ProviderId
from bus.unreadable import NOT_AS_EXPECTED
from ironic_sync.rest import IronicRefused

MESSAGE_MAX = 1_000
_NOT_FOUND = 404
ERRORS = 400


class RestAnswer(Struct, frozen=True):
    status: int
    body: bytes
    headers: httpx.Headers

    @property
    def message(self) -> str:
        """The text of the error in Ironic's answer: its `error_message` is an object, or a string with that object in
        it. If there is neither, the beginning of the body.
        """
        try:
            error = msgspec.json.decode(self.body)["error_message"]
            fault = msgspec.json.decode(error) if isinstance(error, str) else error
            text = str(fault["faultstring"])
        except NOT_AS_EXPECTED:
            text = self.body[:MESSAGE_MAX].decode(errors="replace")
        # They become reasons of instances, and no database text may have a NUL in it.
        return text[:MESSAGE_MAX].replace("\0", "\N{REPLACEMENT CHARACTER}")


class Listing(Struct, frozen=True):
    nodes: list[Any]
    next: str | None = None


class Patched(Struct, frozen=True):
    uuid: UUID


class Vif(Struct, frozen=True):
    id: str


class Vifs(Struct, frozen=True):
    vifs: list[Vif]


class Allocated(Struct, frozen=True):
    node_uuid: ProviderId | None = None


def is_missing(answer: RestAnswer) -> bool:
    """Whether Ironic itself says that there is no such thing: a 404 in the form of its errors. A proxy in front of
    Ironic may answer 404 to every request.
    """
    try:
        return answer.status == _NOT_FOUND and bool(msgspec.json.decode(answer.body)["error_message"])
    except NOT_AS_EXPECTED:
        return False


def marker_of(link: str) -> str:
    """The id of the node after which the next page begins, from the link to that page; empty if the link names none."""
    try:
        return dict(parse_qsl(urlsplit(link).query)).get("marker", "")
    except ValueError:
        return ""


class Console(Struct, frozen=True, rename={"is_on": "console_enabled", "info": "console_info"}):
    """The console of a node. `info` says where it is, in a form that depends on the driver; None while it is off."""

    is_on: bool
    info: dict[str, Any] | None = None


def refusal_of(answer: RestAnswer) -> IronicRefused | None:
    return IronicRefused(answer.status, answer.message) if answer.status >= ERRORS else None
