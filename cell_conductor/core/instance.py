"""An instance in its cell: one frozen row, with its unconfirmed messages.

    unknown    no order has arrived yet; no row is stored in this state
    building   an attempt is with a host; it ends with the host's answer, or by a timeout
    swapping   the host failed or fell silent; placement is asked to move the claim to the next alternate
    active     built
    rebuilding the host writes another image; it ends with the host's answer, or by a timeout
    broken     a rebuild failed: the host still has the instance, but it does not run; the API level sees an error
    error      given up, with the reason of every attempt
    deleting   to be deleted; the host has the order, or the order to place it has not arrived yet
    deleted    gone; the row stays for a while, to recognise late messages

An instance ends as active or broken (until it is rebuilt or deleted), error, or deleted.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct

from bus.message import ConsumerId, ProviderId
from bus.messages.build import (
    AttemptFailed,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceId,
    Rebuild,
    RequestId,
)
from bus.messages.cell import (
    Choice,
    DeployInstance,
    DestroyInstance,
    PlaceInCell,
    RedeployInstance,
    SpawnInstance,
    UndeployInstance,
)
from bus.messages.hosts import NODE
from bus.messages.placement import ReleaseClaim

State = Literal[
    "unknown",
    "building",
    "swapping",
    "active",
    "rebuilding",
    "broken",
    "error",
    "deleting",
    "deleted",
]
# The orders to a host, which is a hypervisor or a bare-metal node.
Spawn = SpawnInstance | DeployInstance
Destroy = DestroyInstance | UndeployInstance
HostOrder = Spawn | Destroy | RedeployInstance
OutboxMessage = HostOrder | ReleaseClaim | InstanceActive | InstanceFailed | InstanceDeleted
SPAWNS = (SpawnInstance, DeployInstance)
DESTROYS = (DestroyInstance, UndeployInstance)
REBUILDS = (RedeployInstance,)
ORDERS = (*SPAWNS, *DESTROYS, *REBUILDS)


class Pending(Struct, frozen=True, gc=False):
    """A message that was sent and may not be confirmed."""

    sequence: int
    at: datetime
    message: OutboxMessage


class HeldClaim(Struct, frozen=True, gc=False):
    """The claim of a consumer by one attempt, and by no later one."""

    consumer: ConsumerId
    attempt: int


class Cleanup(Struct, frozen=True, gc=False):
    """A host that may still have something of an attempt. The claims in `release` stay held until it confirms the
    removal.
    """

    attempt: int
    host: ProviderId
    release: tuple[HeldClaim, ...]


class Instance(Struct, frozen=True, omit_defaults=True, gc=False):
    """A row. `attempt` is the one whose share the instance holds, as far as the cell knows; during a swap the next may
    already hold it.

    `order` is None if the instance was removed before it was placed. `alternates` are those not tried yet.
    `was_silent`: the host of the attempt did not answer, so it is unknown what it has. `is_clean`: it confirmed that it
    has nothing. `rebuild` is the last one that was ordered.
    """

    id: InstanceId
    request_id: RequestId
    state: State
    changed_at: datetime
    order: PlaceInCell | None = None
    attempt: int = 0
    host: Choice | None = None
    alternates: tuple[Choice, ...] = ()
    was_silent: bool = False
    is_clean: bool = False
    # How often placement was asked for the next alternate without an answer.
    tries: int = 0
    failures: tuple[AttemptFailed, ...] = ()
    reason: str = ""
    cleanups: tuple[Cleanup, ...] = ()
    # When the state times out, and when hosts are reminded of what they must clean up.
    state_ends_at: datetime | None = None
    remind_at: datetime | None = None
    rebuild: Rebuild | None = None
    # Of its last message. Each order of the API level names the sequence that the instance has there, and the cell continues
    # above it: readers drop states with lower ones, also after another cell.
    sequence: int = 0
    outbox: tuple[Pending, ...] = ()

    @property
    def due_at(self) -> datetime | None:
        """When the next timeout of this row is due."""
        ends_at, remind_at = self.state_ends_at, self.remind_at
        if ends_at is None or remind_at is None:
            return ends_at or remind_at
        return min(ends_at, remind_at)

    @property
    def last_attempt(self) -> int:
        """The highest attempt that placement may have granted."""
        return self.attempt + 1 if self.state == "swapping" else self.attempt


def spawn_order(row: Instance, order: PlaceInCell, host: Choice) -> Spawn:
    """The order to the host of the attempt to build the instance."""
    if host.kind == NODE:
        return _deploy_order(row, order, host)
    return SpawnInstance(
        cell=order.cell,
        instance=row.id,
        attempt=row.attempt,
        host=host.share.host,
        flavor=order.flavor,
        share=host.share,
        name=order.name,
    )


def _deploy_order(row: Instance, order: PlaceInCell, node: Choice) -> DeployInstance:
    return DeployInstance(
        cell=order.cell,
        instance=row.id,
        attempt=row.attempt,
        host=node.share.host,
        flavor=order.flavor,
        share=node.share,
        name=order.name,
        project=order.project,
        user=order.user,
        image_properties=order.image_properties,
        image=order.image,
        config_drive=order.config_drive,
        ports=order.ports,
    )


def redeploy_order(row: Instance, order: PlaceInCell, node: Choice, rebuild: Rebuild) -> RedeployInstance:
    """The order to the node of the attempt to write this image; everything else is as in the order to place it."""
    return RedeployInstance(
        cell=order.cell,
        instance=row.id,
        attempt=row.attempt,
        host=node.share.host,
        number=rebuild.number,
        flavor=order.flavor,
        image=rebuild.image,
        name=order.name,
        image_properties=order.image_properties,
        config_drive=order.config_drive,
    )


def kind_of(row: Instance, host: ProviderId) -> str:
    """The kind of a host of this instance. Every host of an instance is a choice of its order."""
    order = row.order
    choices = () if order is None else (order.chosen, *order.alternates)
    return next((each.kind for each in choices if each.share.host == host), "")


class Rules(Struct, frozen=True):
    """The operator's settings, and a function that names the consumer which holds the share of a silent host."""

    cell: str
    attempt_timeout: timedelta
    destroy_timeout: timedelta
    # The first two for bare-metal nodes.
    deploy_timeout: timedelta
    undeploy_timeout: timedelta
    remind_every: timedelta
    # Longer than a question may stay unanswered: until then it belongs to the process that asked it.
    ask_lease: timedelta
    retry_delay_first: timedelta
    retry_delay_max: timedelta
    kept_after_end: timedelta
    cleanup_consumer: Callable[[InstanceId, int], ConsumerId]

    def time_to_build(self, host: Choice) -> timedelta:
        """How long an attempt on this host may last without a message about it."""
        return self.deploy_timeout if host.kind == NODE else self.attempt_timeout

    def time_to_destroy(self, host: Choice | None) -> timedelta:
        """How long a delete waits for this host."""
        return self.undeploy_timeout if host is not None and host.kind == NODE else self.destroy_timeout
