"""The OpenAPI document describes all routes at all versions."""

import pytest

from placement_worker.api.values import NEWEST, version_text
from tools.pages.placement_openapi import every_route, openapi


@pytest.mark.parametrize("minor", range(NEWEST[1] + 1))
def test_every_version_has_its_paths_and_its_bodies(minor: int) -> None:
    document = openapi(every_route(), (1, minor))

    assert document["info"]["version"] == version_text((1, minor))
    assert ("/allocation_candidates" in document["paths"]) == (minor >= 10)
    assert ("/reshaper" in document["paths"]) == (minor >= 30)
    body = document["paths"]["/allocations/{consumer_uuid}"]["put"]["requestBody"]
    assert ("consumer_type" in body["content"]["application/json"]["schema"]["properties"]) == (minor >= 38)


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [
        operation["operationId"]
        for operations in openapi(every_route())["paths"].values()
        for method, operation in operations.items()
        if method != "parameters"
    ]

    assert len(names) == len(set(names)) == 36
