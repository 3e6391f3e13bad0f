"""The part of Ironic's REST API that Moorage uses, on top of a SimulatedIronic: as an ASGI application, with versions and errors as in
Ironic; an httpx transport to it; and on a loopback port, as a part of a process.

It answers each version alike: what a version lacks is tested where the client chooses its fields.
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import dropwhile, islice
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

import httpx
import msgspec
from msgspec import Meta, Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bus.broker import Broker
from kit.health import Listen
from kit.http_server import HttpServer
from kit.parts import Supervised
from kit.process import Part
from laboratory.ironic.changes import is_uuid
from laboratory.ironic.node import (
    BAD_REQUEST,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    SERVER_ERROR,
    RequestRefused,
    SimulatedNode,
    masked,
    no_such_node,
)
from laboratory.ironic.notifications import NotificationSender
from laboratory.ironic.script import IronicScript
from laboratory.ironic.simulated import NodeFile, SimulatedIronic
from laboratory.ironic.work import IronicSimSettings, ProvisionOrder

T = TypeVar("T")

HEADER = "X-OpenStack-Ironic-API-Version"
MIN_HEADER = "X-OpenStack-Ironic-API-Minimum-Version"
MAX_HEADER = "X-OpenStack-Ironic-API-Maximum-Version"
OLDEST_MINOR, LATEST_MINOR = 1, 115
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
METHOD_NOT_ALLOWED = 405
OK, ACCEPTED, NO_CONTENT = 200, 202, 204
PAGE_MAX = 1000
# The arguments of a list; those with a tuple have one of its values.
_ARGUMENTS: Mapping[str, tuple[str, ...] | None] = {
    **dict.fromkeys(("instance_uuid", "marker", "limit", "fields")),
    "sort_key": ("id", "created_at", "updated_at"),
    "sort_dir": ("asc", "desc"),
}
# Fields that the API does not show, and fields that cannot be requested by name.
_HIDDEN = frozenset({"vifs", "bmc_power"})
_NOT_ASKED_FOR = frozenset({"created_at", "updated_at"})
_MASKED = frozenset({"driver_info", "driver_internal_info", "instance_info"})
_FIELDS = tuple([field for field in SimulatedNode.__struct_fields__ if field not in _HIDDEN])
_DRAIN_S = 2
_LOOKS_EVERY_S = 0.05


class ApiRequest(Struct, frozen=True, kw_only=True):
    path: Mapping[str, str]
    query: Mapping[str, str]
    # The decoded body; None if there is none.
    body: Any
    # The URL that was asked for, without its query.
    url: str

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


# The status and the body of an answer. None as body means no content.
Answer = tuple[int, Any]
Endpoint = Callable[[SimulatedIronic, ApiRequest], Answer]


# Nodes


def _list(ironic: SimulatedIronic, asked: ApiRequest) -> Answer:
    """A page of nodes, after its marker; or the node of an instance."""
    ironic.advance()
    for name, text in asked.query.items():
        allowed = _ARGUMENTS.get(name, ())
        if allowed is not None and text not in allowed:
            raise RequestRefused(BAD_REQUEST, f"Unexpected argument: {name}={text}")
    query = {"sort_key": "id", "sort_dir": "asc", **asked.query}
    limit, instance = _limit(query.get("limit", str(PAGE_MAX))), query.get("instance_uuid")
    rest: Iterable[SimulatedNode] = ironic.nodes.values()
    if query["sort_key"] != "id":
        # Nodes that were never changed count as the oldest.
        rest = sorted(rest, key=lambda node: getattr(node, query["sort_key"]) or "")
    if query["sort_dir"] == "desc":
        rest = reversed([*rest])
    if (marker := query.get("marker")) is not None:
        if marker not in ironic.nodes:
            raise no_such_node(marker)
        rest = islice(dropwhile(lambda node: node.uuid != marker, rest), 1, None)
    if instance is not None:
        if not is_uuid(instance):
            raise RequestRefused(BAD_REQUEST, f"Expected UUID for instance_uuid: {instance}")
        rest = [node for node in rest if node.instance_uuid == instance]
    page = [*islice(rest, limit)]
    body: dict[str, Any] = {"nodes": [_shown(node, query.get("fields"), ironic) for node in page]}
    # As in Ironic, a full page has a next page, which may be empty.
    if len(page) == limit and instance is None:
        following = {**query, "limit": str(limit), "marker": page[-1].uuid}
        body["next"] = f"{asked.url}?{urlencode(following, safe=',')}"
    return OK, body


def _limit(text: str) -> int:
    if not text.isdecimal() or int(text) <= 0:
        raise RequestRefused(BAD_REQUEST, f"limit is {text!r}, must be a positive number.")
    return min(int(text), PAGE_MAX)


def _shown(node: SimulatedNode, fields: str | None, ironic: SimulatedIronic) -> dict[str, Any]:
    """A node as the API shows it: these fields, or all. Ironic's links are left out."""
    names: Sequence[str] = (*_FIELDS, "conductor")
    if fields is not None:
        wanted = [each.strip() for each in fields.split(",") if each.strip()]
        if wrong := [each for each in wanted if each not in names or each in _NOT_ASKED_FOR]:
            raise RequestRefused(BAD_REQUEST, f"Field {wrong[0]} is not a valid field.")
        names = wanted
    return {name: _value(node, name) if name != "conductor" else ironic.settings.host for name in names}


