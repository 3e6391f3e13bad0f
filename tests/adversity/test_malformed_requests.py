"""Placement's HTTP API answers every request: malformed ones with a 4xx that says why, and none with a 5xx."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from placement_worker.api.routing import HttpRoute
from placement_worker.api.values import NEWEST, Version
from tests.api.whole_app import HOST, NIC, NOBODY, RACK, WEB, Sent, Server, a_server
from tests.json_places import places_in, with_replaced
from tools.pages.placement_openapi import every_route

ALLOCATIONS = {"allocations": {HOST: {"resources": {"VCPU": 1}}}, "project_id": "shop", "user_id": "ann"}
INVENTORIES = {
    "resource_provider_generation": 1,
    "inventories": {"VCPU": {"total": 8}, "DISK_GB": {"total": 9}},
}
# Correct bodies by route, of the newest version where they changed.
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/resource_providers"): {"name": "new", "uuid": NOBODY, "parent_provider_uuid": HOST},
    ("PUT", "/resource_providers/{uuid}"): {"name": "newer", "parent_provider_uuid": None},
    ("POST", "/resource_providers/{uuid}/inventories"): {
        "resource_class": "VGPU",
        "total": 4,
        "allocation_ratio": 1.5,
    },
    ("PUT", "/resource_providers/{uuid}/inventories"): INVENTORIES,
    ("PUT", "/resource_providers/{uuid}/inventories/{resource_class}"): {
        "resource_provider_generation": 1,
        "total": 4,
        "reserved": 1,
        "min_unit": 1,
        "max_unit": 2,
        "step_size": 1,
    },
    ("PUT", "/resource_providers/{uuid}/aggregates"): {
        "aggregates": [RACK],
        "resource_provider_generation": 1,
    },
    ("PUT", "/resource_providers/{uuid}/traits"): {
        "traits": ["HW_CPU_X86_VMX"],
        "resource_provider_generation": 1,
    },
    ("POST", "/resource_classes"): {"name": "CUSTOM_GOLD"},
    ("PUT", "/resource_classes/{name}"): {"name": "CUSTOM_SILVER"},
    ("POST", "/allocations"): {
        WEB: {
            **ALLOCATIONS,
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
            "mappings": {"": [HOST]},
        }
    },
    ("PUT", "/allocations/{consumer_uuid}"): {
        **ALLOCATIONS,
        "consumer_generation": 1,
        "consumer_type": "INSTANCE",
        "mappings": {"_NIC": [NIC]},
    },
    ("POST", "/reshaper"): {
        "inventories": {HOST: INVENTORIES},
        "allocations": {WEB: {**ALLOCATIONS, "consumer_generation": 1, "consumer_type": "INSTANCE"}},
    },
}
ODD: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            -1,
            0,
            2**31 - 1,
            2**31,
            2**63,
            10**40,
            1.5,
            4.0,
            1e308,
            -1e308,
            "",
            "x" * 300,
            "\0",
            "VCPU\n",
            "CUSTOM_\u00c9",
            "\U0001f4a5",
            "'; DROP TABLE providers; --",
            NOBODY,
            NOBODY.upper(),
            "-" * 36,
            [],
            [[]],
            [HOST, HOST.upper()],
            {},
            {"\0": 1},
            {"x" * 300: {}},
        ]
    ),
    st.text(max_size=40),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
NO_JSON = st.one_of(
    st.sampled_from(
        [
            b"",
            b"{",
            b"nonsense",
            b"NaN",
            b'{"name": NaN}',
            b'{"name": 1e999}',
            b'{"name": "\\ud800"}',
            b'{"name": "\xff"}',
            b'"\0"',
            b"[" * 100_000,
            b"\xef\xbb\xbf{}",
            b"{} {}",
        ]
    ),
    st.binary(max_size=60).filter(lambda body: not is_json(body)),
)
ODD_NAMES = (
    HOST,
    NIC,
    NOBODY,
    WEB,
    "VCPU",
    "CUSTOM_GOLD",
    "\0",
    "x" * 300,
    "\U0001f4a5",
    "%",
    ".",
    "'",
    "CUSTOM_A\n",
)
NAMES_IN_PATHS = st.one_of(st.sampled_from(ODD_NAMES), st.text(min_size=1, max_size=20))
QUERY_KEYS = st.sampled_from(
    [
        *("resources", "required", "member_of", "in_tree", "limit", "group_policy", "root_required"),
        *(
            "same_subtree",
            "resources1",
            "required_A",
            "member_of_A",
            "in_tree7",
            "name",
            "uuid",
            "associated",
        ),
        *("project_id", "user_id", "consumer_type", "\0", "x", "resources\n", "\U0001f4a5"),
    ]
)
QUERY_VALUES = st.one_of(
    st.sampled_from(
        [
            *(
                "VCPU:1",
                "VCPU:" + "9" * 5_000,
                "VCPU:1,VCPU:2",
                "NO_SUCH:1",
                "VCPU:0x1",
                "VCPU:\u0663",
                ":",
                ",",
            ),
            *("HW_CPU_X86_VMX", "!HW_CPU_X86_VMX", "in:HW_CPU_X86_VMX", "in:", "!", "NO_SUCH", "\0", ""),
            *(
                RACK,
                f"in:{RACK},{HOST}",
                f"!in:{RACK}",
                f"!{RACK}",
                HOST,
                "_A",
                "_A,1",
                "none",
                "isolate",
                "1",
            ),
            *("99999999999999999999", "0", "-1", "true", "startswith:CUSTOM", "all", "shop", "\U0001f4a5"),
        ]
    ),
    st.text(max_size=20),
)
ROUTES = every_route()


def is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def routes_with(what: str) -> list[tuple[HttpRoute, Version]]:
    """All routes with this kind of input, in every version that reads it."""
    return [
        (route, (1, minor))
        for route in ROUTES
        if getattr(route, what) is not None
        for minor in range(route.since[1], route.until[1] + 1)
    ]


def changed(draw: st.DrawFn, body: Any, times_min: int, times_max: int) -> Any:
    """The body with something odd at some of its places."""
    for _ in range(draw(st.integers(times_min, times_max))):
        path = draw(st.sampled_from([path for path, _ in places_in(body)]))
        body = with_replaced(body, path, draw(ODD))
    return body


@st.composite
def paths(draw: st.DrawFn, route: HttpRoute) -> str:
    segments = [
        quote(draw(NAMES_IN_PATHS), safe="") if segment.startswith("{") else segment
        for segment in route.path.split("/")
    ]
    return "/".join(segments)


@st.composite
def changed_bodies(draw: st.DrawFn) -> tuple[HttpRoute, Version, Any]:
    route, version = draw(st.sampled_from(routes_with("body")))
    return route, version, changed(draw, BODIES[route.method, route.path], 1, 3)


def target_of(route: HttpRoute) -> str:
    """The path with existing names, so that the body is read."""
    named = {"uuid": HOST, "resource_class": "VCPU", "name": "CUSTOM_GOLD", "consumer_uuid": WEB}
    return route.path.format(**named)


@st.composite
def malformed_bodies(draw: st.DrawFn) -> Sent:
    route, version, body = draw(changed_bodies())
    assert route.body is not None
    assume(not route.body.at(version).allows(body))
    return Sent(route.method, target_of(route), version, json.dumps(body).encode())


@st.composite
def bodies_that_are_no_json(draw: st.DrawFn) -> Sent:
    route, version = draw(st.sampled_from(routes_with("body")))
    return Sent(route.method, target_of(route), version, draw(NO_JSON))


@st.composite
def malformed_queries(draw: st.DrawFn) -> Sent:
    route, version = draw(st.sampled_from(routes_with("query")))
    assert route.query is not None
    query = draw(st.lists(st.tuples(QUERY_KEYS, QUERY_VALUES), min_size=1, max_size=6))
    has_nul = any("\0" in text for pair in query for text in pair)
    assume(has_nul or not route.query.at(version).allows(dict(query)))
    return Sent(route.method, f"{route.path}?{encoded(query)}", version)


@st.composite
def anything(draw: st.DrawFn) -> Sent:
    """Requests that are mostly malformed; some may be correct."""
    route = draw(st.sampled_from(ROUTES))
    version = (1, draw(st.integers(0, NEWEST[1])))
    target = draw(paths(route))
    if draw(st.booleans()):
        target += f"?{encoded(draw(st.lists(st.tuples(QUERY_KEYS, QUERY_VALUES), max_size=8)))}"
    body = None
    if route.body is not None:
        body = changed(draw, BODIES[route.method, route.path], 0, 2)
    return Sent(route.method, target, version, None if body is None else json.dumps(body).encode())


def encoded(query: list[tuple[str, str]]) -> str:
    return "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in query)


class Asking(NamedTuple):
    """A server and its event loop, for tests that are not coroutines."""

    server: Server
    runner: asyncio.Runner

    def answer(self, sent: Sent) -> httpx.Response:
        return self.runner.run(self.server.answer(sent))


# A database never sees a request that its schema refuses.
WITHOUT_DATABASE = pytest.mark.parametrize("asking", ["sqlite"], indirect=True)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def asking(request: pytest.FixtureRequest) -> Iterator[Asking]:
    with asyncio.Runner() as runner:
        opened = a_server(request.param)
        yield Asking(runner.run(opened.__aenter__()), runner)
        runner.run(opened.__aexit__(None, None, None))


def refused_with_a_reason(answer: httpx.Response) -> bool:
    if not 400 <= answer.status_code < 500:
        return False
    (error,) = answer.json()["errors"]
    return bool(error["status"] == answer.status_code and error["detail"] and error["request_id"])


def some(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.filter_too_much,
            HealthCheck.too_slow,
        ],
    )


@WITHOUT_DATABASE
@given(sent=st.one_of(malformed_bodies(), bodies_that_are_no_json(), malformed_queries()))
@some(500)
def test_what_its_schema_refuses_is_refused_with_a_reason(asking: Asking, sent: Sent) -> None:
    answer = asking.answer(sent)

    assert refused_with_a_reason(answer), answer.text


@given(sent=anything())
@some(250)
def test_nothing_that_is_sent_makes_the_server_fail(asking: Asking, sent: Sent) -> None:
    answer = asking.answer(sent)

    assert answer.is_success or refused_with_a_reason(answer), answer.text


def test_no_name_in_a_path_makes_the_server_fail(asking: Asking) -> None:
    for route in ROUTES:
        body = BODIES.get((route.method, route.path)) if route.body is not None else None
        text = None if body is None else json.dumps(body).encode()
        for name in ODD_NAMES if "{" in route.path else ():
            segments = [
                quote(name, safe="") if part.startswith("{") else part for part in route.path.split("/")
            ]
            sent = Sent(route.method, "/".join(segments), min(route.until, NEWEST), text)
            answer = asking.answer(sent)
            assert answer.is_success or refused_with_a_reason(answer), (sent, answer.text)
