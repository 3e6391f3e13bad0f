"""A small application with few routes, and a client that calls it without a socket."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import httpx

from kit.errors import Unavailable
from placement_worker.api.auth import Authentication, NoAuthentication
from placement_worker.api.policy import policy_named
from placement_worker.api.routing import HttpRoute
from placement_worker.api.schemas import VersionedValidators
from placement_worker.api.service import PlacementApp
from placement_worker.api.values import CONCURRENT_UPDATE, Pieces, Reply, Request, conflict

LIST: Final = "placement:resource_providers:list"


async def say_all(request: Request) -> Reply:
    """Returns everything that a handler gets, as JSON."""
    return Reply(
        body={
            "version": request.version,
            "user": request.caller.user,
            "params": dict(request.params),
            "query": request.query,
            "prefix": request.prefix,
        },
        is_fresh=True,
    )


async def say_body(request: Request) -> Reply:
    return Reply(HTTPStatus.CREATED, Pieces((request.body,)))


async def say_nothing(_: Request) -> Reply:
    return Reply(HTTPStatus.NO_CONTENT)


async def say_elsewhere(_: Request) -> Reply:
    return Reply(HTTPStatus.CREATED, headers={"location": "/things/a"})


async def say_conflict(_: Request) -> Reply:
    raise conflict("generation 3 was seen, it is 4", CONCURRENT_UPDATE)


async def be_wrong(_: Request) -> Reply:
    raise KeyError("a secret of the server")


async def be_away(_: Request) -> Reply:
    raise Unavailable("no database")


ROUTES: Final[Sequence[HttpRoute]] = (
    HttpRoute("GET", "/things", say_all, LIST),
    HttpRoute(
        "POST",
        "/things",
        say_body,
        "placement:resource_providers:create",
        body=VersionedValidators({(1, 0): {}}),
    ),
    HttpRoute("GET", "/things/{name}", say_all, LIST),
    HttpRoute("DELETE", "/things/{name}", say_nothing, LIST, since=(1, 5)),
    HttpRoute("GET", "/things/{name}/newer", say_all, LIST, since=(1, 6)),
    HttpRoute("GET", "/usages", say_all, "placement:usages"),
    HttpRoute("GET", "/elsewhere", say_elsewhere, LIST),
    HttpRoute("GET", "/conflict", say_conflict, LIST),
    HttpRoute("GET", "/wrong", be_wrong, LIST),
    HttpRoute("GET", "/away", be_away, LIST),
)


def app_with(
    auth: Authentication | None = None,
    policy: str = "legacy",
    *,
    prefix: str = "",
    cors_origins: Sequence[str] = (),
) -> PlacementApp:
    auth = auth or NoAuthentication()
    return PlacementApp(ROUTES, auth, policy_named(policy), prefix=prefix, cors_origins=cors_origins)


def client_of(app: PlacementApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://placement")


async def asked(
    app: PlacementApp,
    method: str,
    target: str,
    *,
    version: str = "1.39",
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> httpx.Response:
    async with client_of(app) as client:
        said = {"openstack-api-version": f"placement {version}"} if version else {}
        return await client.request(method, target, headers={**said, **(headers or {})}, content=body)
