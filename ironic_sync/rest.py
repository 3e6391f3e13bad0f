"""Ironic's REST API: the requests of daemons and operators, and the values and errors of the answers.

An expected refusal is a value, `IronicRefused`, with Ironic's own message. Operational failures are raised (kit/errors.py):

    Unavailable          nobody answers, or 502, 503, 504: no conductor, too many requests.
    TookTooLong          no answer within the limit.
    Locked               409, and a conductor holds the node's lock (below it stands how that is told from a refusal).
    CredentialsRefused   401 or 403.
    VersionNotOffered    Ironic's API is older than what is needed.
    NoLongerOurs         the node belongs to another daemon by now, or may: nothing was sent.
    WrongAnswer          an answer that is no JSON, too large, or has not the form it must have.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, get_args
from urllib.parse import quote
from uuid import UUID

import httpx
import msgspec
from msgspec import UNSET, Struct, UnsetType

from bus.addresses import Addresses
from engine.inventories import ProviderId
from ironic_sync.core.node import InterfaceCheck, Node, NodeData, flaw_of, node_of, shown
from ironic_sync.settings import IRONIC_API
from kit.errors import UNREADABLE, Locked, Operational, VersionNotOffered, WrongAnswer
from kit.keystone import OpenStackSettings
from kit.login import ERRORS, MESSAGE_MAX, NOT_FOUND, RestAnswer, marker_of
from kit.rest import Microversion, RequestNotDone, RestClient, RestLimits

log = logging.getLogger(__name__)

# How many nodes Ironic is asked for at once.
PAGE = 1000


class NoLongerOurs(Operational):
    """Nothing was sent to Ironic: the node belongs to another daemon by now, or this daemon's lease may be over."""


class IronicRefused(Struct, frozen=True):
    """Ironic's refusal of a request, in its own words: the request is wrong, or the node's present state does not allow it."""

    status: int
    message: str


class UnreadableNode(Struct, frozen=True):
    """A node in Ironic's answer with a field that is missing or wrong. `id` is None if even the id could not be read."""

    id: ProviderId | None
    reason: str


class NodesRead(Struct, frozen=True):
    nodes: tuple[Node, ...]
    unreadable: tuple[UnreadableNode, ...] = ()


# Ironic's times of a node's last change, which a node has none of before its first one, and of its creation.
ChangeTime = Literal["updated_at", "created_at"]
CHANGE_TIMES: tuple[ChangeTime, ...] = get_args(ChangeTime)


class Changed(Struct, frozen=True):
    """A node, and when Ironic last changed or created it, by the clock of the Ironic process that wrote."""

    node: Node
    at: datetime


class PatchOperation(Struct, frozen=True, omit_defaults=True):
    """One operation of a JSON Patch on a node. Ironic refuses to `add` an `/instance_uuid` to a node that has one."""

    op: Literal["add", "replace", "remove"]
    path: str
    value: Any | UnsetType = UNSET


