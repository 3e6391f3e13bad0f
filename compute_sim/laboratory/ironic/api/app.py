"""The ASGI application: routes, authentication, versions and errors as in Ironic."""

import base64
import binascii
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from compute_sim.laboratory.ironic.api.allocations import AllocationsApi
from compute_sim.laboratory.ironic.api.answers import ApiAnswer, ApiRequest
from compute_sim.laboratory.ironic.api.nodes import NodesApi
from compute_sim.laboratory.ironic.api.rendering import root_shown, v1_shown
from compute_sim.laboratory.ironic.api.versions import asked_minor, version_headers
from compute_sim.laboratory.ironic.core.refusals import BAD_REQUEST, NOT_FOUND, RequestRefused
from compute_sim.laboratory.ironic.simulated import LATEST_MINOR, SimulatedIronic

Endpoint = Callable[[ApiRequest], ApiAnswer]

_PUBLIC = ("/", "/v1", "/v1/")
_SERVER_ERROR = 500
# Resources that came after the first microversion.
_SINCE = {"traits": 37, "vifs": 28, "allocations": 52, "allocation": 52}
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def ironic_app(ironic: SimulatedIronic) -> Starlette:
    nodes, allocations = NodesApi(ironic), AllocationsApi(ironic)
    root = _route(ironic, {"GET": lambda asked: ApiAnswer(200, root_shown(asked.base, LATEST_MINOR))})
    v1 = _route(ironic, {"GET": lambda asked: ApiAnswer(200, v1_shown(asked.base, LATEST_MINOR))})
    table: Mapping[str, Mapping[str, Endpoint]] = {
        "/v1/nodes": {"GET": nodes.index, "POST": nodes.create},
        "/v1/nodes/detail": {"GET": nodes.detail},
        "/v1/nodes/{node}": {"GET": nodes.show, "PATCH": nodes.patch, "DELETE": nodes.delete},
        "/v1/nodes/{node}/validate": {"GET": nodes.validate},
        "/v1/nodes/{node}/states": {"GET": nodes.states},
        "/v1/nodes/{node}/states/provision": {"PUT": nodes.provision},
        "/v1/nodes/{node}/states/power": {"PUT": nodes.power},
        "/v1/nodes/{node}/states/console": {"GET": nodes.console, "PUT": nodes.set_console},
        "/v1/nodes/{node}/maintenance": {
            "PUT": nodes.maintenance_on,
            "DELETE": nodes.maintenance_off,
        },
        "/v1/nodes/{node}/traits": {
            "GET": nodes.traits,
            "PUT": nodes.set_traits,
            "DELETE": nodes.remove_traits,
        },
        "/v1/nodes/{node}/traits/{trait}": {"PUT": nodes.add_trait, "DELETE": nodes.remove_traits},
        "/v1/nodes/{node}/vifs": {"GET": nodes.vifs, "POST": nodes.attach_vif},
        "/v1/nodes/{node}/vifs/{vif}": {"DELETE": nodes.detach_vif},
        "/v1/allocations": {"GET": allocations.index, "POST": allocations.create},
        "/v1/allocations/{allocation}": {
            "GET": allocations.show,
            "PATCH": allocations.patch,
            "DELETE": allocations.delete,
        },
        "/v1/nodes/{node}/allocation": {
            "GET": allocations.show,
            "DELETE": allocations.delete,
        },
    }
    return Starlette(
        routes=[
            Route("/", root, methods=_METHODS),
            Route("/v1", v1, methods=_METHODS),
            Route("/v1/", v1, methods=_METHODS),
            *(
                Route(path, _route(ironic, endpoints, _since(path)), methods=_METHODS)
                for path, endpoints in table.items()
            ),
            Route("/{rest:path}", _route(ironic, {}), methods=_METHODS),
        ]
    )


def _since(path: str) -> int:
    """The microversion from which this path of the API exists."""
    return max(_SINCE.get(part, 1) for part in path.split("/"))


def _route(
    ironic: SimulatedIronic, endpoints: Mapping[str, Endpoint], since: int = 1
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return _answered(ironic, endpoints, since, request, await request.body())

    return answer


def _answered(
    ironic: SimulatedIronic, endpoints: Mapping[str, Endpoint], since: int, request: Request, body: bytes
) -> Response:
    if ironic.away:
        return Response("Service Unavailable", 503)
    if ironic.settings.users and request.url.path not in _PUBLIC:
        denied = _denied(request.headers.get("authorization"), ironic.settings.users)
        if denied is not None:
            return denied
    headers = version_headers(LATEST_MINOR)
    try:
        minor = asked_minor(request.headers)
        headers = version_headers(minor)
        answer = _endpoint(endpoints, since, request, minor)(_asked(request, minor, body))
    except RequestRefused as refused:
        return _refusal(refused, headers)
    if answer.location:
        headers["Location"] = f"{str(request.base_url).rstrip('/')}/v1/{answer.location}"
    content = b"" if answer.body is None else msgspec.json.encode(answer.body)
    return Response(content, answer.status, headers, media_type="application/json" if content else None)


def _endpoint(endpoints: Mapping[str, Endpoint], since: int, request: Request, minor: int) -> Endpoint:
    if minor < since:
        raise RequestRefused(NOT_FOUND, f"This is not there before API version 1.{since}.")
    if request.method not in endpoints:
        status = 405 if endpoints else NOT_FOUND
        raise RequestRefused(status, f"There is no {request.method} {request.url.path}.")
    return endpoints[request.method]


def _asked(request: Request, minor: int, body: bytes) -> ApiRequest:
    try:
        document = msgspec.json.decode(body) if body else None
    except msgspec.DecodeError as problem:
        raise RequestRefused(BAD_REQUEST, f"The body is no JSON: {problem}") from None
    return ApiRequest(
        minor=minor,
        path=dict(request.path_params),
        query=dict(request.query_params),
        body=document,
        base=str(request.base_url).rstrip("/"),
    )


def _refusal(refused: RequestRefused, headers: Mapping[str, str]) -> Response:
    """An error as in Ironic: JSON inside JSON."""
    fault = {
        "faultcode": "Client" if refused.status < _SERVER_ERROR else "Server",
        "faultstring": refused.text,
        "debuginfo": None,
    }
    content = json.dumps({"error_message": json.dumps(fault)})
    return Response(content, refused.status, dict(headers), media_type="application/json")


def _denied(header: str | None, users: Mapping[str, str]) -> Response | None:
    """The answer to a request that HTTP basic authentication rejects, in the format of that layer; None if it is
    accepted.
    """
    if header is None:
        return _not_let_in(401, "Authorization required")
    kind, _, token = header.partition(" ")
    if kind.lower() != "basic":
        return _not_let_in(400, f'Unsupported authorization type "{kind[:20]}"')
    try:
        name, _, password = base64.b64decode(token, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return _not_let_in(400, "Could not decode authorization token")
    known = users.get(name)
    if known is None or not hmac.compare_digest(known.encode(), password.encode()):
        return _not_let_in(401, "Incorrect username or password")
    return None


def _not_let_in(status: int, text: str) -> Response:
    content = json.dumps({"error": {"message": text, "code": status}})
    headers = {"WWW-Authenticate": 'Basic realm="Baremetal API"'} if status == 401 else {}  # noqa: PLR2004 - HTTP's
    return Response(content, status, headers, media_type="application/json")
