"""A request as handlers see it: one frozen value, with its version and its caller."""

from collections.abc import Mapping

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

    # Sent to the client as x-openstack-request-id, and in each error.
    id: str
    method: str
    path: str
    # Where the service is mounted ("/placement" behind a proxy), without a trailing slash. Links in bodies begin with it.
    prefix: str = ""
    version: Version
    caller: Caller
    # The parts of the path that stand for {name}, decoded.
    params: Mapping[str, str]
    # Decoded keys and values, in their order, with repeated ones. A key without `=` has an empty value.
    query: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
