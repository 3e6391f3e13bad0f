"""Which handler answers this method on this path, at this version?

A path that no route has does not exist (404). One that has routes, but not for this method, is a 405 that names the
methods there are. A method that came, or went, with another version is a 404 where the whole path did, else a 405.
Versions are part of the match, so that a handler that was replaced at some version is a route of its own, with `until`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus

from msgspec import Struct

from placement_worker.api.problems import ApiError, not_found
from placement_worker.api.reply import Reply
from placement_worker.api.request import Request
from placement_worker.api.validators import VersionedValidators
from placement_worker.api.versions import NEWEST, OLDEST, Version, version_text

Handler = Callable[[Request], Awaitable[Reply]]


class Route(Struct, frozen=True):
    """One line of the API's grammar.

    `routes_of(desk, view, store)` in routes.py makes them with their handlers bound to what these work on. `path` is
    "/resource_providers/{uuid}/traits": a name in braces takes one segment whole. `rule` is what policy is asked before
    the handler runs ("placement:resource_providers:list"). `body` and `query` say what is read of them, by version; with a
    `body` one is expected, as JSON: anything else is a 415.
    """

    method: str
    path: str
    handler: Handler
    rule: str
    since: Version = OLDEST
    until: Version = NEWEST
    body: VersionedValidators | None = None
    query: VersionedValidators | None = None
    # Whether its answer is JSON, so that a client that takes no JSON is refused before the handler runs.
    tells_json: bool = True

    @property
    def reads_body(self) -> bool:
        return self.body is not None


class Match(Struct, frozen=True):
    route: Route
    params: Mapping[str, str]


class Router:
    """Looks paths up by their length and first word; the table is small and never changes while it serves."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._shapes: dict[tuple[int, str], list[_PathPattern]] = {}
        for route in routes:
            self._add(route)

    def match(self, method: str, path: str, version: Version) -> Match:
        """The route, and what its path's names stand for. Raises ApiError with 404 or 405."""
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
    """A path's segments, without those that are names; where these stand; and the routes it has."""

    fixed: tuple[str | None, ...]
    names: tuple[tuple[int, str], ...]
    routes: list[Route]


def _key(segments: Sequence[str]) -> tuple[int, str]:
    """Every path begins with a slash, and then with a word of its own."""
    return len(segments), segments[1] if len(segments) > 1 else ""


def _fits(fixed: Sequence[str | None], segments: Sequence[str]) -> bool:
    """A name takes a segment that is there: `/traits/` is not a trait without a name."""
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
