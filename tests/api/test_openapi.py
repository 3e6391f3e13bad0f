"""The OpenAPI document describes all routes at all versions."""

from tools.pages.placement_openapi import every_route, openapi


def test_every_version_has_its_paths_and_its_bodies_and_every_operation_a_name() -> None:
    for minor in range(40):
        document = openapi(every_route(), (1, minor))
        body = document["paths"]["/allocations/{consumer_uuid}"]["put"]["requestBody"]["content"]

        assert document["info"]["version"] == f"1.{minor}"
        assert ("/allocation_candidates" in document["paths"]) == (minor >= 10)
        assert ("/reshaper" in document["paths"]) == (minor >= 30)
        assert ("consumer_type" in body["application/json"]["schema"]["properties"]) == (minor >= 38)
    names = [
        operation["operationId"]
        for operations in openapi(every_route())["paths"].values()
        for method, operation in operations.items()
        if method != "parameters"
    ]
    assert len(names) == len(set(names)) == 36
