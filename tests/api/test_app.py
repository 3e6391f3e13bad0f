"""The steps that the service does for all requests, whatever the endpoint."""

import json
import logging
from typing import Any

import pytest

from kit.errors import Unavailable
from tests.api.whole_app import HOST, Version, a_server, server_over
from tests.stores_in_memory import MemoryPlacementStore

PROVIDERS, CANDIDATES = "/resource_providers", "/allocation_candidates?resources=VCPU:1"
ADMIN = {"x-auth-token": "admin"}
JSON = "application/json"
PLACE = {"origin": "https://cloud.example.com"}


def saying(version: str = "1.39", **headers: str) -> dict[str, str]:
    return {
        **ADMIN,
        "openstack-api-version": f"placement {version}",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "said"),
    [
        ("GET", "/", {}, 200, '"max_version":"1.39"'),
        ("GET", PROVIDERS, {}, 401, "Unauthorized"),
        ("GET", PROVIDERS, saying("latest"), 200, HOST),
        ("GET", "/", saying("1.40"), 406, '"max_version":"1.39"'),
        ("GET", "/", saying("1.-1"), 406, '"min_version":"1.0"'),
        ("GET", "/", saying("1.2.3"), 400, "X.Y"),
        ("GET", CANDIDATES, saying("1.9"), 404, ""),
        ("GET", CANDIDATES, saying("1.2, placement 1.10"), 200, HOST),
        ("GET", CANDIDATES, {**ADMIN, "openstack-api-version": "compute 2.95, placement 1.30"}, 200, HOST),
        ("GET", f"{PROVIDERS}/", saying(), 404, ""),
        ("GET", f"/{PROVIDERS}", saying(), 404, ""),
        ("GET", "/metrics/", saying(), 404, ""),
        ("PATCH", PROVIDERS, saying(), 405, "GET, POST"),
        ("DELETE", f"{PROVIDERS}/{HOST}/inventories", saying("1.4"), 405, "GET, POST, PUT"),
        ("PUT", PROVIDERS, saying("1.0"), 405, "GET, POST"),
        ("POST", PROVIDERS, saying(content_type="application/xml"), 415, "type application/xml is not"),
        ("POST", PROVIDERS, saying(content_type="Application/JSON; charset=utf-8"), 200, "made"),
        ("GET", PROVIDERS, saying(accept="application/*"), 200, HOST),
        ("GET", PROVIDERS, saying(accept="application/json;q=0.0"), 406, ""),
        ("GET", f"{PROVIDERS}?name=%ff", saying(), 400, ""),
        ("GET", f"{PROVIDERS}?{'&'.join(['a=1'] * 1_001)}", saying(), 400, "1001 keys, and at most 1000 are"),
        ("PUT", "/traits/CUSTOM%5FX", saying(), 201, ""),
        ("PUT", "/traits/CUSTOM_%E2%98%83", saying(), 400, ""),
    ],
)
async def test_what_is_asked_gets_this_status_and_is_told_why(
    method: str, path: str, headers: dict[str, str], status: int, said: str
) -> None:
    async with a_server() as server:
        body = b'{"name": "made"}' if method == "POST" else None
        answer = await server.client.request(method, f"http://placement{path}", headers=headers, content=body)

    assert answer.status_code == status, answer.text
    assert said in answer.text + answer.headers.get("allow", "")
    assert answer.headers["x-openstack-request-id"].startswith("req-")


async def test_headers_say_the_version_that_it_varies_by_it_and_how_long_an_answer_holds() -> None:
    async with a_server() as server:
        old, new = [await server.ask("GET", PROVIDERS, version=each) for each in ((1, 14), (1, 15))]
        nothing = await server.ask("DELETE", f"{PROVIDERS}/{HOST}/traits")
        made = await server.ask("POST", PROVIDERS, {"name": "made"}, (1, 19))
        refused = await server.client.get("/", headers=saying("1.40"))

    assert (new.headers["openstack-api-version"], new.headers["vary"]) == (
        "placement 1.15",
        "openstack-api-version",
    )
    assert [each.headers.get("cache-control") for each in (old, new)] == [None, "no-cache"]
    assert ["last-modified" in each.headers for each in (old, new)] == [False, True]
    assert not {"content-type", "content-length"} & set(nothing.headers)
    assert made.headers["location"].startswith(f"http://placement{PROVIDERS}/")
    assert refused.json()["errors"][0]["request_id"] == refused.headers["x-openstack-request-id"]


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("", JSON),
        ("text/html,*/*;q=0.1", JSON),
        ("text/html", "text/html; charset=UTF-8"),
        ("application/xml", "text/plain; charset=UTF-8"),
        ("application/json;q=0, text/*", "text/html; charset=UTF-8"),
    ],
)
async def test_an_error_is_told_in_a_form_that_the_client_takes(accept: str, media: str) -> None:
    async with server_over(MemoryPlacementStore()) as server:
        answer = await server.client.get("/", headers=saying("0.5", accept=accept))

    assert (answer.status_code, answer.headers["content-type"], "0.5" in answer.text) == (406, media, True)


