"""A request as handlers see it, with its version and its caller; and their reply, before it is rendered."""

from collections.abc import Mapping
from http import HTTPStatus

from msgspec import Struct

from placement_worker.api.values.versions import Version


class Caller(Struct, frozen=True):
    """The authenticated sender of a request."""

    user: str
    # Empty where the caller is not scoped to a project.
    project: str = ""
    roles: frozenset[str] = frozenset()
    # "all" for a caller that acts on the whole system, otherwise empty.
    system_scope: str = ""


class Request(Struct, frozen=True, kw_only=True):
    """Everything about a request that a handler may use.

    The application has checked already that the path and the method exist at this version, and that the caller may do
    this. A body that will be read has the right content type, and sizes are within their limits.
    """

    # Where the service is mounted ("/placement" behind a proxy), without a trailing slash. Links in bodies begin with it.
    prefix: str = ""
    version: Version
    caller: Caller
    # The parts of the path that stand for {name}, decoded.
    params: Mapping[str, str]
    # Decoded keys and values, in their order, with repeated ones. A key without `=` has an empty value.
    query: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class Reply(Struct, frozen=True):
    """The reply of a handler: a status, and a body if there is one.

    `body` is any value that msgspec can encode; `Pieces` are JSON already and are sent as they are; None means no body
    and no content type. `is_fresh` says that the answer is the state of this moment: from version 1.15 on it has
    `cache-control: no-cache` and `last-modified`. The application adds versions, request ids and the like.
    """

    status: HTTPStatus = HTTPStatus.OK
    body: object = None
    headers: Mapping[str, str] = {}
    is_fresh: bool = False
