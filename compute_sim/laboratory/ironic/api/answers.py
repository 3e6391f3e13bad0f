"""The requests and answers of endpoints."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class ApiRequest(Struct, frozen=True, kw_only=True):
    minor: int
    path: Mapping[str, str]
    query: Mapping[str, str]
    # The decoded body; None if there is none.
    body: Any
    # The URL of this API, without a slash at the end.
    base: str


class ApiAnswer(Struct, frozen=True):
    """An answer. None as body means no content. `location` is relative to /v1/."""

    status: int
    body: Any = None
    location: str = ""


OK, CREATED, ACCEPTED, NO_CONTENT = 200, 201, 202, 204
