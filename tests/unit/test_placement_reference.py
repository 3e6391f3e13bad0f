"""The reference of placement's HTTP API has every endpoint once."""

from typing import Any

from tools.pages.placement_openapi import every_route, openapi
from tools.pages.placement_reference import page


def test_every_endpoint_has_its_line() -> None:
    document: dict[str, Any] = dict(openapi(every_route()))
    endpoints = [
        f"| `{method.upper()} {path}` |"
        for path, methods in document["paths"].items()
        for method in methods
        if method in ("get", "post", "put", "delete", "patch", "head")
    ]
    lines = page().splitlines()

    assert len(endpoints) > 30
    assert [each for each in endpoints if sum(line.startswith(each) for line in lines) != 1] == []
