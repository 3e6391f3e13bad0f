"""The requests and answers of endpoints."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from compute_sim.laboratory.ironic.core.refusals import BAD_REQUEST, RequestRefused

T = TypeVar("T")
OK, ACCEPTED, NO_CONTENT = 200, 202, 204


class ApiRequest(Struct, frozen=True, kw_only=True):
    minor: int
    path: Mapping[str, str]
    query: Mapping[str, str]
    # The decoded body; None if there is none.
    body: Any
    # The URL of this API, without a slash at the end.
    base: str

    @property
    def node(self) -> str:
        """The name or UUID of the node that the URL names."""
        return self.path["node"]

    def body_as(self, kind: type[T]) -> T:
        """The body as a value of this type; raise RequestRefused if it is none."""
        try:
            return msgspec.convert(self.body, kind)
        except msgspec.ValidationError as problem:
            raise RequestRefused(BAD_REQUEST, f"The body is wrong: {problem}.") from None


class ApiAnswer(Struct, frozen=True):
    """An answer. None as body means no content."""

    status: int
    body: Any = None
