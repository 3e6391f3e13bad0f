"""The part of Ironic's REST API that Moorage uses, on top of a SimulatedIronic, with errors as in Ironic.

It is an ASGI application; there is an httpx transport to it, and a part of a process that serves it on a loopback port. It answers each
version alike: the tests of the client's choice of fields test what a version lacks.
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import dropwhile, islice
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bus.broker import Broker
from kit.health import Listen
from kit.http_server import HttpServer
from kit.parts import Supervised
from kit.process import Part
from laboratory.ironic.node import (
    BAD_REQUEST,
    NOT_FOUND,
    SERVER_ERROR,
    NodeFile,
    RequestRefused,
    SimulatedNode,
    check,
)
from laboratory.ironic.notifications import NotificationSender
from laboratory.ironic.script import IronicScript
from laboratory.ironic.simulated import SimulatedIronic
from laboratory.ironic.work import IronicOrder, IronicSimSettings

OK, ACCEPTED, NO_CONTENT = 200, 202, 204
PAGE_MAX = 1000
# The arguments of a list; those with a tuple have one of its values.
_ARGUMENTS: Mapping[str, tuple[str, ...] | None] = {
    **dict.fromkeys(("instance_uuid", "marker", "limit", "fields")),
    "sort_key": ("id", "created_at", "updated_at"),
    "sort_dir": ("asc", "desc"),
}
# All that the API shows of a node.
_FIELDS = tuple([each for each in SimulatedNode.__struct_fields__ if each not in ("vifs", "bmc_power")])
# Keys of instance_info whose values are secrets, or may contain them.
_SECRETS = ("configdrive", "image_url", "password", "secret", "token", "auth_key", "credential")
_DRAIN_S = 2
_LOOKS_EVERY_S = 0.05


class IronicRequest(Struct, frozen=True, kw_only=True):
    """A request: what its URL names, and its decoded body."""

    node: str
    vif: str
    query: Mapping[str, str]
    body: Any
    # Without its query.
    url: str

    @property
    def order(self) -> IronicOrder:
        """The body as an order; raise RequestRefused if it is none."""
        try:
            return msgspec.convert(self.body, IronicOrder)
        except msgspec.ValidationError as problem:
            raise RequestRefused(BAD_REQUEST, f"The body is wrong: {problem}.") from None


def _list(ironic: SimulatedIronic, asked: IronicRequest) -> object:
    """A page of nodes, after its marker; or the node of an instance."""
    ironic.advance()
    for name, text in asked.query.items():
        allowed = _ARGUMENTS.get(name, ())
        check(
            (allowed is not None and text not in allowed, BAD_REQUEST, f"Unexpected argument: {name}={text}")
        )
    query = {"sort_key": "id", "sort_dir": "asc", "limit": str(PAGE_MAX), **asked.query}
    limit, instance, marker = query["limit"], query.get("instance_uuid"), query.get("marker")
    check(
        (
            not limit.isdecimal() or int(limit) <= 0,
            BAD_REQUEST,
            f"limit is {limit!r}, must be a positive number.",
        ),
        (marker is not None and marker not in ironic.nodes, NOT_FOUND, f"Node {marker} does not exist."),
    )
    rest: Iterable[SimulatedNode] = ironic.nodes.values()
    if query["sort_key"] != "id":
        # Nodes that were never changed count as the oldest.
        rest = sorted(rest, key=lambda node: getattr(node, query["sort_key"]) or "")
    if query["sort_dir"] == "desc":
        rest = reversed([*rest])
    if marker is not None:
        rest = islice(dropwhile(lambda node: node.uuid != marker, rest), 1, None)
    if instance is not None:
        rest = [node for node in rest if node.instance_uuid == instance]
    page = [*islice(rest, min(int(limit), PAGE_MAX))]
    body: dict[str, Any] = {"nodes": [_shown(node, query.get("fields")) for node in page]}
    # As in Ironic, a full page has a next page, which may be empty.
    if len(page) == min(int(limit), PAGE_MAX) and instance is None:
        body["next"] = f"{asked.url}?{urlencode({**query, 'marker': page[-1].uuid}, safe=',')}"
    return body


def _shown(node: SimulatedNode, fields: str | None) -> dict[str, Any]:
    """A node as the API shows it: these fields, or all. Ironic's links are left out."""
    names: Sequence[str] = _FIELDS
    if fields is not None:
        names = [each for each in fields.split(",") if each]
        # As in Ironic, these times are in whole nodes only.
        allowed = {*_FIELDS} - {"created_at", "updated_at"}
        wrong = next((each for each in names if each not in allowed), None)
        check((wrong, BAD_REQUEST, f"Field {wrong} is not a valid field."))
    values = {name: getattr(node, name) for name in names}
    times = {name: at.replace("Z", "+00:00") for name, at in values.items() if at and name.endswith("_at")}
    if "instance_info" in values:
        values["instance_info"] = {
            key: "******" if any(each in key.lower() for each in _SECRETS) else value
            for key, value in node.instance_info.items()
        }
    return {**values, **times}


def _show_console(ironic: SimulatedIronic, asked: IronicRequest) -> object:
    node = ironic.known(asked.node)
    info = {"type": "shellinabox", "url": f"http://console.invalid/{node.uuid}"}
    return {"console_enabled": node.console_enabled, "console_info": info if node.console_enabled else None}


