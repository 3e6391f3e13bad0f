"""Each difference that docs/placement-api.md lists is there: the real openstack-placement and ours are asked the same, and answer as
the line says. A line that no test shows fails, and so does a difference that has gone.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import pytest
from msgspec import Struct

from tests.conformance.test_order_of_checks import both_ask
from tests.conformance.upstream import Asked, Upstream, ask, media_of
from tests.conformance.wrong_requests import HOST, NEW, NIC, RACK, UNKNOWN

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "placement-api.md"
SECTION: Final = "## Where it differs from upstream"


def status(told: httpx.Response) -> object:
    return told.status_code


def has(header: str) -> Callable[[httpx.Response], object]:
    return lambda told: (told.status_code, header in told.headers)


def of(header: str) -> Callable[[httpx.Response], object]:
    return lambda told: (told.status_code, told.headers.get(header))


def media(told: httpx.Response) -> object:
    return told.status_code, media_of(told)


def says(*words: str) -> Callable[[httpx.Response], object]:
    return lambda told: (told.status_code, all(word in told.text for word in words))


class Shown(Struct, frozen=True):
    """Of these requests the last one is answered as `theirs` and as `ours`, looked at in one way. `line` is how the line of the
    page begins.
    """

    line: str
    asked: tuple[Asked, ...]
    theirs: object
    ours: object
    look: Callable[[httpx.Response], object] = status


def claim(provider: str, **changes: object) -> dict[str, object]:
    body: dict[str, object] = {
        "allocations": {provider: {"resources": {"VCPU": 1}}},
        "project_id": "shop",
        "user_id": "ann",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    return body | changes


def inventory(**fields: object) -> Asked:
    return ask(
        "PUT",
        f"/resource_providers/{HOST}/inventories/VCPU",
        {"resource_provider_generation": 3, "total": 8, **fields},
    )


RESHAPED: Final = {
    "inventories": {
        NIC: {
            "resource_provider_generation": 0,
            "inventories": {"VCPU": {"total": 2, "reserved": 3, "allocation_ratio": 2.0}},
        }
    },
    "allocations": {},
}
TWICE: Final = {"resource_provider_generation": 3, "aggregates": [RACK, RACK.upper()]}
PUT_ALL: Final = f"/resource_providers/{NIC}/inventories"
DIFFERENCES: Final = (
    # Both refuse
    Shown("A 401 has", (ask("GET", "/traits", who=()),), (401, False), (401, True), says('"errors"')),
    Shown("A 401 has", (ask("GET", "/traits", who=()),), (401, False), (401, True), has("www-authenticate")),
    Shown(
        "A 405 always has",
        (ask("DELETE", f"/resource_providers/{NIC}/inventories", version="1.4"),),
        (405, None),
        (405, "GET, POST, PUT"),
        of("allow"),
    ),
    Shown(
        "A 405 always has",
        (ask("PATCH", "/traits/CUSTOM_FAST"),),
        (405, "GET, PUT, DELETE"),
        (405, "DELETE, GET, PUT"),
        of("allow"),
    ),
    Shown(
        "A 405 to a `HEAD`", (ask("HEAD", "/traits"),), (405, "text/html"), (405, "application/json"), media
    ),
    Shown("`vary:", (ask("GET", "/nothing"),), (404, False), (404, True), has("vary")),
    Shown(
        "Where the `Accept` header",
        (ask("GET", f"/resource_providers/{UNKNOWN}/usages", None, ("accept", "bogus")),),
        (404, "text/html"),
        (404, "application/json"),
        media,
    ),
    Shown(
        "A refused claim",
        (
            ask(
                "PUT",
                f"/allocations/{NEW}",
                claim(HOST, allocations={HOST: {"resources": {"VCPU": 7, "DISK_GB": 10}}}),
            ),
        ),
        (409, False),
        (409, True),
        says("asked 7, free 6", "asked 10, free 9"),
    ),
    # Only upstream refuses
    Shown(
        "The type of a body",
        (ask("POST", "/resource_providers", {"name": "other case"}, ("content-type", "Application/JSON")),),
        415,
        200,
    ),
    Shown(
        "A media type in `Accept`",
        (ask("GET", "/traits", None, ("accept", "application/json;charset=utf-8")),),
        406,
        200,
    ),
    Shown("The id of a provider", (ask("GET", f"/resource_providers/{HOST.upper()}"),), 404, 200),
    Shown(
        "The id of a provider", (ask("GET", f"/resource_providers/{HOST.replace('-', '')}/traits"),), 404, 200
    ),
    Shown("The id of a provider", (ask("PUT", f"/allocations/{NEW}", claim(HOST.upper())),), 400, 204),
    Shown(
        "A write that is refused",
        (ask("PUT", f"/allocations/{NEW}", claim(UNKNOWN)), ask("PUT", f"/allocations/{NEW}", claim(HOST))),
        409,
        204,
    ),
    Shown("An answer without any", (ask("GET", PUT_ALL),), (200, False), (200, True), has("last-modified")),
    Shown(
        "An answer without any",
        (ask("PUT", PUT_ALL, {"resource_provider_generation": 0, "inventories": {}}),),
        (200, False),
        (200, True),
        has("last-modified"),
    ),
    Shown(
        "An answer without any",
        (ask("PUT", f"/resource_providers/{NIC}", {"name": "renamed"}),),
        (200, False),
        (200, True),
        has("last-modified"),
    ),
    # Only ours refuses
    Shown("A version with more", (ask("GET", "/traits", version="1.00039"),), 200, 400),
    Shown("A version with more", (ask("GET", "/traits", version="1. 39"),), 200, 400),
    Shown("A version with more", (ask("GET", "/traits", version="1.3_9"),), 200, 400),
    Shown(
        "The bounds below",
        (
            ask(
                "PUT",
                f"/allocations/{NEW}",
                claim(HOST, allocations={HOST: {"resources": {"VCPU": 2**31}}}, consumer_generation=7),
            ),
        ),
        409,
        400,
    ),
    *(
        Shown("A class or a trait that", (ask("GET", f"/allocation_candidates?{query}"),), 200, 400)
        for query in (
            "resources=VCPU:9999&resources1=NONE:1&group_policy=none",
            "resources=VCPU:9999&resources1=VCPU:1&required1=CUSTOM_NONE&group_policy=none",
            f"resources=VCPU:1&member_of={RACK}&required=!CUSTOM_NONE",
        )
    ),
    Shown(
        "A class or a trait that",
        (ask("GET", f"/resource_providers?resources=NONE:1&member_of={RACK}"),),
        200,
        400,
    ),
    Shown(
        "`PUT` of aggregates",
        (
            ask(
                "PUT",
                f"/resource_providers/{HOST}/aggregates",
                "[]",
                ("content-type", "text/plain"),
                version="1.0",
            ),
        ),
        415,
        404,
    ),
    Shown("Inventories that reserve", (ask("POST", "/reshaper", RESHAPED),), 204, 400),
    Shown("`consumer_type=allx`", (ask("GET", "/usages?project_id=shop&consumer_type=allx"),), 200, 400),
    Shown("Of `limit`", (ask("GET", "/allocation_candidates?resources=VCPU:1&limit=x&limit=1"),), 500, 400),
    Shown("Bounds where upstream", (inventory(allocation_ratio=2_000_000.0),), 200, 400),
    Shown("Bounds where upstream", (inventory(allocation_ratio=0),), 200, 400),
    Shown("What fails upstream", (ask("POST", "/resource_providers", {"name": "a\0b"}),), 200, 400),
    Shown("What fails upstream", (ask("GET", "/traits?name=like:CUSTOM"),), 200, 400),
    Shown("What fails upstream", (ask("PUT", f"/resource_providers/{HOST}", {"name": ""}),), 200, 400),
    Shown("What fails upstream", (ask("PUT", "/traits/CUSTOM_A%0A"),), 201, 400),
    Shown(
        "What fails upstream", (ask("GET", "/usages?project_id=shop&consumer_type=INSTANCE%0A"),), 200, 400
    ),
    Shown(
        "`PUT /resource_classes/{name}`",
        (
            ask(
                "PUT",
                PUT_ALL,
                {"resource_provider_generation": 0, "inventories": {"CUSTOM_RARE": {"total": 1}}},
            ),
            ask("PUT", "/resource_classes/CUSTOM_RARE", {"name": "CUSTOM_RARER"}, version="1.6"),
        ),
        200,
        409,
    ),
    # Both answer
    Shown(
        "An aggregate under two",
        (ask("PUT", f"/resource_providers/{HOST}/aggregates", TWICE),),
        (200, True),
        (200, False),
        says(RACK, RACK.upper()),
    ),
)
# Lines that a comparison of two answers cannot show, and the tests that show them.
SHOWN_ELSEWHERE: Final = {
    "What the parser of HTTP": "tests/api/test_server.py::test_what_is_no_request_is_refused_with_the_reason_and_ends_the_connection",
    "`GET /usages` from 1.38": "tests/conformance/test_gabbi.py::test_every_step_passes",
    "Candidates whose unsuffixed": "tests/conformance/test_candidates_upstream.py::test_the_real_placement_finds_the_same_candidates",
    "A search or an answer": "tests/api/test_costly_questions.py::test_a_search_that_would_cost_too_much_is_refused_with_its_own_code",
    "`limit` bounds": "tests/properties/test_candidates_properties.py::"
    "test_with_a_limit_no_tree_has_two_more_than_another_that_could_have_more",
}


def listed() -> list[str]:
    """The lines of the page's list, without their marks."""
    section = PAGE.read_text().partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    return [line.removeprefix("- ") for line in section.splitlines() if line.startswith("- ")]


@pytest.mark.parametrize("shown", DIFFERENCES, ids=lambda shown: f"{shown.line}: {shown.asked[-1].target}")
def test_a_listed_difference_is_there(upstream: Upstream, shown: Shown) -> None:
    *_, (theirs, ours) = asyncio.run(both_ask(upstream, *shown.asked))

    assert (shown.look(theirs), shown.look(ours)) == (shown.theirs, shown.ours), (theirs.text, ours.text)
    assert shown.theirs != shown.ours


def test_each_line_of_the_list_is_shown_by_some_test_and_each_test_has_its_line() -> None:
    lines = listed()
    beginnings = {*(each.line for each in DIFFERENCES), *SHOWN_ELSEWHERE}

    assert len(lines) >= len(beginnings)
    assert [line for line in lines if sum(line.startswith(each) for each in beginnings) != 1] == []
    assert [each for each in beginnings if sum(line.startswith(each) for line in lines) != 1] == []
    for test in SHOWN_ELSEWHERE.values():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), test
