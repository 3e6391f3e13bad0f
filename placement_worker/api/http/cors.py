"""CORS: which web pages may read the answers in a browser? Those of the configured origins. All others get the same answer
without the headers that allow it.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from placement_worker.api.grammar.rendering import RenderedAnswer
from placement_worker.api.values.request_parts import Headers

ALLOWED_METHODS: Final = "GET, POST, PUT, DELETE"
ALLOWED_HEADERS: Final = frozenset(
    (
        "openstack-api-version",
        "x-auth-token",
        "x-openstack-request-id",
        "authorization",
        "content-type",
        "accept",
    )
)
EXPOSED_HEADERS: Final = "openstack-api-version, x-openstack-request-id, location"
KEPT_S: Final = "3600"


class Cors:
    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    def preflight(self, method: str, headers: Headers) -> RenderedAnswer | None:
        """The complete answer to a browser's preflight request; None if the request is no preflight request."""
        if not self._origins or method != "OPTIONS" or "access-control-request-method" not in headers:
            return None
        added = self.headers(headers)
        if added:
            wanted = headers.get("access-control-request-headers", "").lower().split(",")
            allowed = ",".join(name for part in wanted if (name := part.strip()) in ALLOWED_HEADERS)
            added = {
                **added,
                "access-control-allow-methods": ALLOWED_METHODS,
                "access-control-allow-headers": allowed,
                "access-control-max-age": KEPT_S,
            }
        return RenderedAnswer(HTTPStatus.OK, {**added, "content-length": "0"}, (b"",))

    def headers(self, headers: Headers) -> Mapping[str, str]:
        """The CORS headers of an answer to this request."""
        origin = headers.get("origin")
        if origin is None or not self._origins & {origin, "*"}:
            return {}
        return {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED_HEADERS}
