"""One request in progress, and what is known about it so far."""

from typing import Final
from uuid import uuid4

from msgspec import Struct
from starlette.types import Scope

from placement_worker.api.settings import ApiSettings
from placement_worker.api.values.request import Caller
from placement_worker.api.values.request_parts import Headers, headers_of, path_of
from placement_worker.api.values.versions import Version

_NOBODY: Final = Caller(user="")
_UNROUTED: Final = "-"


class Call(Struct):
    """An HTTP call while it is read and checked. It may end with an error before all fields are known."""

    scope: Scope
    method: str
    prefix: str
    path: str
    headers: Headers
    # Sent to the client as x-openstack-request-id, and in each error.
    request_id: str
    # None until it is decided; afterwards every answer names it.
    version: Version | None = None
    caller: Caller = _NOBODY
    route: str = _UNROUTED

    @classmethod
    def of(cls, scope: Scope, settings: ApiSettings) -> "Call":
        prefix, path = path_of(scope, settings)
        return cls(scope, scope["method"], prefix, path, headers_of(scope), f"req-{uuid4()}")

    @property
    def client(self) -> str:
        """The client's address, as a trusted proxy says if there is one. Empty if there is none, as on a Unix socket."""
        return (self.scope.get("client") or ("",))[0]

    @property
    def counted_method(self) -> str:
        """The HTTP method as the metrics count it. Unknown methods may be any word, so they are counted as one."""
        return self.method if self.method in ("GET", "POST", "PUT", "DELETE") else "other"
