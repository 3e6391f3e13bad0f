"""A request as a handler sees it: one frozen value, with the version decided and the caller known."""

from collections.abc import Mapping

from msgspec import Struct

from placement_worker.api.versions import Version


class Caller(Struct, frozen=True):
    """Who asks, as the way of authentication found it."""

    user: str
    # Empty where the caller is not scoped to a project.
    project: str = ""
    roles: frozenset[str] = frozenset()
    # "all" for who acts on the whole system, else empty.
    system_scope: str = ""


class Request(Struct, frozen=True, kw_only=True):
    """All of a request that a handler may go by.

    The frame has done already what is alike for all of them: the path and the method exist at this version, the caller
    may do this, a body that is to be read has the right content type, and size and length are within their limits.
    """

    # Returned to the client as x-openstack-request-id, and in every error.
    id: str
    method: str
    path: str
    # Where the service is mounted ("/placement" behind a proxy that says so), without a slash at its end. Links in
    # bodies begin with it.
    prefix: str = ""
    version: Version
    caller: Caller
    # What stood in the path for {name}, decoded.
    params: Mapping[str, str]
    # Keys and values, decoded, in their order, repeated ones repeated. A key without `=` has an empty value.
    query: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
