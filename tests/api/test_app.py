"""The steps that the application does for all requests, whatever the handler."""

import json
import logging

import pytest

from placement_worker.api import values
from placement_worker.api.auth import BelievedToken
from tests.api.asking_app import app_with, asked

pytestmark = pytest.mark.asyncio

APP = app_with()


async def test_every_answer_says_its_version_and_that_it_varies_by_it() -> None:
    answer = await asked(APP, "GET", "/things", version="latest")

    assert answer.status_code == 200
    assert answer.headers["openstack-api-version"] == "placement 1.39"
    assert answer.headers["vary"] == "openstack-api-version"
    assert answer.headers["x-openstack-request-id"].startswith("req-")
    assert answer.json()["version"] == [1, 39]


@pytest.mark.parametrize(("version", "said"), [("1.14", None), ("1.15", "no-cache")])
async def test_an_answer_of_this_moment_is_not_cached(version: str, said: str | None) -> None:
    answer = await asked(APP, "GET", "/things", version=version)

    assert answer.headers.get("cache-control") == said
    assert ("last-modified" in answer.headers) == bool(said)


async def test_a_version_that_is_not_served_is_a_406_with_the_range_and_no_code() -> None:
    answer = await asked(APP, "GET", "/", version="1.40")

    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["status"], error["title"]) == (406, 406, "Not Acceptable")
    assert (error["min_version"], error["max_version"]) == ("1.0", "1.39")
    assert "code" not in error
    assert "openstack-api-version" not in answer.headers
    assert error["request_id"] == answer.headers["x-openstack-request-id"]


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/html,*/*;q=0.1", "application/json"),
        ("text/html", "text/html; charset=UTF-8"),
        ("text/plain", "text/plain; charset=UTF-8"),
        ("application/xml", "text/plain; charset=UTF-8"),
        ("application/json;q=0, text/*", "text/html; charset=UTF-8"),
    ],
)
async def test_an_error_is_told_in_a_form_that_the_client_takes(accept: str, media: str) -> None:
    answer = await asked(APP, "GET", "/", version="0.5", headers={"accept": accept})

    assert answer.status_code == 406
    assert answer.headers["content-type"] == media
    assert "0.5" in answer.text


@pytest.mark.parametrize(("version", "code"), [("1.22", None), ("1.23", "placement.concurrent_update")])
async def test_errors_have_codes_from_the_version_that_brought_them(version: str, code: str | None) -> None:
    answer = await asked(APP, "GET", "/conflict", version=version)

    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["title"], error.get("code")) == (409, "Conflict", code)
    assert error["detail"] == ("The request conflicts with what is there.\n\ngeneration 3 was seen, it is 4")
    assert answer.headers["openstack-api-version"] == f"placement {version}"


@pytest.mark.parametrize("path", ["/things/", "/things//newer", "//things", "/things/a/older", "/metrics/"])
async def test_a_path_is_taken_as_it_is_written(path: str) -> None:
    assert (await asked(APP, "GET", f"http://placement{path}")).status_code == 404


async def test_a_path_that_is_newer_than_the_version_asked_for_does_not_exist() -> None:
    assert (await asked(APP, "GET", "/things/a/newer", version="1.5")).status_code == 404
    assert (await asked(APP, "GET", "/things/a/newer", version="1.6")).status_code == 200


async def test_a_method_that_is_newer_than_the_version_asked_for_is_not_allowed() -> None:
    answer = await asked(APP, "DELETE", "/things/a", version="1.4")

    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert (await asked(APP, "DELETE", "/things/a", version="1.5")).status_code == 204


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PATCH", "PUT"])
async def test_a_method_that_a_path_has_not_is_told_which_it_has(method: str) -> None:
    answer = await asked(APP, method, "/things")

    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")


async def test_an_answer_without_a_body_says_nothing_of_its_length_or_type() -> None:
    answer = await asked(APP, "DELETE", "/things/a")

    assert answer.status_code == 204
    assert not {"content-type", "content-length"} & set(answer.headers)


@pytest.mark.parametrize("media", ["application/jsonx", "application/xml"])
async def test_a_body_of_another_type_is_a_415(media: str) -> None:
    answer = await asked(APP, "POST", "/things", body=b"{}", headers={"content-type": media})

    assert answer.status_code == 415
    assert f"The media type {media} is not supported" in answer.json()["errors"][0]["detail"]


async def test_a_type_may_have_parameters_and_any_case() -> None:
    media = {"content-type": "Application/JSON; charset=utf-8"}

    answer = await asked(APP, "POST", "/things", body=b'{"name": "a"}', headers=media)

    assert (answer.status_code, answer.json()) == (201, {"name": "a"})


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/*", 200),
        ("application/json;q=0.0", 406),
    ],
)
async def test_reading_is_refused_to_who_takes_no_json(accept: str, status: int) -> None:
    assert (await asked(APP, "GET", "/things", headers={"accept": accept})).status_code == status


async def test_a_handler_sees_the_path_and_the_query_decoded_and_in_order() -> None:
    answer = await asked(APP, "GET", "/things/a%2Fb%E2%98%83?required=A&required=B&name=%e2%98%83&flag")

    assert answer.json()["params"] == {"name": "a/b☃"}
    assert answer.json()["query"] == [["required", "A"], ["required", "B"], ["name", "☃"], ["flag", ""]]


async def test_a_query_that_is_not_utf8_is_a_400() -> None:
    assert (await asked(APP, "GET", "/things?name=%ff")).status_code == 400


async def test_more_keys_than_are_read_are_a_400_that_says_how_many() -> None:
    answer = await asked(APP, "GET", f"/things?{'&'.join(['a=1'] * 1_001)}")

    assert answer.status_code == 400
    assert "1001 keys, and at most 1000 are allowed" in answer.json()["errors"][0]["detail"]


async def test_a_body_that_is_longer_than_is_read_is_a_413(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "BODY_BYTES_MAX", 20)
    app = app_with()
    media = {"content-type": "application/json"}

    longer = await asked(app, "POST", "/things", body=b'{"name": "abcdefghijk"}', headers=media)

    assert longer.status_code == 413
    assert "23 bytes, and at most 20" in longer.json()["errors"][0]["detail"]


async def test_what_a_proxy_leaves_before_the_path_is_taken_off_and_told() -> None:
    app = app_with(prefix="/placement")

    assert (await asked(app, "GET", "/placement/things")).json()["prefix"] == "/placement"
    assert (await asked(app, "GET", "/placement")).status_code == 200
    assert (await asked(app, "GET", "/placement/")).status_code == 200
    assert (await asked(app, "GET", "/things")).json()["prefix"] == ""
    assert (await asked(app, "GET", "/placementthings")).status_code == 404


async def test_a_handler_that_is_wrong_is_a_500_that_tells_the_log_and_not_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = await asked(APP, "GET", "/wrong")

    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "secret" in caplog.text
    assert answer.headers["x-openstack-request-id"] in caplog.text


async def test_a_database_that_is_away_is_a_503_which_may_be_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = await asked(APP, "GET", "/away")

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["errors"][0]["title"] == "Service Unavailable"
    assert "no database" in caplog.text
    assert "no database" not in answer.text


async def test_each_request_is_one_line_of_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    cause = "req-" + "a" * 36
    with caplog.at_level(logging.INFO, "placement_worker.api.access"):
        answer = await asked(APP, "GET", "/things?a=%0A", headers={"x-openstack-request-id": cause})

    (line,) = [json.loads(r.message) for r in caplog.records if r.name == "placement_worker.api.access"]
    assert line.pop("took_ms") >= 0
    assert line == {
        "request_id": answer.headers["x-openstack-request-id"],
        "global_request_id": cause,
        "client": "127.0.0.1",
        "method": "GET",
        "target": "/things?a=%0A",
        "status": 200,
        "sent_bytes": len(answer.content),
        "version": "1.39",
        "user": "admin",
        "project": "admin",
    }


async def test_a_request_id_that_is_none_is_not_written_down(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "placement_worker.api.access"):
        await asked(APP, "GET", "/things", headers={"x-openstack-request-id": "req-<script>"})

    assert "script" not in caplog.text


async def test_metrics_count_by_route_and_are_for_everybody() -> None:
    app = app_with(auth=BelievedToken())
    for path in ("/things/a", "/things/b", "/nowhere/1", "/nowhere/2"):
        await asked(app, "GET", path, headers={"x-auth-token": "admin"})
    await asked(app, "GROW", "/things", headers={"x-auth-token": "admin"})

    page = (await asked(app, "GET", "/metrics", version="")).text

    total = "moor_placement_http_requests_total"
    assert f'{total}{{method="GET",route="/things/{{name}}",status="200"}} 2.0' in page
    assert f'{total}{{method="GET",route="-",status="404"}} 2.0' in page
    assert f'{total}{{method="other",route="-",status="405"}} 1.0' in page
    assert 'moor_placement_http_request_seconds_count{method="GET",route="/things/{name}"} 2.0' in page
    assert "moor_placement_http_requests_under_way 1.0" in page, "this one"


async def test_the_root_tells_the_versions_without_a_token() -> None:
    app = app_with(auth=BelievedToken())

    answer = await asked(app, "GET", "/", version="")

    (version,) = answer.json()["versions"]
    assert (version["min_version"], version["max_version"], version["id"]) == ("1.0", "1.39", "v1.0")
    assert (await asked(app, "GET", "/things", version="")).status_code == 401


async def test_browsers_of_named_origins_may_read_and_others_may_not() -> None:
    app = app_with(cors_origins=("https://cloud.example.com",))
    asks = {"access-control-request-method": "GET", "access-control-request-headers": "X-Auth-Token, x-evil"}
    named, other = {"origin": "https://cloud.example.com"}, {"origin": "https://evil.example.com"}

    preflight = await asked(app, "OPTIONS", "/things", headers={**named, **asks})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == named["origin"]
    assert preflight.headers["access-control-allow-headers"] == "x-auth-token"
    assert preflight.headers["access-control-allow-methods"] == "GET, POST, PUT, DELETE"

    read = await asked(app, "GET", "/things", headers=named)
    assert read.headers["access-control-allow-origin"] == named["origin"]
    assert read.headers["vary"] == "openstack-api-version, origin"

    for answer in (
        await asked(app, "OPTIONS", "/things", headers={**other, **asks}),
        await asked(app, "GET", "/things", headers=other),
        await asked(APP, "GET", "/things", headers=named),
    ):
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


async def test_a_method_that_a_path_never_had_is_not_allowed_even_where_the_path_is_newer() -> None:
    assert (await asked(APP, "PUT", "/things/a/newer", version="1.0")).status_code == 405


async def test_where_something_is_is_told_with_the_host_that_was_asked() -> None:
    answer = await asked(APP, "GET", "/elsewhere", headers={"host": "cloud.example.com:8780"})

    assert answer.headers["location"] == "http://cloud.example.com:8780/things/a"
