"""The REST API as an ASGI application: routes, versions and errors as in Ironic; and an httpx transport to it."""

import json
from collections.abc import Awaitable, Callable, Mapping

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from compute_sim.laboratory.ironic.api.answers import ApiRequest
from compute_sim.laboratory.ironic.api.nodes import ENDPOINTS, Endpoint
from compute_sim.laboratory.ironic.core.refusals import (
    BAD_REQUEST,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    SERVER_ERROR,
    RequestRefused,
)
from compute_sim.laboratory.ironic.simulated import LATEST_MINOR, SimulatedIronic

HEADER = "X-OpenStack-Ironic-API-Version"
MIN_HEADER = "X-OpenStack-Ironic-API-Minimum-Version"
MAX_HEADER = "X-OpenStack-Ironic-API-Maximum-Version"
_OLDEST = "1.1"
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_METHOD_NOT_ALLOWED = 405


def ironic_app(ironic: SimulatedIronic) -> Starlette:
    table = {**ENDPOINTS, "/{rest:path}": {}}
    return Starlette(
        routes=[Route(path, _route(ironic, endpoints), methods=_METHODS) for path, endpoints in table.items()]
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
    headers = {MIN_HEADER: _OLDEST, MAX_HEADER: f"1.{LATEST_MINOR}", HEADER: f"1.{LATEST_MINOR}"}
    try:
        minor = asked_minor(request.headers)
        headers[HEADER] = f"1.{minor}"
        answer = _endpoint(endpoints, request)(ironic, _asked(request, minor, body))
    except RequestRefused as refused:
        return _refusal(refused, headers)
    content = b"" if answer.body is None else msgspec.json.encode(answer.body)
    return Response(content, answer.status, headers, media_type="application/json" if content else None)


def asked_minor(headers: Mapping[str, str]) -> int:
    """The requested minor version; without a header the oldest one."""
    asked = headers.get(HEADER.lower(), _OLDEST)
    if asked.lower() == "latest":
        return LATEST_MINOR
    major, _, minor = asked.partition(".")
    if major == "1" and minor.isdecimal() and 1 <= int(minor) <= LATEST_MINOR:
        return int(minor)
    text = f"Version {asked[:50]} is not supported: the versions are [{_OLDEST}, 1.{LATEST_MINOR}]."
    raise RequestRefused(NOT_ACCEPTABLE, text)


def _endpoint(endpoints: Mapping[str, Endpoint], request: Request) -> Endpoint:
    if request.method not in endpoints:
        status = _METHOD_NOT_ALLOWED if endpoints else NOT_FOUND
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
        "faultcode": "Client" if refused.status < SERVER_ERROR else "Server",
        "faultstring": refused.text,
        "debuginfo": None,
    }
    content = json.dumps({"error_message": json.dumps(fault)})
    return Response(content, refused.status, dict(headers), media_type="application/json")