_NODE = "/v1/nodes/{node}"
# Of each request: method, path, the status of the answer, and its body, which an order's answer does not have.
ROUTES: Sequence[tuple[str, str, int, Callable[[SimulatedIronic, IronicRequest], object]]] = (
    ("GET", "/v1/nodes", OK, _list),
    ("GET", "/v1/nodes/detail", OK, _list),
    ("GET", _NODE, OK, lambda ironic, asked: _shown(ironic.known(asked.node), asked.query.get("fields"))),
    ("PATCH", _NODE, OK, lambda ironic, asked: _shown(ironic.patch(asked.node, asked.body), None)),
    (
        *("GET", f"{_NODE}/validate", OK),
        lambda ironic, asked: {
            name: {"result": not reason, **({"reason": reason} if reason else {})}
            for name, reason in ironic.why_not_deployable(asked.node).items()
        },
    ),
    (
        *("PUT", f"{_NODE}/states/provision", ACCEPTED),
        lambda ironic, asked: ironic.provision(asked.node, asked.order),
    ),
    (
        *("PUT", f"{_NODE}/states/power", ACCEPTED),
        lambda ironic, asked: ironic.set_power(asked.node, asked.order.target),
    ),
    ("GET", f"{_NODE}/states/console", OK, _show_console),
    (
        *("PUT", f"{_NODE}/states/console", ACCEPTED),
        lambda ironic, asked: ironic.set_console(asked.node, is_on=bool(asked.order.enabled)),
    ),
    (
        *("PUT", f"{_NODE}/maintenance", ACCEPTED),
        lambda ironic, asked: ironic.set_maintenance(asked.node, is_on=True, reason=asked.order.reason),
    ),
    (
        *("DELETE", f"{_NODE}/maintenance", ACCEPTED),
        lambda ironic, asked: ironic.set_maintenance(asked.node, is_on=False),
    ),
    (
        *("GET", f"{_NODE}/vifs", OK),
        lambda ironic, asked: {"vifs": [{"id": vif} for vif in ironic.known(asked.node).vifs]},
    ),
    (
        *("POST", f"{_NODE}/vifs", NO_CONTENT),
        lambda ironic, asked: ironic.attach_vif(asked.node, asked.order.id),
    ),
    (
        *("DELETE", f"{_NODE}/vifs/{{vif}}", NO_CONTENT),
        lambda ironic, asked: ironic.detach_vif(asked.node, asked.vif),
    ),
    *(
        (
            *(method, "/{rest:path}", OK),
            lambda _, asked: check((True, NOT_FOUND, f"There is no {asked.url}.")),
        )
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    ),
)


def ironic_app(ironic: SimulatedIronic) -> Starlette:
    def endpoint(
        status: int, answer: Callable[[SimulatedIronic, IronicRequest], object]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            body = await request.body()
            return _answered(ironic, request, body, status, answer)

        return answered

    return Starlette(
        routes=[
            Route(path, endpoint(status, answer), methods=[method]) for method, path, status, answer in ROUTES
        ]
    )


def _answered(
    ironic: SimulatedIronic,
    request: Request,
    body: bytes,
    status: int,
    answer: Callable[[SimulatedIronic, IronicRequest], object],
) -> Response:
    if ironic.away:
        return Response("Service Unavailable", 503)
    names = request.path_params
    try:
        asked = IronicRequest(
            node=names.get("node", ""),
            vif=names.get("vif", ""),
            query=dict(request.query_params),
            body=msgspec.json.decode(body) if body else None,
            url=str(request.url).partition("?")[0],
        )
        document = answer(ironic, asked)
    except msgspec.DecodeError as problem:
        return _error(RequestRefused(BAD_REQUEST, f"The body is no JSON: {problem}"))
    except RequestRefused as refused:
        return _error(refused)
    content = msgspec.json.encode(document) if status == OK else b""
    return Response(content, status, media_type="application/json" if content else None)


def _error(refused: RequestRefused) -> Response:
    """An error as in Ironic: JSON inside JSON."""
    fault = {
        "faultcode": "Client" if refused.status < SERVER_ERROR else "Server",
        "faultstring": refused.text,
        "debuginfo": None,
    }
    content = msgspec.json.encode({"error_message": json.dumps(fault)})
    return Response(content, refused.status, media_type="application/json")


class IronicTransport(httpx.AsyncBaseTransport):
    """Sends httpx requests to the simulated Ironic without a network. Raises ConnectError while it takes no connections."""

    def __init__(self, ironic: SimulatedIronic) -> None:
        self._ironic = ironic
        self._inner = httpx.ASGITransport(ironic_app(ironic))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._ironic.refuses_connections:
            raise httpx.ConnectError("the simulated Ironic takes no connections", request=request)
        return await self._inner.handle_async_request(request)


class IronicServer(Supervised):
    """Serves the REST API; it listens as soon as it is created. While Ironic takes no connections the port is closed; later it is opened again."""

    def __init__(self, ironic: SimulatedIronic, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__("API of the simulated Ironic", self._listen, is_cut_short=False)
        self._ironic = ironic
        self._app = ironic_app(ironic)
        self._at = partial(HttpServer, self._app, what="ironic-listen", drain_s_max=_DRAIN_S)
        self._server = self._at(Listen(host, port))
        self.url = self._server.url

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