class CleanStep(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One step of cleaning by hand."""

    interface: str
    step: str
    args: Mapping[str, Any] = {}


# Answers of Ironic's REST API, the forms that their bodies must have, and the nodes that are read from them.


# Fields of a node that need a higher microversion than the minimum.
YOUNG_FIELDS = ("owner", "lessee", "retired", "protected")


class NodesListed(Struct, frozen=True):
    nodes: list[Any]
    next: str | None = None


class Patched(Struct, frozen=True):
    uuid: UUID


class Vif(Struct, frozen=True):
    id: str


class Vifs(Struct, frozen=True):
    vifs: list[Vif]


class Allocated(Struct, frozen=True):
    node_uuid: ProviderId | None = None


def is_missing(answer: RestAnswer) -> bool:
    """Whether Ironic itself says that there is no such thing: a 404 in the form of its errors. A proxy in front of
    Ironic may answer 404 to every request.
    """
    try:
        return answer.status == NOT_FOUND and bool(msgspec.json.decode(answer.body)["error_message"])
    except UNREADABLE:
        return False


class Console(Struct, frozen=True, rename={"is_on": "console_enabled", "info": "console_info"}):
    """The console of a node. `info` says where it is, in a form that depends on the driver; None while it is off."""

    is_on: bool
    info: dict[str, Any] | None = None


def refusal_of(answer: RestAnswer) -> IronicRefused | None:
    return IronicRefused(answer.status, answer.message) if answer.status >= ERRORS else None


class Read(Struct, frozen=True):
    """A node that was read from an answer of Ironic. `reservation` is the conductor that holds the node's lock; None
    if none does.
    """

    node: Node
    reservation: str | None = None


def read_page(listed: Sequence[object]) -> NodesRead:
    """Read each node of a page by itself, so that one that is wrong does not make the others unreadable."""
    read = [read_node(each) for each in listed]
    return NodesRead(
        tuple(each.node for each in read if isinstance(each, Read)),
        tuple(each for each in read if isinstance(each, UnreadableNode)),
    )


def read_node(listed: object) -> Read | UnreadableNode:
    """Read a node of Ironic's answer. If it has a wrong field, the reason names the field and its value.

    Fields that an old Ironic does not have count as null.
    """
    if not isinstance(listed, dict):
        return UnreadableNode(None, f"a node must be an object, not {shown(listed)}")
    reservation = listed.get("reservation")
    if not isinstance(reservation, str | None):
        return UnreadableNode(
            _id_of(listed), f"reservation is {shown(reservation)}: it must be a text or null"
        )
    try:
        data = msgspec.convert(dict.fromkeys(YOUNG_FIELDS) | listed, NodeData)
    except UNREADABLE as problem:
        return UnreadableNode(_id_of(listed), flaw_of(problem, msgspec.json.encode(listed)))
    return Read(node_of(data), reservation)


def changed_at(listed: object, by: ChangeTime = "updated_at") -> datetime | None:
    """When Ironic last changed or created this node of its answer; None if that is not there, or cannot be read."""
    try:
        at = msgspec.convert(listed.get(by) if isinstance(listed, dict) else None, datetime | None)
    except UNREADABLE:
        return None
    return at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)


def _id_of(listed: Mapping[str, object]) -> ProviderId | None:
    try:
        return msgspec.convert(listed.get("uuid"), ProviderId)
    except UNREADABLE:
        return None


# Ironic's REST API over HTTP, by httpx.
#
# An order is tried again here, a few times with growing pauses, if it surely had no effect: nobody was reached, 503, or the
# node's lock was held. If its answer was lost, that is raised, and the caller reads the node first. How requests are sent, and questions
# are tried again, is in kit/rest.py.
#
# A 409 means two things: a conductor holds the node's lock for a moment, or Ironic refuses. Ironic says "locked" of a lock. As
# its texts are no part of the API, the node is asked as well where that word is missing: with a `reservation`, it was the lock.
# Without one the lock may just have been released, so the order is made once more; the second 409 is a refusal.
#
# The microversion is lowered to what the server has, if that is enough. The fields of nodes are named in each request, so
# only those are asked for that the version has: with 1.46 a node's owner, lessee, protection and retirement are not seen.


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
FIELDS: Mapping[str, int] = {
    **dict.fromkeys(("uuid", "name", "provision_state", "target_provision_state", "power_state"), 1),
    **dict.fromkeys(("maintenance", "maintenance_reason", "instance_uuid", "driver", "last_error"), 1),
    **dict.fromkeys(("provision_updated_at", "properties", "reservation"), 1),
    "resource_class": 21,
    "traits": 37,
    "fault": 42,
    "conductor_group": 46,
    "protected": 48,
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


class _IronicVersion(Microversion):
    """The microversion that requests name: as it is wanted, and lowered to what the server offers when it says that it has less."""

    def __init__(self, *, has_shards: bool) -> None:
        self._has_shards = has_shards
        self._least = MINOR_OF_SHARDS if has_shards else MINOR_LEAST
        self._speak(max(self._least, MINOR_WANTED))

    def _speak(self, minor: int) -> None:
        self.minor = minor
        self.headers = {VERSION_HEADER: f"1.{minor}"}

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
        self._speak(minor)
        return f"{name} takes no more than version 1.{minor}"


class HttpIronicApi:
    """A client of Ironic's REST API.

    A request that changes a node returns None when Ironic has accepted it; whether the change happens is seen at the node. If its answer is
    lost, an error is raised, though Ironic may have accepted the request. The caller reads the node before it repeats the request; after
    that, every request is safe to repeat.

    `url` is that of the service, with or without `/v1`. If it is `keystone`, the URL is read from Keystone's catalogue. The account says
    how the client signs in, and by which certificates.

    `has_shards` says that the operator assigns nodes to cells by shards, so an Ironic without shards is refused.
    `transport` is httpx's way to the servers, for tests. Raises ValueError if it cannot sign in like this.
    """

    def __init__(
        self,
        url: str,
        account: OpenStackSettings | None = None,
        *,
        has_shards: bool = False,
        page: int = PAGE,
        limits: RestLimits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._page = page
        self._version = _IronicVersion(has_shards=has_shards)
        self._client = RestClient(
            IRONIC_API,
            url,
            account or OpenStackSettings(),
            self._version,
            limits=limits,
            transport=transport,
        )
        self._may_act_on: Callable[[ProviderId], bool] = lambda _: True

    async def close(self) -> None:
        await self._client.close()

    # Reading

    async def pages(self) -> AsyncGenerator[NodesRead, None]:
        """All nodes, a page at a time; a node that comes or goes meanwhile may be on no page."""
        query: dict[str, str] | None = {"limit": str(self._page)}
        markers: set[str] = set()
        while query is not None:
            listed, query = await self._nodes(query)
            yield read_page(listed)
            marker = (query or {}).get("marker", "")
            if marker in markers:
                raise WrongAnswer(f"{self._client.name}: the page after {marker!r} was read already")
            markers.add(marker)

    async def changed_since(
        self, since: datetime, by: ChangeTime = "updated_at"
    ) -> AsyncGenerator[tuple[Changed, ...], None]:
        """The nodes that Ironic changed, or created, at this time or later, the last ones first, in pages. The first page
        has at most one node: mostly nothing has changed.
        """
        # Only the detailed list has these times. They are no fields that can be asked for.
        query = {"sort_key": by, "sort_dir": "desc", "limit": "1"}
        while True:
            answer = await self._ask("/v1/nodes/detail", query)
            listing = self._client.read(self._client.granted(answer), NodesListed)
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
        """One node as it is now; None if there is no such node."""
        found = await self._fields_of(node)
        return None if found is None else self._whole(found).node

    async def instance_info(self, node: ProviderId) -> Mapping[str, object]:
        """What the program that has deployed a node wrote there about its instance."""
        answer = await self._ask(_at(node), {"fields": "instance_info"})
        found = self._client.read(self._client.granted(answer), dict[str, dict[str, Any] | None])
        return found.get("instance_info") or {}

    async def node_of_allocation(self, allocation: UUID) -> ProviderId | None:
        """The node of one of Ironic's own allocations, whose notifications do not name it. None if the allocation has none,
        or there is no such allocation, or Ironic is too old to have any.
        """
        answer = await self._ask(f"/v1/allocations/{allocation}")
        return (
            None
            if is_missing(answer)
            else self._client.read(self._client.granted(answer), Allocated).node_uuid
        )

    async def vifs(self, node: ProviderId) -> tuple[str, ...] | IronicRefused:
        """The network ports (VIFs) that are attached to a node."""
        answer = await self._ask(f"{_at(node)}/vifs")
        return refusal_of(answer) or tuple(each.id for each in self._client.read(answer, Vifs).vifs)

    async def validate(self, node: ProviderId) -> Mapping[str, InterfaceCheck] | IronicRefused:
        """Ask Ironic whether a node has what each of its interfaces needs."""
        answer = await self._ask(f"{_at(node)}/validate")
        return refusal_of(answer) or self._client.read(answer, dict[str, InterfaceCheck])

    # Orders

    def order_only_if(self, may_act_on: Callable[[ProviderId], bool]) -> None:
        """Call `may_act_on` immediately before each request that changes a node, and before each retry. If it returns
        false, NoLongerOurs is raised and nothing is sent.
        """
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
        """Order a transition by its target or verb: `active`, `deleted`, `rebuild`, `manage`, `provide`, ... `others` are further fields
        that the target needs: `clean_steps`, `rescue_password`.
        """
        if isinstance(configdrive, Mapping) and self._version.minor < MINOR_OF_DRIVE_PARTS:
            return IronicRefused(
                _NOT_ACCEPTABLE,
                f"a config drive of user data and metadata needs version 1.{MINOR_OF_DRIVE_PARTS}, and {self._client.name} offers "
                f"1.{self._version.minor}",
            )
        order = {"target": target, **others, **({} if configdrive is None else {"configdrive": configdrive})}
        return await self._order("PUT", node, "/states/provision", order)

    async def attach_vif(self, node: ProviderId, vif: str) -> IronicRefused | None:
        return _no_port(vif) or await self._order("POST", node, "/vifs", {"id": vif})

    async def detach_vif(self, node: ProviderId, vif: str) -> IronicRefused | None:
        return _no_port(vif) or await self._order("DELETE", node, f"/vifs/{quote(vif, safe='')}")

    # Orders of operators

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
        listing = self._client.read(self._client.granted(answer), NodesListed)
        if listing.next is None:
            return listing.nodes, None
        # The link's host may be one that only Ironic itself can reach, behind a proxy: what counts is where it goes on.
        marker = marker_of(listing.next)
        if not marker:
            raise WrongAnswer(
                f"{self._client.name}: next is {listing.next[:MESSAGE_MAX]!r}, which leads nowhere"
            )
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
            raise WrongAnswer(f"{self._client.name}: node {read.id}: {read.reason}")
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
                log.debug("an order to Ironic is not sent: the node is not this daemon's any more")
                raise NoLongerOurs(
                    f"node {node} is no longer this daemon's, or may not be: nothing was ordered"
                )
            answer = await self._client.send(method, f"{_at(node)}{below}", {}, body)
            if answer.status == _CONFLICT and not await self._is_locked(node, answer):
                conflicts += 1
                if conflicts >= _CONFLICTS_THAT_REFUSE:
                    return answer
            if answer.status == _CONFLICT:
                raise RequestNotDone(Locked(f"{self._client.name}: node {node} is locked: {answer.message}"))
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


def ironic_api(addresses: Addresses, account: OpenStackSettings) -> HttpIronicApi | None:
    """The client of the Ironic that these addresses name; None if they name none. Raises BadSetting."""
    if not addresses.ironic_url:
        return None
    return HttpIronicApi(addresses.ironic_url, account, has_shards=bool(addresses.ironic_shards))
