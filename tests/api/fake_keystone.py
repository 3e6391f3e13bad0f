"""A fake of Keystone v3: only /v3/auth/tokens, with the status codes of the real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.served import served

OUR_PASSWORD = "of the service"  # noqa: S105  (a fake one takes it)


class FakeKeystone:
    def __init__(self) -> None:
        self.password = OUR_PASSWORD
        # The contents of each client's token; a service's own tokens are kept apart.
        self.tokens: dict[str, dict[str, object]] = {}
        self.service_tokens: set[str] = set()
        self.service_user = "placement"
        self.credential: dict[str, str] | None = None
        # By name, password and project: what the token of such a person says.
        self.people: dict[tuple[str, str, str], dict[str, Any]] = {}
        # How long a service's token lasts, by a clock that need not be the service's.
        self.lasts_s = 3600.0
        self.catalogue: list[dict[str, object]] = []
        self.authenticated: list[dict[str, object]] = []
        self.asked: list[str] = []
        self.is_down = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.app = Starlette(
            routes=[Route("/identity/v3/auth/tokens", self._tokens, methods=["GET", "POST"])]
        )

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app))

    @asynccontextmanager
    async def served(self) -> AsyncIterator[dict[str, str]]:
        """The variables of a process that asks it."""
        async with served(self.app) as server:
            asks = {"KEYSTONE_URL": f"{server.url}/identity", "USER": "placement", "PASSWORD": OUR_PASSWORD}
            yield {f"MOOR_OPENSTACK_{name}": value for name, value in asks.items()}

    def issue(self, *, lasts_s: float = 3600, **said: object) -> str:
        token = uuid4().hex
        expires = datetime.now(UTC) + timedelta(seconds=lasts_s)
        self.tokens[token] = {
            "user": {"id": "u-1", "name": "ann", "domain": {"id": "default", "name": "Default"}},
            "project": {"id": "p-1", "name": "demo"},
            "roles": [{"id": "r-1", "name": "Admin"}, {"id": "r-2", "name": "reader"}],
            "methods": ["password"],
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "expires_at": expires.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            **said,
        }
        return token

    def ends_at(self, token: str) -> float:
        return datetime.fromisoformat(str(self.tokens[token]["expires_at"])).timestamp()

    async def _tokens(self, request: Request) -> Response:
        await self.may_answer.wait()
        if self.is_down:
            return Response(status_code=HTTPStatus.SERVICE_UNAVAILABLE)
        if request.method == "POST":
            return await self._authenticate(request)
        if request.headers.get("x-auth-token") not in self.service_tokens:
            return Response(status_code=HTTPStatus.UNAUTHORIZED)
        subject = request.headers["x-subject-token"]
        self.asked.append(subject)
        if subject not in self.tokens:
            return Response(status_code=HTTPStatus.NOT_FOUND)
        return JSONResponse({"token": self.tokens[subject]}, headers={"x-subject-token": subject})

    async def _authenticate(self, request: Request) -> Response:
        auth = (await request.json())["auth"]
        self.authenticated.append(auth)
        person = self._person(auth)
        if person is None and not self._is_right(auth):
            return Response(status_code=HTTPStatus.UNAUTHORIZED)
        token = uuid4().hex if person is None else self.issue(**person)
        if person is None:
            self.service_tokens.add(token)
        issued = datetime(2031, 1, 1, tzinfo=UTC)
        said: dict[str, object] = {
            "issued_at": issued.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "expires_at": (issued + timedelta(seconds=self.lasts_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        if "nocatalog" not in request.query_params:
            said["catalog"] = self.catalogue
        return JSONResponse(
            {"token": said}, status_code=HTTPStatus.CREATED, headers={"x-subject-token": token}
        )

    def _person(self, auth: dict[str, Any]) -> dict[str, Any] | None:
        user = auth["identity"].get("password", {}).get("user", {})
        project = auth.get("scope", {}).get("project", {}).get("name", "")
        return self.people.get((user.get("name"), user.get("password"), project))

    def _is_right(self, auth: dict[str, Any]) -> bool:
        identity = auth["identity"]
        if identity["methods"] == ["application_credential"]:
            # Keystone refuses a scope beside an application credential.
            return "scope" not in auth and identity["application_credential"] == self.credential
        user = identity["password"]["user"]
        named = (user["name"], user["password"], user["domain"]["name"])
        in_project = {"project": {"name": "service", "domain": {"name": "Default"}}}
        return named == (self.service_user, self.password, "Default") and auth["scope"] in (
            in_project,
            {"system": {"all": True}},
        )