@pytest.mark.parametrize(("version", "code"), [((1, 22), None), ((1, 23), "placement.duplicate_name")])
async def test_errors_have_codes_from_the_version_that_brought_them(
    version: Version, code: str | None
) -> None:
    async with a_server() as server:
        (error,) = (await server.ask("POST", PROVIDERS, {"name": "host"}, version)).json()["errors"]

    assert (error["status"], error["title"], error.get("code")) == (409, "Conflict", code)


async def test_what_a_proxy_leaves_before_the_path_is_taken_off_and_told() -> None:
    async with a_server(prefix="/placement") as server:
        (host, _) = (await server.done("GET", f"/placement{PROVIDERS}"))["resource_providers"]
        statuses = [
            (await server.ask("GET", path)).status_code
            for path in ("/placement", "/placement/", PROVIDERS, "/placementresource_providers")
        ]

    assert host["links"][0]["href"] == f"/placement{PROVIDERS}/{HOST}"
    assert statuses == [200, 200, 200, 404]


class Broken(MemoryPlacementStore):
    """A store that fails like this at each reading."""

    problem: Exception

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name in ("tables", "problem"):
            return super().__getattribute__(name)
        raise self.problem


@pytest.mark.parametrize(
    ("problem", "status", "again"),
    [(KeyError("a secret of the server"), 500, None), (Unavailable("a secret of the server"), 503, "1")],
)
async def test_a_failure_is_told_to_the_log_and_not_to_the_client(
    problem: Exception, status: int, again: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    store = Broken()
    store.problem = problem
    async with server_over(store) as server:
        answer = await server.ask("GET", PROVIDERS)

    assert (answer.status_code, answer.headers.get("retry-after")) == (status, again)
    assert ("secret" in answer.text, "secret" in caplog.text) == (False, True)
    assert answer.headers["x-openstack-request-id"] in caplog.text


async def test_each_request_is_one_line_of_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    cause, log = "req-" + "a" * 36, "placement_worker.api.access"
    async with server_over(MemoryPlacementStore()) as server:
        with caplog.at_level(logging.INFO, log):
            answer = await server.client.get(
                f"{PROVIDERS}?name=%0A", headers=saying(x_openstack_request_id=cause)
            )
            await server.client.get("/", headers=saying(x_openstack_request_id="req-<script>"))

    line, _ = [json.loads(each.message) for each in caplog.records if each.name == log]
    assert line.pop("took_ms") >= 0
    assert line == {
        "request_id": answer.headers["x-openstack-request-id"],
        "global_request_id": cause,
        "client": "127.0.0.1",
        "method": "GET",
        "target": f"{PROVIDERS}?name=%0A",
        "status": 200,
        "sent_bytes": len(answer.content),
        "version": "1.39",
        "user": "admin",
        "project": "admin",
    }
    assert "script" not in caplog.text


async def test_metrics_count_by_route_and_are_for_everybody() -> None:
    async with server_over(MemoryPlacementStore()) as server:
        for method, path in (("GET", "/traits/a"), ("GET", "/traits/b"), ("GET", "/x")):
            await server.ask(method, path)
        page = (await server.client.get("/metrics")).text

    total = "moor_placement_http_requests_total"
    assert f'{total}{{method="GET",route="/traits/{{name}}",status="404"}} 2.0' in page
    assert f'{total}{{method="GET",route="-",status="404"}} 1.0' in page
    assert "moor_placement_http_requests_under_way 1.0" in page, "this one"


async def test_browsers_of_named_origins_may_read_and_others_may_not() -> None:
    asks = {"access-control-request-method": "GET", "access-control-request-headers": "X-Auth-Token, x-evil"}
    async with server_over(MemoryPlacementStore(), cors_origins=(PLACE["origin"],)) as server:
        (preflight, read), refused = [
            [
                await server.client.request(method, PROVIDERS, headers={**saying(), **origin, **more})
                for method, more in (("OPTIONS", asks), ("GET", {}))
            ]
            for origin in (PLACE, {"origin": "https://evil.example.com"})
        ]

    assert preflight.headers["access-control-allow-headers"] == "x-auth-token"
    assert preflight.headers["access-control-allow-methods"] == "GET, POST, PUT, DELETE"
    assert {each.headers["access-control-allow-origin"] for each in (preflight, read)} == {PLACE["origin"]}
    assert read.headers["vary"] == "openstack-api-version, origin"
    assert not any("access-control-allow-origin" in each.headers for each in refused)
