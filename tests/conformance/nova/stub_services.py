"""Stand-ins for Glance, Neutron and Keystone, as small as Nova allows: `python -m tests.conformance.nova.stub_services PORT COMPUTE_URL`.

Glance has two images, and takes snapshots. Neutron is in stub_neutron.py, and has no network at first. Keystone gives everybody a token.
Beyond that it imports only the standard library.
"""

import json
import sys
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

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


def _image(image_id: str, **more: Any) -> dict[str, Any]:
    own = {
        "id": image_id,
        "owner": "admin",
        "file": f"/v2/images/{image_id}/file",
        "self": f"/v2/images/{image_id}",
    }
    return {"name": image_id, "tags": [], **_COMMON, **own, **more}


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


class Stub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        match parts:
            case [""] | ["v2"]:
                here = f"http://{self.headers['Host']}/v2/"
                self._answer(
                    {
                        "versions": [
                            {"id": "v2.9", "status": "CURRENT", "links": [{"rel": "self", "href": here}]}
                        ]
                    }
                )
            case ["v3"]:
                here = f"http://{self.headers['Host']}/v3/"
                self._answer(
                    {"version": {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": here}]}}
                )
            case ["v2", "schemas", "image"]:
                self._answer(SCHEMA)
            case ["v2", "images"]:
                self._answer({"images": [*IMAGES.values()]})
            case ["v2", "images", image] if image in IMAGES:
                self._answer(IMAGES[image])
            case ["v2", "images", image, "file"] if image in IMAGES:
                self._answer(b"an image")
            case ["v2.0", *_]:
                self._ask_neutron("GET")
            case _:
                self._answer({"message": f"{self.path} is not here"}, HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        if self._ask_neutron("POST"):
            return
        if self.path.partition("?")[0] == "/v3/auth/tokens":
            self._body()
            # Placement's noauth2 believes this token.
            self._answer(_token(self.headers["Host"]), HTTPStatus.CREATED, {"X-Subject-Token": "admin"})
            return
        image = _image(str(uuid.uuid4()), **self._body())
        IMAGES[image["id"]] = image
        self._answer(image, HTTPStatus.CREATED)

    def do_PATCH(self) -> None:
        image = IMAGES[self.path.rsplit("/", 1)[-1]]
        for change in self._body():
            name = change["path"].removeprefix("/")
            if change["op"] == "remove":
                image.pop(name, None)
            else:
                image[name] = change["value"]
        self._answer(image)

    def do_PUT(self) -> None:
        if self._ask_neutron("PUT"):
            return
        self._body()
        self._answer(b"", HTTPStatus.NO_CONTENT)

    def do_DELETE(self) -> None:
        if self._ask_neutron("DELETE"):
            return
        IMAGES.pop(self.path.rsplit("/", 1)[-1], None)
        self._answer(b"", HTTPStatus.NO_CONTENT)

    def _ask_neutron(self, method: str) -> bool:
        """Answer the request if it is for Neutron."""
        url = urlsplit(self.path)
        version, *path = url.path.strip("/").split("/")
        if version != "v2.0":
            return False
        body = self._body() if method in ("POST", "PUT") else None
        query = parse_qs(url.query, keep_blank_values=True)
        status, answer = NEUTRON.answer(method, path, query, body)
        self._answer(b"" if answer is None else answer, status)
        return True

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _body(self) -> Any:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(sent) if sent and "json" in (self.headers.get("Content-Type") or "") else sent

    def _answer(
        self, body: Any, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
    ) -> None:
        is_file = isinstance(body, bytes)
        sent = body if is_file else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream" if is_file else "application/json")
        self.send_header("Content-Length", str(len(sent)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)


def _token(here: str) -> dict[str, Any]:
    """A token of an hour, with the addresses of Nova's API and of the stand-ins."""
    addresses = {"compute": sys.argv[2], "image": f"http://{here}", "network": f"http://{here}"}
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
    ThreadingHTTPServer(("127.0.0.1", int(arguments[0])), Stub).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
