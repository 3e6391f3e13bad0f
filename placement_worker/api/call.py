"""One request in progress, and what is known about it so far."""

from typing import Final
from uuid import uuid4

from msgspec import Struct
from starlette.types import Scope

from placement_worker.api import access_log
from placement_worker.api.headers import Headers, headers_of
from placement_worker.api.rendering import Answer, Exchange
from placement_worker.api.request import Caller
from placement_worker.api.request_parts import path_of
from placement_worker.api.settings import ApiSettings
from placement_worker.api.versions import version_text

_NOBODY: Final = Caller(user="")
_UNROUTED: Final = "-"


class Call(Struct):
    """One request in progress, and what is known about it so far."""

    scope: Scope
    method: str
    prefix: str
    path: str
    headers: Headers
    exchange: Exchange
    caller: Caller = _NOBODY
    route: str = _UNROUTED

    @classmethod
    def of(cls, scope: Scope, settings: ApiSettings) -> "Call":
        headers = headers_of(scope)
        prefix, path = path_of(scope, settings)
        exchange = Exchange(request_id=f"req-{uuid4()}", accept=headers.get("accept", ""))
        return cls(scope, scope["method"], prefix, path, headers, exchange)

    @property
    def counted_method(self) -> str:
        """Unknown methods may be any word, so they are counted as one."""
        return self.method if self.method in ("GET", "POST", "PUT", "DELETE") else "other"

    def access(self, answer: Answer, took_s: float) -> access_log.Access:
        version = self.exchange.version
        query = self.scope["query_string"].decode("latin-1")
        return access_log.Access(
            request_id=self.exchange.request_id,
            global_request_id=access_log.global_id(self.headers.get("x-openstack-request-id", "")),
            client=(self.scope.get("client") or ("-",))[0],
            method=self.method,
            target=f"{self.prefix}{self.path}" + (f"?{query}" if query else ""),
            status=answer.status.value,
            sent_bytes=answer.length,
            took_ms=round(took_s * 1000, 2),
            version="" if version is None else version_text(version),
            user=self.caller.user,
            project=self.caller.project,
        )