def _value(node: SimulatedNode, field: str) -> Any:
    value = getattr(node, field)
    if field.endswith("_at") and value is not None:
        return value.replace("Z", "+00:00")
    return masked(value) if field in _MASKED else value


def _show(ironic: SimulatedIronic, asked: ApiRequest) -> Answer:
    return OK, _shown(ironic.known(asked.node), asked.query.get("fields"), ironic)


def _validate(ironic: SimulatedIronic, asked: ApiRequest) -> Answer:
    reasons = ironic.why_not_deployable(asked.node)
    return OK, {
        name: {"result": False, "reason": reason} if reason else {"result": True}
        for name, reason in reasons.items()
    }


def _show_console(ironic: SimulatedIronic, asked: ApiRequest) -> Answer:
    node = ironic.known(asked.node)
    is_on = bool(node.console_enabled)
    info = {"type": "shellinabox", "url": f"http://console.invalid/{node.uuid}"} if is_on else None
    return OK, {"console_enabled": is_on, "console_info": info}


def _patch(ironic: SimulatedIronic, asked: ApiRequest) -> Answer:
    return OK, _shown(ironic.patch(asked.node, asked.body), None, ironic)


# Orders


class PowerOrder(Struct, frozen=True, forbid_unknown_fields=True):
    target: str


class ConsoleOrder(Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool


class MaintenanceOrder(Struct, frozen=True, forbid_unknown_fields=True):
    reason: str | None = None


class VifOrder(Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1)]


def _order(status: int, order: Callable[[SimulatedIronic, ApiRequest], object]) -> Endpoint:
    """An endpoint that gives this order, and answers without content."""

    def answer(ironic: SimulatedIronic, asked: ApiRequest) -> Answer:
        order(ironic, asked)
        return status, None

    return answer


ENDPOINTS: Mapping[str, Mapping[str, Endpoint]] = {
    "/v1/nodes": {"GET": _list},
    "/v1/nodes/detail": {"GET": _list},
    "/v1/nodes/{node}": {"GET": _show, "PATCH": _patch},
    "/v1/nodes/{node}/validate": {"GET": _validate},
    "/v1/nodes/{node}/states/provision": {
        "PUT": _order(
            ACCEPTED, lambda ironic, asked: ironic.provision(asked.node, asked.body_as(ProvisionOrder))
        )
    },
    "/v1/nodes/{node}/states/power": {
        "PUT": _order(
            ACCEPTED, lambda ironic, asked: ironic.set_power(asked.node, asked.body_as(PowerOrder).target)
        )
    },
    "/v1/nodes/{node}/states/console": {
        "GET": _show_console,
        "PUT": _order(
            ACCEPTED,
            lambda ironic, asked: ironic.set_console(asked.node, is_on=asked.body_as(ConsoleOrder).enabled),
        ),
    },
    "/v1/nodes/{node}/maintenance": {
        "PUT": _order(
            ACCEPTED,
            lambda ironic, asked: ironic.set_maintenance(
                asked.node, is_on=True, reason=asked.body_as(MaintenanceOrder).reason
            ),
        ),
        "DELETE": _order(ACCEPTED, lambda ironic, asked: ironic.set_maintenance(asked.node, is_on=False)),
    },
    "/v1/nodes/{node}/vifs": {
        "GET": lambda ironic, asked: (OK, {"vifs": [{"id": vif} for vif in ironic.known(asked.node).vifs]}),
        "POST": _order(
            NO_CONTENT, lambda ironic, asked: ironic.attach_vif(asked.node, asked.body_as(VifOrder).id)
        ),
    },
    "/v1/nodes/{node}/vifs/{vif}": {
        "DELETE": _order(NO_CONTENT, lambda ironic, asked: ironic.detach_vif(asked.node, asked.path["vif"]))
    },
    "/{rest:path}": {},
}


# The application


def ironic_app(ironic: SimulatedIronic) -> Starlette:
    return Starlette(
        routes=[
            Route(path, _route(ironic, endpoints), methods=METHODS) for path, endpoints in ENDPOINTS.items()
        ]
    )


class IronicTransport(httpx.AsyncBaseTransport):
    """Sends httpx requests to the simulated Ironic without a network. Raises ConnectError while it takes no connections."""

    def __init__(self, ironic: SimulatedIronic) -> None:
        self._ironic = ironic
        self._inner = httpx.ASGITransport(ironic_app(ironic))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._ironic.refuses_connections:
            raise httpx.ConnectError("the simulated Ironic takes no connections", request=request)
        return await self._inner.handle_async_request(request)


