"""The port to Ironic's REST API: the daemons' requests, and the values and errors of the answers.

The port has two halves, for parts that read nodes and parts that change them. `HttpIronicApi` (rest_http.py) implements both.
An expected refusal is a value, `IronicRefused`, with Ironic's own message. Operational failures are raised (bus/errors.py):

    Unavailable          nobody answers, or 502, 503, 504: no conductor, too many requests.
    TookTooLong          no answer within the limit.
    Locked               409, and a conductor holds the node's lock (rest_http.py says how that is told from a refusal).
    CredentialsRefused   401 or 403.
    VersionNotOffered    Ironic's API is older than what is needed.
    NoLongerOurs         the node belongs to another daemon by now, or may: nothing was sent.
    WrongAnswer          an answer that is no JSON, too large, or has not the form it must have.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, get_args
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

from bus.errors import Operational
from bus.message import ProviderId
from ironic_sync.core.node import InterfaceCheck, Node


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


class ReadsNodes(Protocol):
    def pages(self) -> AsyncGenerator[NodesRead, None]:
        """All nodes, a page at a time; a node that comes or goes meanwhile may be on no page."""

    def changed_since(
        self, since: datetime, by: ChangeTime = "updated_at"
    ) -> AsyncGenerator[tuple[Changed, ...], None]:
        """The nodes that Ironic changed, or created, at this time or later, the last ones first, in pages. The first page
        has at most one node: mostly nothing has changed.
        """

    async def node(self, node: ProviderId) -> Node | None:
        """One node as it is now; None if there is no such node."""

    async def node_of_allocation(self, allocation: UUID) -> ProviderId | None:
        """The node of one of Ironic's own allocations, whose notifications do not name it. None if the allocation has none,
        or there is no such allocation, or Ironic is too old to have any.
        """

    async def vifs(self, node: ProviderId) -> tuple[str, ...] | IronicRefused:
        """The network ports (VIFs) that are attached to a node."""

    async def validate(self, node: ProviderId) -> Mapping[str, InterfaceCheck] | IronicRefused:
        """Ask Ironic whether a node has what each of its interfaces needs."""


class ChangesNodes(Protocol):
    """The requests that change nodes. Each returns None when Ironic has accepted it; whether the change happens is
    seen at the node.

    If the answer to a request is lost, an error is raised, though Ironic may have accepted the request. The caller
    reads the node before it repeats the request; after that, every request is safe to repeat.
    """

    def order_only_if(self, may_act_on: Callable[[ProviderId], bool]) -> None:
        """Call `may_act_on` immediately before each request that changes a node, and before each retry. If it returns
        false, NoLongerOurs is raised and nothing is sent.
        """

    async def patch(self, node: ProviderId, changes: Sequence[PatchOperation]) -> IronicRefused | None: ...

    async def set_provision_state(
        self, node: ProviderId, target: str, *, configdrive: Mapping[str, Any] | str | None = None
    ) -> IronicRefused | None:
        """Order a transition by its target or verb: `active`, `deleted`, `rebuild`, `manage`, `provide`, ..."""

    async def attach_vif(self, node: ProviderId, vif: str) -> IronicRefused | None: ...

    async def detach_vif(self, node: ProviderId, vif: str) -> IronicRefused | None: ...


class IronicApi(ReadsNodes, ChangesNodes, Protocol):
    """Ironic's REST API as far as the daemon uses it: to read nodes, and to change them."""
