"""The site's page placement-reference: placement's endpoints with what each takes, from its OpenAPI document."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tools.pages.markdown import table
from tools.pages.placement_openapi import every_route, openapi

HEAD = """# Placement's HTTP API: all endpoints

Every endpoint, from the code: since which microversion it is there, the rule of the policy that allows it, and what it takes at the newest one. A field with
an asterisk is required, and `[SUFFIX]` names a group of resources. [placement-openapi.json](placement-openapi.json) has the schemas. [placement-api.md](placement-api.md) says how the service is run and
secured, and in what it differs from OpenStack's, whose [reference](https://docs.openstack.org/api-ref/placement/) explains each field.
"""
_SAID = re.compile(r"(?:Policy: `(?P<rule>[^`]+)`\. )?Since (?P<since>[\d.]+)\.")
REQUIRED = "\\*"
METHODS = ("get", "post", "put", "delete")


def page() -> str:
    document: Mapping[str, Any] = openapi(every_route())
    rows = [row for path, methods in sorted(document["paths"].items()) for row in _rows(path, methods)]
    return f"{HEAD}\n{table(('endpoint', 'since', 'rule of the policy', 'query', 'body'), rows)}\n"


def _rows(path: str, methods: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, str]]:
    for method in METHODS:
        if (endpoint := methods.get(method)) is not None:
            said = _SAID.search(endpoint.get("description", ""))
            rule = f"`{said['rule']}`" if said and said["rule"] else ""
            query = ", ".join(_query(endpoint.get("parameters", ())))
            yield f"`{method.upper()} {path}`", said["since"] if said else "", rule, query, _body(endpoint)


def _query(parameters: Any) -> Iterator[str]:
    for each in parameters:
        if each.get("in") != "query":
            continue
        patterns = each["schema"].get("patternProperties")
        if patterns is None:
            yield f"`{each['name']}`{REQUIRED if each.get('required') else ''}"
        else:
            yield from (f"`{pattern.lstrip('^').partition('(')[0]}[SUFFIX]`" for pattern in patterns)


def _body(endpoint: Mapping[str, Any]) -> str:
    contents = endpoint.get("requestBody", {}).get("content", {})
    schema = contents.get("application/json", {}).get("schema", {})
    required = schema.get("required", ())
    fields = [f"`{name}`{REQUIRED if name in required else ''}" for name in schema.get("properties", {})]
    if not fields and schema:
        return "by consumer" if "patternProperties" in schema else schema.get("type", "")
    return ", ".join(fields)
