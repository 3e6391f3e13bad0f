"""Ironic's REST API over HTTP, by httpx.

An order is tried again here, a few times with growing pauses, if it surely had no effect: nobody was reached, 503, or the
node's lock was held. If its answer was lost, that is raised, and the caller reads the node first. How requests are sent, and questions
are tried again, is in bus/rest/client.py.

A 409 means two things: a conductor holds the node's lock for a moment, or Ironic refuses. Ironic says "locked" of a lock. As
its texts are no part of the API, the node is asked as well where that word is missing: with a `reservation`, it was the lock.
Without one the lock may just have been released, so the order is made once more; the second 409 is a refusal.

The microversion is lowered to what the server has, if that is enough. The fields of nodes are named in each request, so
only those are asked for that the version has: with 1.46 a node's owner, lessee and retirement are not seen.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
import msgspec

from bus.configuration.addresses import Addresses
from bus.errors import Locked, VersionNotOffered, WrongAnswer
from bus.message import ProviderId
from bus.rest.answers import MESSAGE_MAX, RestAnswer, marker_of
from bus.rest.client import RequestNotDone, RestClient
from ironic_sync.core.node import InterfaceCheck, Node
from ironic_sync.rest import (
    Changed,
    ChangeTime,
    IronicRefused,
    NodesRead,
    NoLongerOurs,
    PatchOperation,
    UnreadableNode,
)
from ironic_sync.rest_answers import (
    Allocated,
    Console,
    Listing,
    Patched,
    Read,
    Vifs,
    changed_at,
    is_missing,
    read_node,
    read_page,
    refusal_of,
)
from ironic_sync.settings import IRONIC_API, IronicSettings

Minor = int

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

_BAD_REQUEST, _NOT_ACCEPTABLE, _CONFLICT = 400, 406, 409
# Without a lock: the first may have met one that was just released.
_CONFLICTS_THAT_REFUSE = 2
_LOCKED = "locked"


class _IronicVersion:
    """The microversion that requests name: as it is wanted, and lowered to what the server offers when it says that it has less."""

    def __init__(self, *, has_shards: bool) -> None:
        self._has_shards = has_shards
        self._least = MINOR_OF_SHARDS if has_shards else MINOR_LEAST
        self.minor = max(self._least, MINOR_WANTED)

    @property
    def headers(self) -> Mapping[str, str]:
        return {VERSION_HEADER: f"1.{self.minor}"}

    @property
    def fields(self) -> Sequence[str]:
        return [
            field
            for field, since in FIELDS.items()
            if since <= self.minor and (field != "shard" or self._has_shards)
        ]

    def refused(self, answer: RestAnswer, name: str) -> str:
        newest, oldest = (answer.headers.get(each, "") for each in (VERSION_MAX_HEADER, VERSION_MIN_HEADER))
        minor = int(newest[2:]) if newest.startswith("1.") and newest[2:].isdecimal() else 0
        if not self._least <= minor < self.minor:
            raise VersionNotOffered(
                f"{name} does not take version 1.{self.minor}: it offers {oldest or '?'} to {newest or '?'}, and "
                f"1.{self._least} is needed{' for shards' if self._has_shards else ''}"
            )
        self.minor = minor
        return f"{name} takes no more than version 1.{minor}"


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
        self._version = _IronicVersion(has_shards=has_shards)
        self._client = RestClient(IRONIC_API, url, self._settings, self._version, transport=transport)
        self._may_act_on: Callable[[ProviderId], bool] = lambda _: True

    @property
    def _name(self) -> str:
        return self._client.name

    async def close(self) -> None:
        await self._client.close()

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

    async def changed_since(
        self, since: datetime, by: ChangeTime = "updated_at"
    ) -> AsyncGenerator[tuple[Changed, ...], None]:
        # Only the detailed list has these times. They are no fields that can be asked for.
        query = {"sort_key": by, "sort_dir": "desc", "limit": "1"}
        while True:
            answer = await self._ask("/v1/nodes/detail", query)
            listing = self._client.read(self._client.granted(answer), Listing)
            times = [changed_at(each, by) for each in listing.nodes]
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
        return (
            None
            if is_missing(answer)
            else self._client.read(self._client.granted(answer), Allocated).node_uuid
        )

    async def vifs(self, node: ProviderId) -> tuple[str, ...] | IronicRefused:
        answer = await self._ask(f"{_at(node)}/vifs")
        return refusal_of(answer) or tuple(each.id for each in self._client.read(answer, Vifs).vifs)

    async def validate(self, node: ProviderId) -> Mapping[str, InterfaceCheck] | IronicRefused:
        answer = await self._ask(f"{_at(node)}/validate")
        return refusal_of(answer) or self._client.read(answer, dict[str, InterfaceCheck])

    # Orders

    def order_only_if(self, may_act_on: Callable[[ProviderId], bool]) -> None:
        self._may_act_on = may_act_on

    async def patch(self, node: ProviderId, changes: Sequence[PatchOperation]) -> IronicRefused | None:
        answer = await self._answer_to("PATCH", node, "", changes)
        if (refused := refusal_of(answer)) is not None:
            return refused
        # A deploy relies on what was set here: only the node itself says that Ironic has done it, and no proxy.
        self._client.read(answer, Patched)
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
        if isinstance(configdrive, Mapping) and self._version.minor < MINOR_OF_DRIVE_PARTS:
            return IronicRefused(
                _NOT_ACCEPTABLE,
                f"a config drive of user data and metadata needs version 1.{MINOR_OF_DRIVE_PARTS}, and {self._name} offers "
                f"1.{self._version.minor}",
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
        return refusal_of(answer) or self._client.read(answer, Console)

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
        listing = self._client.read(self._client.granted(answer), Listing)
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
        return self._client.read(self._client.granted(answer), dict[str, Any])

    def _whole(self, found: object) -> Read:
        read = read_node(found)
        if isinstance(read, UnreadableNode):
            raise WrongAnswer(f"{self._name}: node {read.id}: {read.reason}")
        return read

    async def _ask(
        self, path: str, query: Mapping[str, str] | None = None, *, with_fields: bool = False
    ) -> RestAnswer:
        """Send a GET request. It may be repeated after any failure, since it changes nothing."""

        def whole_query() -> Mapping[str, str]:
            fields = {"fields": ",".join(self._version.fields)} if with_fields else {}
            return {**(query or {}), **fields}

        return await self._client.ask(path, whole_query)

    async def _order(
        self, method: str, node: ProviderId, below: str, document: object = None
    ) -> IronicRefused | None:
        answer = await self._answer_to(method, node, below, document)
        if (refused := refusal_of(answer)) is None and answer.body:
            # An answer that is not JSON does not come from Ironic, so it is unknown whether Ironic has the order.
            self._client.read(answer, Any)
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
            answer = await self._client.send(method, f"{_at(node)}{below}", {}, body)
            if answer.status == _CONFLICT and not await self._is_locked(node, answer):
                conflicts += 1
                if conflicts >= _CONFLICTS_THAT_REFUSE:
                    return answer
            if answer.status == _CONFLICT:
                raise RequestNotDone(Locked(f"{self._name}: node {node} is locked: {answer.message}"))
            return answer

        return await self._client.again_while(RequestNotDone, once)

    async def _is_locked(self, node: ProviderId, conflict: RestAnswer) -> bool:
        if _LOCKED in conflict.message.lower():
            return True
        found = await self._fields_of(node)
        return found is not None and self._whole(found).reservation is not None


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
