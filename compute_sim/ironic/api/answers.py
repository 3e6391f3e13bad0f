"""A request as endpoints see it, and what they answer."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Asked(Struct, frozen=True, kw_only=True):
    minor: int
    path: Mapping[str, str]
    query: Mapping[str, str]
    # The document of the body; None if there is none.
    body: Any
    # Where this API is, without a slash at the end.
    base: str


class Answer(Struct, frozen=True):
    """Without a body there is no content. `location` is below /v1/."""

    status: int
    body: Any = None
    location: str = ""


OK, CREATED, ACCEPTED, NO_CONTENT = 200, 201, 202, 204
