"""Finds the handler for a method and a path at a version.

A path without any route is a 404. A path with routes, but none for this method, is a 405 that names the methods. A method
that was added or removed at another version is a 404 if the whole path was, otherwise a 405. The version is part of the
match, so a handler that was replaced at some version is a route of its own, with `until`.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from msgspec import Struct

from bus.messages.books import Done, ProviderWritten, Write
from engine.inventories import ProviderId, ProviderState
from placement_worker.admin_writes import WriteBatcher
from placement_worker.api.answers import (
    AS_USUAL,
    NO_SUCH_CLASS,
    NO_SUCH_TRAIT,
    Refusals,
    no_such_provider,
    refusal,
)
from placement_worker.api.schemas import VersionedValidators, uuid_in
from placement_worker.api.values import (
    NEWEST,
    OLDEST,
    ApiError,
    Reply,
    Request,
    Version,
    bad_request,
    not_found,
    version_text,
)
from placement_worker.store_sql import PlacementStore
from placement_worker.view import KnownNames, ProviderReplica, ProviderView

Handler = Callable[[Request], Awaitable[Reply]]
# A name in braces, in a path of the table that is escaped for a pattern.
_NAME = re.compile(r"\\\{(\w+)\\\}")


class HttpRoute(Struct, frozen=True):
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


class Match(Struct, frozen=True):
    route: HttpRoute
    params: Mapping[str, str]


class Router:
    """Finds the route for a request by trying those paths of the route table that have its first segment and as many segments.
    The table never changes.
    """

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        of_path: dict[str, list[HttpRoute]] = {}
        for route in routes:
            of_path.setdefault(route.path, []).append(route)
        self._paths: dict[tuple[str, int], list[tuple[re.Pattern[str], list[HttpRoute]]]] = {}
        for path, alike in of_path.items():
            # A name matches only a segment that is not empty: `/traits/` is not a trait without a name.
            pattern = re.compile(_NAME.sub(r"(?P<\1>[^/]+)", re.escape(path)))
            self._paths.setdefault(_form_of(path), []).append((pattern, alike))

    def match(self, method: str, path: str, version: Version) -> Match:
        """The route, and the values of the names in its path. Raises ApiError with 404 or 405."""
        for pattern, routes in self._paths.get(_form_of(path), ()):
            if (found := pattern.fullmatch(path)) is None:
                continue
            served = [route for route in routes if route.since <= version <= route.until]
            for route in served:
                if route.method == method:
                    return Match(route, found.groupdict())
            if served or all(route.method != method for route in routes):
                methods = ", ".join(sorted({route.method for route in served or routes}))
                raise ApiError(
                    HTTPStatus.METHOD_NOT_ALLOWED,
                    f"The method {method} is not allowed for this resource. {path} has {methods}",
                    headers={"allow": methods},
                )
        raise not_found(
            f"The resource could not be found. Version {version_text(version)} has nothing at {path}"
        )


def _form_of(path: str) -> tuple[str, int]:
    """The first segment of a path, and the number of segments. No path of the route table begins with a name."""
    return path.split("/", 2)[1] if "/" in path else path, path.count("/")


# `Backend`, through which all endpoints read and write; and the id of the provider that a path names.


# How many rows are read from the store at once.
PAGE = 1_000


class Backend(Struct, frozen=True):
    """Where endpoints read and write.

    Providers are read from memory (`view`). Everything else is read from the database (`store`) each time: there is too much of it for
    memory, or it is needed too rarely.
    """

    writer: WriteBatcher
    view: ProviderView
    store: PlacementStore
    names: KnownNames

    async def write(
        self, order: Write, doing: str, special: Refusals = AS_USUAL, **words: str
    ) -> Done | ProviderWritten:
        """Have this order written. If placement refuses it, raise the HTTP error for that verdict.

        The error is the one that `refusal` chooses.
        """
        verdict = await self.writer.ask(order)
        if isinstance(verdict, Done | ProviderWritten):
            return verdict
        raise refusal(verdict, doing, special, **words)

    async def write_provider(self, order: Write, doing: str, special: Refusals = AS_USUAL) -> ProviderWritten:
        verdict = await self.write(order, doing, special)
        assert isinstance(verdict, ProviderWritten), f"{order!r} leaves a provider"
        return verdict

    async def check_names(
        self, replica: ProviderReplica, classes: Iterable[str], traits: Iterable[str]
    ) -> None:
        """Refuse a request that asks for a resource class or a trait that does not exist."""
        if unknown := await self.names.unknown("classes", classes, replica):
            names = NO_SUCH_CLASS.format(names=", ".join(unknown))
            raise bad_request(f"Invalid resource class in resources parameter: {names}")
        if unknown := await self.names.unknown("traits", traits, replica):
            raise bad_request(NO_SUCH_TRAIT.format(names=", ".join(unknown)))

    async def provider(self, request: Request) -> ProviderState:
        """The provider that the path names. Raises a 404 if there is none."""
        state = (await self.view.caught_up()).get(path_provider(request))
        if state is None:
            raise no_such_provider(request.params["uuid"])
        return state

    async def body_for_provider(self, validators: VersionedValidators, request: Request) -> Any:
        """Decode the body. If the provider does not exist, its 404 comes before any error in the body."""
        try:
            return validators.at(request.version).body(request.body)
        except ApiError:
            await self.provider(request)
            raise


def path_provider(request: Request) -> ProviderId:
    """The provider's id in the path. A text that is no UUID names no provider: a 404."""
    provider = uuid_in(request.params["uuid"])
    if provider is None:
        raise no_such_provider(request.params["uuid"])
    return ProviderId(provider)
