"""A request's headers, found by name: read whole once, since each of them is asked for, some of them several times."""

from collections.abc import Mapping

from starlette.types import Scope

# By their names in small letters. What a header says that was sent several times stands behind commas, as HTTP has it.
Headers = Mapping[str, str]


def headers_of(scope: Scope) -> Headers:
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
