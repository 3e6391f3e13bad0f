"""Placement's API as an OpenAPI document, made from the route table and the schemas that requests are checked against.

Bodies depend on the version, so each version has its own document. The site of the docs has that of the newest version.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from engine.inventories import Vocabulary
from placement_worker.admin_writes import WriteBatcher
from placement_worker.api.names import version_document
from placement_worker.api.routes import routes_of
from placement_worker.api.routing import HttpRoute
from placement_worker.api.schemas import Schema
from placement_worker.api.values import HEADER, NEWEST, OLDEST, SERVICE, Version, version_text
from placement_worker.store_sql import PlacementStore
from placement_worker.view import ProviderView

_NAMES_IN_PATH = re.compile(r"\{(\w+)\}")
_ERRORS: Schema = {
    "type": "object",
    "required": ["errors"],
    "properties": {
        "errors": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["status", "title", "detail", "request_id"],
                "properties": {
                    "status": {"type": "integer"},
                    "title": {"type": "string"},
                    "detail": {"type": "string", "description": "What, which, and the numbers."},
                    "request_id": {"type": "string"},
                    "code": {"type": "string", "description": "What clients branch on; from 1.23 on."},
                    "min_version": {"type": "string", "description": "With status 406."},
                    "max_version": {"type": "string", "description": "With status 406."},
                },
            },
        }
    },
}


def every_route() -> tuple[HttpRoute, ...]:
    """The whole route table. Its store is never asked, so its file is never opened."""
    store, nothing = PlacementStore("sqlite:///placement.sqlite"), Vocabulary(frozenset(), frozenset())
    writer = WriteBatcher(store, nothing, lambda: datetime.now(UTC))
    return (
        HttpRoute("GET", "/", version_document, rule=""),
        *routes_of(writer, ProviderView(store), store, nothing),
    )


def openapi(routes: Iterable[HttpRoute], version: Version = NEWEST) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.since <= version <= route.until:
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, version)
    for path, operations in paths.items():
        operations["parameters"] = [{"$ref": "#/components/parameters/version"}, *_path_parameters(path)]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Placement, by Moorage",
            "version": version_text(version),
            "description": f"As spoken at microversion {version_text(version)}; microversions {version_text(OLDEST)} to {version_text(NEWEST)} are "
            f"served, and a request without the header `{HEADER}` speaks {version_text(OLDEST)}.",
        },
        "paths": dict(sorted(paths.items())),
        "security": [{"token": []}, {"basic": []}],
        "components": {
            "schemas": {"Errors": _ERRORS},
            "parameters": {
                "version": {
                    "name": HEADER,
                    "in": "header",
                    "required": version != OLDEST,
                    "schema": {"type": "string", "const": f"{SERVICE} {version_text(version)}"},
                }
            },
            "securitySchemes": {
                "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _operation(route: HttpRoute, version: Version) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{re.sub(r'[^a-z]+', '_', route.path).strip('_') or 'root'}",
        "responses": {
            "2XX": {"description": "Done."},
            "4XX": {
                "description": "Refused, with the reason.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Errors"}}},
            },
        },
    }
    if route.rule:
        operation["description"] = f"Policy: `{route.rule}`. Since {version_text(route.since)}."
    else:
        operation["security"] = []
    if route.query is not None:
        operation["parameters"] = list(_query_parameters(route.query.at(version).schema))
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": route.body.at(version).schema}},
        }
    return operation


def _path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for name in _NAMES_IN_PATH.findall(path):
        schema: Schema = {"type": "string"}
        if name.endswith("uuid"):
            schema["format"] = "uuid"
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(schema: Schema) -> Iterator[dict[str, Any]]:
    required = schema.get("required", ())
    for name, value in schema["properties"].items():
        yield {"name": name, "in": "query", "required": name in required, "schema": value}
    if patterns := schema.get("patternProperties"):
        # Keys that end in a suffix. In OpenAPI they are an object whose members become keys of the query.
        yield {
            "name": "groups",
            "in": "query",
            "style": "form",
            "explode": True,
            "schema": {"type": "object", "patternProperties": patterns, "additionalProperties": False},
        }
