"""A small Nova compute API, for tests: what it knows are plain lists, which a test changes.

Its answers have the form of Nova's own at microversion 2.69, with what it says of cells that do not answer.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kit.keystone import OpenStackSettings
from kit.parts import Pauses
from kit.rest import RestLimits
from nova_bridge.cloud_reading import NovaApi

URL = "http://nova:8774"
PAGE_MAX = 3
QUICK = RestLimits(pauses=Pauses(0.001, 0.002), tries_max=2)


class SimulatedNova:
    def __init__(self) -> None:
        self.services: list[dict[str, Any]] = []
        self.hypervisors: list[dict[str, Any]] = []
        self.aggregates: list[dict[str, Any]] = []
        self.servers: Sequence[UUID] = []
        # Their cell does not answer.
        self.silent_servers: Sequence[UUID] = []
        self.softly_deleted: Sequence[UUID] = []
        self.faults: dict[UUID, dict[str, Any]] = {}
        self.migrations: Sequence[UUID] = []
        # The API leaves them out of what it lists.
        self.hidden: set[UUID] = set()
        # What all further requests are answered with.
        self.status = 200
        self.newest = 96
        self.asked: list[str] = []
        self.app = Starlette(routes=[Route("/v2.1/{path:path}", self._answered)])

    def api(self, url: str = f"{URL}/v2.1") -> NovaApi:
        return NovaApi(url, OpenStackSettings(), limits=QUICK, transport=httpx.ASGITransport(self.app))

    def add_host(self, number: int, name: str, node: str = "", **service: object) -> None:
        service_id = str(UUID(int=1000 + number))
        self.services.append(
            {
                "id": service_id,
                "binary": "nova-compute",
                "host": name,
                "zone": "nova",
                "status": "enabled",
                "state": "up",
                "updated_at": "2026-11-25T10:00:00.000000",
                "disabled_reason": None,
                "forced_down": False,
                **service,
            }
        )
        self.hypervisors.append(
            {
                "id": str(UUID(int=number)),
                "hypervisor_hostname": node or name,
                "state": "up",
                "status": "enabled",
                "service": {"id": service_id, "host": name, "disabled_reason": None},
            }
        )

    def silence(self, host: str) -> None:
        """The cell of this host does not answer any more."""
        self.services = [
            {"binary": "nova-compute", "host": host, "status": "UNKNOWN"} if each["host"] == host else each
            for each in self.services
        ]
        self.hypervisors = [each for each in self.hypervisors if each["service"]["host"] != host]

    async def _answered(self, request: Request) -> Response:
        self.asked.append(str(request.url.path))
        version = request.headers.get("openstack-api-version", "")
        if self.status != 200:
            return _fault("computeFault", self.status, "Unexpected API Error.")
        if not version.startswith("compute 2.") or int(version.removeprefix("compute 2.")) > self.newest:
            return _fault("computeFault", 406, f"Version {version} is not supported by the API.")
        match request.path_params["path"].split("/"):
            case ["os-services"]:
                answer: Response = JSONResponse({"services": self.services})
            case ["os-hypervisors", "detail"]:
                answer = _page(request, "hypervisors", self.hypervisors)
            case ["os-aggregates"]:
                answer = JSONResponse({"aggregates": self.aggregates})
            case ["servers"]:
                assert request.query_params["all_tenants"] == "1"
                partial = [{"id": str(each), "status": "UNKNOWN"} for each in self.silent_servers]
                whole = [{"id": str(each), "name": "one"} for each in self.servers]
                answer = _page(request, "servers", [*partial, *whole])
            case ["servers", id_]:
                answer = self._server(UUID(id_))
            case ["os-migrations"]:
                answer = self._migrations(request)
            case _:
                answer = _fault("itemNotFound", 404, "The resource could not be found.")
        return answer

    def _server(self, id_: UUID) -> Response:
        if id_ not in (*self.servers, *self.silent_servers, *self.softly_deleted):
            return _fault("itemNotFound", 404, f"Instance {id_} could not be found.")
        fault = {"fault": self.faults[id_]} if id_ in self.faults else {}
        return JSONResponse({"server": {"id": str(id_), **fault}})

    def _migrations(self, request: Request) -> Response:
        shown = [each for each in self.migrations if each not in self.hidden]
        if "uuid" in request.query_params:
            assert request.headers["openstack-api-version"] == "compute 2.58"
            wanted = [each for each in shown if str(each) == request.query_params["uuid"]]
            return JSONResponse({"migrations": [{"id": 1} for _ in wanted]})
        first = _after(request.query_params.get("marker"), [str(each) for each in self.migrations])
        page = self.migrations[first:][:PAGE_MAX]
        return JSONResponse({"migrations": [{"uuid": str(each)} for each in page if each in shown]})


def _page(request: Request, key: str, items: Sequence[dict[str, Any]]) -> Response:
    limit = min(PAGE_MAX, int(request.query_params["limit"]))
    page = items[_after(request.query_params.get("marker"), [each["id"] for each in items]) :][:limit]
    body: dict[str, Any] = {key: page}
    if len(page) == limit:
        href = f"http://inside:8774{request.url.path}?limit={limit}&marker={page[-1]['id']}"
        body[f"{key}_links"] = [{"rel": "next", "href": href}]
    return JSONResponse(body)


def _after(marker: str | None, ids: Sequence[str]) -> int:
    return 0 if marker is None else ids.index(marker) + 1


def _fault(kind: str, status: int, message: str) -> Response:
    return JSONResponse({kind: {"code": status, "message": message}}, status_code=status)
