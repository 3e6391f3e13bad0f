"""Ironic's REST API over HTTP, by httpx.

An order is tried again here, a few times with growing pauses, if it surely had no effect: nobody was reached, 503, or the
node's lock was held. If its answer was lost, that is raised, and the caller reads the node first. A question is tried again
in both cases, but not after it took too long.

A 409 means two things: a conductor holds the node's lock for a moment, or Ironic refuses. Ironic says "locked" of a lock. As
its texts are no part of the API, the node is asked as well where that word is missing: with a `reservation`, it was the lock.
Without one the lock may just have been released, so the order is made once more; the second 409 is a refusal.

With Keystone, each request carries a token. A request that Ironic refuses with 401 is sent once more with a new token: the old one
was revoked.

The microversion is lowered to what the server has, if that is enough. The fields of nodes are named in each request, so
only those are asked for that the version has: with 1.46 a node's owner, lessee and retirement are not seen.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

import httpx
import msgspec
import tenacity

from bus.configuration.addresses import Addresses
from bus.errors import Locked, TookTooLong, Transient, Unavailable, WrongAnswer
from bus.keystone import KeystoneRefused, Token
from bus.message import ProviderId
from bus.retrying import growing_waits
from bus.tls import tls_failure
from bus.unreadable import NOT_JSON
from ironic_sync.core.node import InterfaceCheck, Node
from ironic_sync.rest import (
    Changed,
    CredentialsRefused,
    IronicRefused,
    NodesRead,
    NoLongerOurs,
    PatchOperation,
    UnreadableNode,
    VersionNotOffered,
)
from ironic_sync.rest_answers import (
    ERRORS,
    MESSAGE_MAX,
    Allocated,
    Console,
    Listing,
    Patched,
    Read,
    RestAnswer,
    Vifs,
    changed_at,
    is_missing,
    marker_of,
    read_node,
    read_page,
    refusal_of,
)
from ironic_sync.rest_login import (
    basic_of,
    check_login,
    endpoint_of,
    settings_that_log_in,
    tls_of,
    tokens_of,
    without_user,
)
from ironic_sync.settings import IronicSettings

T = TypeVar("T")
Minor = int

# At its default level, httpx logs each request.
logging.getLogger("httpx").setLevel(logging.WARNING)

VERSION_HEADER = "X-OpenStack-Ironic-API-Version"
VERSION_MAX_HEADER = "X-OpenStack-Ironic-API-Maximum-Version"
VERSION_MIN_HEADER = "X-OpenStack-Ironic-API-Minimum-Version"
# The least that deploys and conductor groups need; what is asked for where it is offered; and what shards need.
MINOR_LEAST = 46
MINOR_WANTED = 65
MINOR_OF_SHARDS = 82
# Since this version, Ironic makes config drives of their parts.
MINOR_OF_DRIVE_PARTS = 56
# The fields of a node that are asked for, and the microversion from which each can be: asked for before, it is an error.
FIELDS: Mapping[str, Minor] = {
    **dict.fromkeys(("uuid", "name", "provision_state", "target_provision_state", "power_state"), 1),
    **dict.fromkeys(("maintenance", "maintenance_reason", "instance_uuid", "driver", "last_error"), 1),
    **dict.fromkeys(("provision_updated_at", "properties", "reservation"), 1),
    "resource_class": 21,
    "traits": 37,
    "fault": 42,
    "conductor_group": 46,
    "owner": 50,
    "retired": 61,
    "lessee": 65,
    "shard": MINOR_OF_SHARDS,
}

# How many nodes a page of changed nodes has, in full detail: about 3 kB each.
CHANGED_PAGE = 100

_BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _NOT_ACCEPTABLE, _CONFLICT = 400, 401, 403, 406, 409
_AWAY = frozenset({429, 502, 503, 504})
_REDIRECTS = 300
_SERVER_ERRORS = 500
# Without a lock: the first may have met one that was just released.
_CONFLICTS_THAT_REFUSE = 2
_LOCKED = "locked"
_JSON = "application/json"
# Before anything was sent.
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class _NotDone(Transient):
    """The request failed and surely had no effect; `error` is what the caller gets."""

    def __init__(self, error: Transient) -> None:
        super().__init__(str(error))
        self.error = error


class HttpIronicApi:
    """A client of Ironic's REST API; it implements `IronicApi`. `url` is that of the service, with or without `/v1`.
    If it is empty, the URL is read from Keystone's catalogue. The settings say how the client logs in, and by which
    certificates.

    `has_shards` says that the operator assigns nodes to cells by shards, so an Ironic without shards is refused.
    `transport` is httpx's way to the servers, for tests. Raises ValueError if it cannot log in like this.
    """

    def __init__(
        self,
        url: str,
        settings: IronicSettings | None = None,
        *,
        has_shards: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = settings or IronicSettings()
        self._has_shards = has_shards
        check_login(url, self._settings)
        uses_keystone = self._settings.auth == "keystone"
        self._has_catalogue = uses_keystone and not url
        # Empty until it was found in Keystone's catalogue.
        self._base = "" if self._has_catalogue else without_user(url)
        self._client = httpx.AsyncClient(
            auth=basic_of(url, self._settings),
            transport=transport,
            verify=tls_of(self._settings),
            timeout=httpx.Timeout(
                self._settings.rest_answer_s_max, connect=self._settings.rest_connect_s_max
            ),
            limits=httpx.Limits(max_connections=self._settings.rest_connections_max),
        )
        self._tokens = (
            tokens_of(self._settings, self._client, with_catalogue=self._has_catalogue)
            if uses_keystone
            else None
        )
        self._least = MINOR_OF_SHARDS if has_shards else MINOR_LEAST
        self._may_act_on: Callable[[ProviderId], bool] = lambda _: True
        # As it is asked for; lowered to what the server offers when it says that it has less.
        self._minor = max(self._least, MINOR_WANTED)

    @property
    def _name(self) -> str:
        return f"Ironic at {self._base}" if self._base else "Ironic"

    async def close(self) -> None:
        await self._client.aclose()

    # Reading

    async def pages(self) -> AsyncGenerator[NodesRead, None]:
        query: dict[str, str] | None = {"limit": str(self._settings.page)}
        markers: set[str] = set()
        while query is not None:
            listed, query = await self._nodes(query)
            yield read_page(listed)
            marker = (query or {}).get("marker", "")
            if marker in markers:
                raise WrongAnswer(f"{self._name}: the page after {marker!r} was read already")
            markers.add(marker)

    async def changed_since(self, since: datetime) -> AsyncGenerator[tuple[Changed, ...], None]:
        # Only the detailed list has the time of the last write. It is no field that can be asked for.
        query = {"sort_key": "updated_at", "sort_dir": "desc", "limit": "1"}
        while True:
            answer = await self._ask("/v1/nodes/detail", query)
            listing = self._read(self._granted(answer), Listing)
            times = [changed_at(each) for each in listing.nodes]
            read = [
                (read_node(each), at)
                for each, at in zip(listing.nodes, times, strict=True)
                if at is not None and at >= since
            ]
            yield tuple(Changed(each.node, at) for each, at in read if isinstance(each, Read))
            marker = marker_of(listing.next or "")
            if not marker or any(at is None or at < since for at in times):
                # Nodes that were never changed come last.
                return
            query |= {"limit": str(CHANGED_PAGE), "marker": marker}

    async def node(self, node: ProviderId) -> Node | None:
        found = await self._fields_of(node)
        return None if found is None else self._whole(found).node

    async def node_of_allocation(self, allocation: UUID) -> ProviderId | None:
        answer = await self._ask(f"/v1/allocations/{allocation}")
        return None if is_missing(answer) else self._read(self._granted(answer), Allocated).node_uuid

    async def vifs(self, node: ProviderId) -> tuple[str, ...] | IronicRefused:
        answer = await self._ask(f"{_at(node)}/vifs")
        return refusal_of(answer) or tuple(each.id for each in self._read(answer, Vifs).vifs)

    async def validate(self, node: ProviderId) -> Mapping[str, InterfaceCheck] | IronicRefused:
        answer = await self._ask(f"{_at(node)}/validate")
        return refusal_of(answer) or self._read(answer, dict[str, InterfaceCheck])

    # Orders

    def order_only_if(self, may_act_on: Callable[[ProviderId], bool]) -> None:
        self._may_act_on = may_act_on

    async def patch(self, node: ProviderId, changes: Sequence[PatchOperation]) -> IronicRefused | None:
        answer = await self._answer_to("PATCH", node, "", changes)
        if (refused := refusal_of(answer)) is not None:
            return refused
        # A deploy relies on what was set here: only the node itself says that Ironic has done it, and no proxy.
        self._read(answer, Patched)
        return None

    async def set_provision_state(
        self,
        node: ProviderId,
        target: str,
        *,
        configdrive: Mapping[str, Any] | str | None = None,
        **others: object,
    ) -> IronicRefused | None:
        """Order a transition. `others` are further fields that the target needs: `clean_steps`, `rescue_password`."""
        if isinstance(configdrive, Mapping) and self._minor < MINOR_OF_DRIVE_PARTS:
            return IronicRefused(
                _NOT_ACCEPTABLE,
                f"a config drive of user data and metadata needs version 1.{MINOR_OF_DRIVE_PARTS}, and {self._name} offers "
                f"1.{self._minor}",
            )
        order = {"target": target, **others, **({} if configdrive is None else {"configdrive": configdrive})}
        return await self._order("PUT", node, "/states/provision", order)

    async def attach_vif(self, node: ProviderId, vif: str) -> IronicRefused | None:
        return _no_port(vif) or await self._order("POST", node, "/vifs", {"id": vif})

    async def detach_vif(self, node: ProviderId, vif: str) -> IronicRefused | None:
        return _no_port(vif) or await self._order("DELETE", node, f"/vifs/{quote(vif, safe='')}")

    # Orders of operators, which are not in the port

    async def set_power_state(self, node: ProviderId, target: str) -> IronicRefused | None:
        return await self._order("PUT", node, "/states/power", {"target": target})

    async def set_console(self, node: ProviderId, *, is_on: bool) -> IronicRefused | None:
        return await self._order("PUT", node, "/states/console", {"enabled": is_on})

    async def console(self, node: ProviderId) -> Console | IronicRefused:
        answer = await self._ask(f"{_at(node)}/states/console")
        return refusal_of(answer) or self._read(answer, Console)

    async def node_of_instance(self, instance: UUID) -> Node | None:
        """The node that Ironic says this instance is on; None if there is none."""
        nodes, _ = await self._nodes({"instance_uuid": str(instance), "limit": "1"})
        return self._whole(nodes[0]).node if nodes else None

    async def set_maintenance(
        self, node: ProviderId, reason: str = "", *, is_on: bool = True
    ) -> IronicRefused | None:
        if is_on:
            return await self._order("PUT", node, "/maintenance", {"reason": reason})
        return await self._order("DELETE", node, "/maintenance")

    # Requests, tried again where that can do no harm

    async def _nodes(self, query: Mapping[str, str]) -> tuple[Sequence[object], dict[str, str] | None]:
        """One page of nodes, and the query for the next page; None after the last."""
        answer = await self._ask("/v1/nodes", query, with_fields=True)
        listing = self._read(self._granted(answer), Listing)
        if listing.next is None:
            return listing.nodes, None
        # The link's host may be one that only Ironic itself can reach, behind a proxy: what counts is where it goes on.
        marker = marker_of(listing.next)
        if not marker:
            raise WrongAnswer(f"{self._name}: next is {listing.next[:MESSAGE_MAX]!r}, which leads nowhere")
        return listing.nodes, {"limit": query["limit"], "marker": marker}

    async def _fields_of(self, node: ProviderId) -> object:
        """The fields of a node as Ironic sends them; None if there is no such node."""
        answer = await self._ask(_at(node), {}, with_fields=True)
        if is_missing(answer):
            return None
        return self._read(self._granted(answer), dict[str, Any])

    def _granted(self, answer: RestAnswer) -> RestAnswer:
        """The answer itself, if it is no error; otherwise raise WrongAnswer. For questions that Ironic answers in
        whatever state a node is.
        """
        if answer.status >= ERRORS:
            raise WrongAnswer(f"{self._name} answers {answer.status}: {answer.message}")
        return answer

    def _whole(self, found: object) -> Read:
        read = read_node(found)
        if isinstance(read, UnreadableNode):
            raise WrongAnswer(f"{self._name}: node {read.id}: {read.reason}")
        return read

    async def _ask(
        self, path: str, query: Mapping[str, str] | None = None, *, with_fields: bool = False
    ) -> RestAnswer:
        """Send a GET request. It may be repeated after any failure, since it changes nothing."""

        async def once() -> RestAnswer:
            fields = {"fields": ",".join(self._fields())} if with_fields else {}
            return await self._send("GET", path, {**(query or {}), **fields})

        return await self._again_while(Unavailable, once)

    async def _order(
        self, method: str, node: ProviderId, below: str, document: object = None
    ) -> IronicRefused | None:
        answer = await self._answer_to(method, node, below, document)
        if (refused := refusal_of(answer)) is None and answer.body:
            # An answer that is not JSON does not come from Ironic, so it is unknown whether Ironic has the order.
            self._read(answer, Any)
        return refused

    async def _answer_to(self, method: str, node: ProviderId, below: str, document: object) -> RestAnswer:
        body = b"" if document is None else msgspec.json.encode(document)
        conflicts = 0

        async def once() -> RestAnswer:
            nonlocal conflicts
            if not self._may_act_on(node):
                raise NoLongerOurs(
                    f"node {node} is no longer this daemon's, or may not be: nothing was ordered"
                )
            answer = await self._send(method, f"{_at(node)}{below}", {}, body)
            if answer.status == _CONFLICT and not await self._is_locked(node, answer):
                conflicts += 1
                if conflicts >= _CONFLICTS_THAT_REFUSE:
                    return answer
            if answer.status == _CONFLICT:
                raise _NotDone(Locked(f"{self._name}: node {node} is locked: {answer.message}"))
            return answer

        return await self._again_while(_NotDone, once)

    async def _is_locked(self, node: ProviderId, conflict: RestAnswer) -> bool:
        if _LOCKED in conflict.message.lower():
            return True
        found = await self._fields_of(node)
        return found is not None and self._whole(found).reservation is not None

    async def _again_while(
        self, kind: type[Transient], once: "Callable[[], Awaitable[RestAnswer]]"
    ) -> RestAnswer:
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((kind, _NotDone)),
            stop=tenacity.stop_after_attempt(self._settings.rest_tries_max),
            wait=growing_waits(
                self._settings.rest_retry_delay_s_first, self._settings.rest_retry_delay_s_max
            ),
            reraise=True,
        )
        try:
            return await retrying(once)
        except _NotDone as not_done:
            raise not_done.error from not_done

    # One request

    async def _send(self, method: str, path: str, query: Mapping[str, str], body: bytes = b"") -> RestAnswer:
        """Send one request with the microversion that Ironic takes. Raises if Ironic is away, or refuses user or version."""
        token = await self._token()
        answer = await self._sent(method, path, query, body, token)
        if answer.status == _UNAUTHORIZED and self._tokens is not None and token is not None:
            self._tokens.forget(token)
            answer = await self._sent(method, path, query, body, await self._token())
        if answer.status in (_UNAUTHORIZED, _FORBIDDEN):
            raise CredentialsRefused(
                f"{self._name} refuses {method} {path} with {answer.status}: {answer.message}; check "
                f"{settings_that_log_in(self._settings)} and the roles of this user"
            )
        if answer.status == _NOT_ACCEPTABLE:
            self._lower_version(answer)
            raise _NotDone(Unavailable(f"{self._name} takes no more than version 1.{self._minor}"))
        if answer.status in _AWAY:
            raise _NotDone(Unavailable(f"{self._name} answers {answer.status}: {answer.message}"))
        if _REDIRECTS <= answer.status < ERRORS:
            raise WrongAnswer(
                f"{self._name} answers {answer.status}: it is at {answer.headers.get('Location', 'another address')}"
            )
        if answer.status >= _SERVER_ERRORS:
            raise Unavailable(f"{self._name} answers {answer.status} to {method} {path}: {answer.message}")
        return answer

    async def _token(self) -> Token | None:
        """A token of Keystone; None if Ironic is used without. Raises if Keystone is away or refuses."""
        if self._tokens is None:
            return None
        try:
            token = await self._tokens.current()
        except Unavailable as problem:
            raise _NotDone(problem) from problem
        except KeystoneRefused as problem:
            raise CredentialsRefused(f"{problem}; check {settings_that_log_in(self._settings)}") from problem
        if self._has_catalogue:
            self._base = endpoint_of(token, self._settings)
        return token

    async def _sent(
        self, method: str, path: str, query: Mapping[str, str], body: bytes, token: Token | None
    ) -> RestAnswer:
        headers = {
            **({"X-Auth-Token": token.text} if token else {}),
            VERSION_HEADER: f"1.{self._minor}",
            "Accept": _JSON,
            **({"Content-Type": _JSON} if body else {}),
        }
        try:
            async with (
                asyncio.timeout(self._settings.rest_answer_s_max),
                self._client.stream(
                    method, f"{self._base}{path}", params=query, headers=headers, content=body
                ) as response,
            ):
                return RestAnswer(response.status_code, await self._bounded(response), response.headers)
        except _NEVER_SENT as problem:
            raise _NotDone(Unavailable(f"{self._name} cannot be reached: {problem!r}")) from problem
        except (TimeoutError, httpx.TimeoutException) as problem:
            raise TookTooLong(
                f"{self._name} did not answer {method} {path} within {self._settings.rest_answer_s_max:g} s"
            ) from problem
        except httpx.HTTPError as problem:
            raise Unavailable(f"{self._name}: no answer to {method} {path}: {problem!r}") from problem
        except ssl.SSLError as problem:
            raise Unavailable(f"{self._name}: {tls_failure(problem, self._settings.cert_file)}") from problem

    async def _bounded(self, response: httpx.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > self._settings.rest_answer_bytes_max:
                raise WrongAnswer(
                    f"{self._name}: an answer of more than {self._settings.rest_answer_bytes_max} bytes to {response.url.path}"
                )
            parts.append(part)
        return b"".join(parts)

    def _lower_version(self, answer: RestAnswer) -> None:
        """Lower the microversion of further requests to the newest that the server has. Raise VersionNotOffered if
        that is less than needed.
        """
        newest, oldest = (answer.headers.get(name, "") for name in (VERSION_MAX_HEADER, VERSION_MIN_HEADER))
        minor = int(newest[2:]) if newest.startswith("1.") and newest[2:].isdecimal() else 0
        if not self._least <= minor < self._minor:
            raise VersionNotOffered(
                f"{self._name} does not take version 1.{self._minor}: it offers {oldest or '?'} to {newest or '?'}, and "
                f"1.{self._least} is needed{' for shards' if self._has_shards else ''}"
            )
        self._minor = minor

    def _fields(self) -> Sequence[str]:
        return [
            field
            for field, since in FIELDS.items()
            if since <= self._minor and (field != "shard" or self._has_shards)
        ]

    def _read(self, answer: RestAnswer, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except NOT_JSON as problem:
            raise WrongAnswer(f"{self._name}: an answer that is not as it must be: {problem}") from problem


def _at(node: ProviderId) -> str:
    return f"/v1/nodes/{node}"


def _no_port(vif: str) -> IronicRefused | None:
    """A refusal of a port id that is empty or only dots. It is not sent: as the end of an address, dots mean the
    level above, so a DELETE would be an order about the node itself.
    """
    if vif.strip("."):
        return None
    return IronicRefused(_BAD_REQUEST, f"{vif!r} is no id of a port")


def ironic_api(addresses: Addresses, settings: IronicSettings) -> HttpIronicApi | None:
    """The client of the Ironic that these addresses name, or Keystone's catalogue; None if there is none. Raises BadSetting."""
    if not addresses.ironic_url and settings.auth != "keystone":
        return None
    return HttpIronicApi(addresses.ironic_url, settings, has_shards=bool(addresses.ironic_shards))
