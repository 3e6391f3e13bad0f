"""Finds the handler for a method and a path at a version.

A path without any route is a 404. A path with routes, but none for this method, is a 405 that names the methods. A method
that was added or removed at another version is a 404 if the whole path was, otherwise a 405. The version is part of the
match, so a handler that was replaced at some version is a route of its own, with `until`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus

from msgspec import Struct

from placement_worker.api.grammar.validators import VersionedValidators
from placement_worker.api.values.problems import ApiError, not_found
from placement_worker.api.values.reply import Reply
from placement_worker.api.values.request import Request
from placement_worker.api.values.versions import NEWEST, OLDEST, Version, version_text

Handler = Callable[[Request], Awaitable[Reply]]


class Route(Struct, frozen=True):
    """One line of the route table.

    `routes_of(...)` in routes.py makes them with bound handlers. In `path`, for instance "/resource_providers/{uuid}/traits",
    a name in braces matches one whole segment. `rule` is the policy rule that is checked before the handler runs. `body` and
    `query` are the schemas by version; a route with a `body` expects JSON, and everything else is a 415.
    """

    method: str
    path: str
    handler: Handler
    rule: str
    since: Version = OLDEST
    until: Version = NEWEST
    body: VersionedValidators | None = None
    query: VersionedValidators | None = None
    # Is the answer JSON? Then a client that does not accept JSON is refused before the handler runs.
    tells_json: bool = True

    @property
    def reads_body(self) -> bool:
        return self.body is not None


class Match(Struct, frozen=True):
    route: Route
    params: Mapping[str, str]


class Router:
    """Looks up paths by their number of segments and first word; the table is small and does not change."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._shapes: dict[tuple[int, str], list[_PathPattern]] = {}
        for route in routes:
            self._add(route)

    def match(self, method: str, path: str, version: Version) -> Match:
        """The route, and the values of the names in its path. Raises ApiError with 404 or 405."""
        segments = path.split("/")
        for shape in self._shapes.get(_key(segments), ()):
            if not _fits(shape.fixed, segments):
                continue
            for route in shape.routes:
                if route.method == method and route.since <= version <= route.until:
                    return Match(route, {name: segments[at] for at, name in shape.names})
            served = [route for route in shape.routes if route.since <= version <= route.until]
            if served or all(route.method != method for route in shape.routes):
                raise _not_allowed(method, path, served or shape.routes)
        raise not_found(
            f"The resource could not be found. Version {version_text(version)} has nothing at {path}"
        )

    def _add(self, route: Route) -> None:
        segments = route.path.split("/")
        fixed = tuple(None if segment.startswith("{") else segment for segment in segments)
        shapes = self._shapes.setdefault(_key(segments), [])
        for shape in shapes:
            if shape.fixed == fixed:
                shape.routes.append(route)
                return
        named = tuple((at, segments[at][1:-1]) for at, segment in enumerate(fixed) if segment is None)
        shapes.append(_PathPattern(fixed, named, [route]))


class _PathPattern(Struct, frozen=True):
    """A path's fixed segments, the positions of its names, and its routes."""

    fixed: tuple[str | None, ...]
    names: tuple[tuple[int, str], ...]
    routes: list[Route]


def _key(segments: Sequence[str]) -> tuple[int, str]:
    """Every path begins with a slash and a fixed word."""
    return len(segments), segments[1] if len(segments) > 1 else ""


def _fits(fixed: Sequence[str | None], segments: Sequence[str]) -> bool:
    """A name matches only a segment that is not empty: `/traits/` is not a trait without a name."""
    for wanted, segment in zip(fixed, segments, strict=True):
        if segment != wanted and (wanted is not None or not segment):
            return False
    return True


def _not_allowed(method: str, path: str, served: Sequence[Route]) -> ApiError:
    methods = ", ".join(sorted({route.method for route in served}))
    return ApiError(
        HTTPStatus.METHOD_NOT_ALLOWED,
        f"The method {method} is not allowed for this resource. {path} has {methods}",
        headers={"allow": methods},
    )