def _route(
    ironic: SimulatedIronic, endpoints: Mapping[str, Endpoint]
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return _answered(ironic, endpoints, request, await request.body())

    return answer


def _answered(
    ironic: SimulatedIronic, endpoints: Mapping[str, Endpoint], request: Request, body: bytes
) -> Response:
    if ironic.away:
        return Response("Service Unavailable", 503)
    version = request.headers.get(HEADER, f"1.{OLDEST_MINOR}")
    headers = {MIN_HEADER: f"1.{OLDEST_MINOR}", MAX_HEADER: f"1.{LATEST_MINOR}", HEADER: version}
    try:
        _check_version(version)
        status, document = _endpoint(endpoints, request)(ironic, _asked(request, body))
    except RequestRefused as refused:
        # An error as in Ironic: JSON inside JSON.
        fault = {
            "faultcode": "Client" if refused.status < SERVER_ERROR else "Server",
            "faultstring": refused.text,
            "debuginfo": None,
        }
        status, document = refused.status, {"error_message": json.dumps(fault)}
    content = b"" if document is None else msgspec.json.encode(document)
    return Response(content, status, headers, media_type="application/json" if content else None)


def _check_version(version: str) -> None:
    major, _, minor = version.partition(".")
    if major != "1" or not minor.isdecimal() or not OLDEST_MINOR <= int(minor) <= LATEST_MINOR:
        offered = f"[1.{OLDEST_MINOR}, 1.{LATEST_MINOR}]"
        raise RequestRefused(NOT_ACCEPTABLE, f"Version {version[:50]} is not supported: {offered}.")


def _endpoint(endpoints: Mapping[str, Endpoint], request: Request) -> Endpoint:
    if request.method not in endpoints:
        status = METHOD_NOT_ALLOWED if endpoints else NOT_FOUND
        raise RequestRefused(status, f"There is no {request.method} {request.url.path}.")
    return endpoints[request.method]


def _asked(request: Request, body: bytes) -> ApiRequest:
    try:
        document = msgspec.json.decode(body) if body else None
    except msgspec.DecodeError as problem:
        raise RequestRefused(BAD_REQUEST, f"The body is no JSON: {problem}") from None
    return ApiRequest(
        path=dict(request.path_params),
        query=dict(request.query_params),
        body=document,
        url=str(request.url).partition("?")[0],
    )


class IronicServer(Supervised):
    """Serves the REST API; it listens as soon as it is created. While Ironic takes no connections the port is closed; later it is opened again."""

    def __init__(self, ironic: SimulatedIronic, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__("API of the simulated Ironic", self._listen, is_cut_short=False)
        self._ironic = ironic
        self._app = ironic_app(ironic)
        self._server = self._at(Listen(host, port))
        self.url = self._server.url

    def _at(self, listen: Listen) -> HttpServer:
        return HttpServer(self._app, listen, "ironic-listen", drain_s_max=_DRAIN_S)

    async def _listen(self) -> None:
        await self._serve(self._server)
        while not self.stopping.is_set():
            if self._ironic.refuses_connections:
                await asyncio.sleep(_LOOKS_EVERY_S)
            else:
                await self._serve(self._at(self._server.listen))

    async def _serve(self, server: HttpServer) -> None:
        """Serve until it is stopped, or Ironic takes no connections any more. Then the port is closed."""
        serving = asyncio.create_task(server.run())
        try:
            while not serving.done() and not self.stopping.is_set() and not self._ironic.refuses_connections:
                await asyncio.wait((serving,), timeout=_LOOKS_EVERY_S)
        finally:
            await server.stop()
            await serving


class IronicSimulation(Struct, frozen=True):
    """A simulated Ironic, and the parts that its process has to run.

    `url` is the address of the REST API; empty if it is not served.
    """

    ironic: SimulatedIronic
    sender: NotificationSender
    url: str
    parts: tuple[Part, ...]


def simulated_ironic(
    broker: Broker,
    nodes: Iterable[SimulatedNode],
    settings: IronicSimSettings | None = None,
    *,
    script: IronicScript | None = None,
    clock_s: Callable[[], float] = time.time,
    chance: random.Random | None = None,
    listen: tuple[str, int] | None = ("127.0.0.1", 0),
    file: NodeFile | None = None,
) -> IronicSimulation:
    """Create the parts; the caller runs them. The port is bound when this returns. Without `listen` there is no port,
    and `IronicTransport(simulation.ironic)` reaches the API inside this process.

    With a `file`, its nodes are restored and all changes are stored in it; its creator closes it.

    The broker's user must have the right to declare Ironic's exchange, and to publish to it.
    """
    settings = settings or IronicSimSettings()
    sender = NotificationSender(broker, settings)
    kept = file.load() if file is not None else ()
    known = {node.uuid for node in kept}
    ironic = SimulatedIronic(
        (*kept, *(node for node in nodes if node.uuid not in known)),
        clock_s,
        sender.publish,
        settings,
        script=script,
        chance=chance,
        keep=file.keep if file is not None else None,
    )
    if kept:
        ironic.resume_work()
    if listen is None:
        return IronicSimulation(ironic, sender, "", (ironic, sender))
    server = IronicServer(ironic, *listen)
    return IronicSimulation(ironic, sender, server.url, (ironic, sender, server))
