"""Stand-ins for Glance, Neutron and Keystone, as small as Nova allows: `python -m tests.conformance.nova.stub_services PORT COMPUTE_URL`.

Glance has two images, and takes snapshots. Neutron is in stub_neutron.py, and has no network at first. Keystone gives everybody a token.
"""

import asyncio
import json
import sys
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kit.health import Listen
from kit.http_server import HttpServer
from tests.conformance.nova.stub_neutron import Neutron

IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"
OTHER_IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e7"
_COMMON = {
    "status": "active",
    "visibility": "public",
    "disk_format": "raw",
    "container_format": "bare",
    "size": 1048576,
    "min_disk": 0,
    "min_ram": 0,
    "protected": False,
    "os_hidden": False,
    "created_at": "2026-01-01T00:00:00Z",
    "updated_at": "2026-01-01T00:00:00Z",
}


def _image(id_: str, **more: Any) -> dict[str, Any]:
    own = {"id": id_, "owner": "admin", "file": f"/v2/images/{id_}/file", "self": f"/v2/images/{id_}"}
    return {"name": id_, "tags": [], **_COMMON, **own, **more}


IMAGES = {each: _image(each) for each in (IMAGE, OTHER_IMAGE)}
# Nova's client takes only what the schema names as Glance's own; any other property is the image's.
SCHEMA = {
    "name": "image",
    "properties": {
        name: {"is_base": True}
        for name in (*_image(""), "checksum", "direct_url", "locations", "virtual_size")
    },
    "additionalProperties": {"type": "string"},
}
NEUTRON = Neutron()


async def answered(request: Request) -> Response:
    sent = await request.body()
    body = json.loads(sent) if sent and "json" in request.headers.get("content-type", "") else {}
    status, answer, headers = _answer(request, request.url.path.strip("/").split("/"), body)
    if answer is None or isinstance(answer, bytes):
        return Response(answer, status, headers, "application/octet-stream")
    return JSONResponse(answer, status, headers)


def _answer(request: Request, path: Sequence[str], body: Any) -> tuple[int, Any, Mapping[str, str]]:
    here = str(request.base_url)
    status: int = HTTPStatus.OK
    answer: Any = None
    headers: Mapping[str, str] = {}
    match [request.method, *path]:
        case [_, "v2.0", *rest]:
            status, answer = NEUTRON.answer(
                request.method, rest, parse_qs(request.url.query, keep_blank_values=True), body
            )
        case ["POST", "v3", "auth", "tokens"]:
            # Placement's noauth2 believes this token.
            status, answer, headers = (
                HTTPStatus.CREATED,
                _token(here.rstrip("/")),
                {"X-Subject-Token": "admin"},
            )
        case ["GET", "v3"]:
            answer = {"version": _version("v3.14", "stable", f"{here}v3/")}
        case ["GET", "" | "v2"]:
            answer = {"versions": [_version("v2.9", "CURRENT", f"{here}v2/")]}
        case ["GET", "v2", "schemas", "image"]:
            answer = SCHEMA
        case [_, "v2", "images", *rest]:
            status, answer = _of_images(request.method, rest, body)
        case _:
            status, answer = HTTPStatus.NOT_FOUND, {"message": f"{request.url.path} is not here"}
    return status, answer, headers


def _of_images(method: str, path: Sequence[str], body: Any) -> tuple[int, Any]:
    match [method, *path]:
        case ["GET"]:
            return HTTPStatus.OK, {"images": [*IMAGES.values()]}
        case ["POST"]:
            image = _image(str(uuid.uuid4()), **body)
            IMAGES[image["id"]] = image
            return HTTPStatus.CREATED, image
        case ["GET" | "PATCH", id_, *file] if id_ in IMAGES:
            for change in body or ():
                name = change["path"].removeprefix("/")
                IMAGES[id_].pop(name, None)
                IMAGES[id_] |= {} if change["op"] == "remove" else {name: change["value"]}
            return HTTPStatus.OK, b"an image" if file else IMAGES[id_]
        case ["DELETE", id_]:
            IMAGES.pop(id_, None)
    return (
        (HTTPStatus.NOT_FOUND, {"message": "no such image"})
        if method == "GET"
        else (HTTPStatus.NO_CONTENT, None)
    )


def _version(number: str, status: str, href: str) -> Mapping[str, object]:
    return {"id": number, "status": status, "links": [{"rel": "self", "href": href}]}


def _token(here: str) -> dict[str, Any]:
    """A token of an hour, with the addresses of Nova's API and of the stand-ins."""
    addresses = {"compute": sys.argv[2], "image": here, "network": here}
    catalog = [
        {
            "type": kind,
            "name": kind,
            "id": kind,
            "endpoints": [
                {
                    "interface": interface,
                    "url": url,
                    "region": "one",
                    "region_id": "one",
                    "id": f"{kind}-{interface}",
                }
                for interface in ("public", "internal", "admin")
            ],
        }
        for kind, url in addresses.items()
    ]
    now = datetime.now(UTC)
    operator = {"id": "operator", "name": "operator", "domain": {"id": "default", "name": "Default"}}
    return {
        "token": {
            "methods": ["password"],
            "user": operator,
            "project": {**operator, "id": "7be00000-0000-4000-8000-000000000001", "name": "operators"},
            "roles": [{"id": name, "name": name} for name in ("admin", "service")],
            "issued_at": now.isoformat(),
            "expires_at": (now + timedelta(hours=1)).isoformat(),
            "catalog": catalog,
        }
    }


def main(arguments: Sequence[str]) -> None:
    app = Starlette(
        routes=[Route("/{path:path}", answered, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])]
    )
    asyncio.run(HttpServer(app, Listen("127.0.0.1", int(arguments[0]))).run())


if __name__ == "__main__":
    main(sys.argv[1:])
