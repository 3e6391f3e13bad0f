"""A request's headers by name. They are read once, since several steps look at them."""

from collections.abc import Mapping

from starlette.types import Scope

# Names are in lower case. The values of a repeated header are joined by commas, as HTTP says.
Headers = Mapping[str, str]


def headers_of(scope: Scope) -> Headers:
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
