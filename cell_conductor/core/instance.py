"""An instance as its cell knows it: one frozen row, with what it has said and nobody has confirmed yet.

    unknown    nothing is known yet; no row is stored so
    building   an attempt is with a host; it ends with the host's word, or by its deadline
    swapping   the host failed or fell silent; placement is asked to move the claim to the next alternate
    active     built
    rebuilding the host writes another image; it ends with the host's word, or by its deadline
    broken     a rebuild failed: its host still has it, but it does not run; the API level is told an error
    error      given up, with every attempt's reason
    deleting   to be deleted; the host has the order, or the order to place it is still to come
    deleted    gone; the row stays for a while, so that what is late is known as late

Its ends are active and broken (until it is rebuilt or deleted), error, or deleted.
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
# The orders to a host, a hypervisor or a bare-metal node.
Spawn = SpawnInstance | DeployInstance
Destroy = DestroyInstance | UndeployInstance
HostOrder = Spawn | Destroy | RedeployInstance
Word = HostOrder | ReleaseClaim | InstanceActive | InstanceFailed | InstanceDeleted
SPAWNS = (SpawnInstance, DeployInstance)
DESTROYS = (DestroyInstance, UndeployInstance)
REBUILDS = (RedeployInstance,)
ORDERS = (*SPAWNS, *DESTROYS, *REBUILDS)

# The API level counts what it says of an instance before its cell has it; we go on from here, so that readers, who
# drop what is older, never take our first word for one of its last.
SEQUENCE_BEFORE_CELL = 100


class Pending(Struct, frozen=True, gc=False):
    """Said, and not known to be confirmed."""

    sequence: int
    at: datetime
    message: Word


class Held(Struct, frozen=True, gc=False):
    """What a consumer holds by this attempt, and no later one."""

    consumer: ConsumerId
    attempt: int


class Cleanup(Struct, frozen=True, gc=False):
    """A host that may still have something of an attempt: until it confirms that it has not, what it gave stays held."""

    attempt: int
    host: ProviderId
    release: tuple[Held, ...]


class Instance(Struct, frozen=True, omit_defaults=True, gc=False):
    """`attempt` is the one whose share the instance holds, as far as we know; while we swap, the next may hold already.

    `order` is None if the instance was removed before it was placed. `alternates` are those not yet tried. The host of
    the attempt `was_silent` if nobody knows what it has; `is_clean` if it said that it has nothing. `rebuild` is the last
    that was ordered, if any was.
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
    # When the state has lasted long enough, and when hosts are reminded of what they have to clean up.
    state_ends_at: datetime | None = None
    remind_at: datetime | None = None
    rebuild: Rebuild | None = None
    sequence: int = SEQUENCE_BEFORE_CELL
    outbox: tuple[Pending, ...] = ()

    @property
    def due_at(self) -> datetime | None:
        """When time has something to do here."""
        ends_at, remind_at = self.state_ends_at, self.remind_at
        if ends_at is None or remind_at is None:
            return ends_at or remind_at
        return min(ends_at, remind_at)

    @property
    def last_attempt(self) -> int:
        """The highest that placement may have granted."""
        return self.attempt + 1 if self.state == "swapping" else self.attempt


def spawning(row: Instance, order: PlaceInCell, host: Choice) -> Spawn:
    """To the host of the attempt: build what was ordered."""
    if host.kind == NODE:
        return _deploying(row, order, host)
    return SpawnInstance(
        cell=order.cell,
        instance=row.id,
        attempt=row.attempt,
        host=host.share.host,
        flavor=order.flavor,
        share=host.share,
        name=order.name,
    )


def _deploying(row: Instance, order: PlaceInCell, node: Choice) -> DeployInstance:
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


def redeploying(row: Instance, order: PlaceInCell, node: Choice, rebuild: Rebuild) -> RedeployInstance:
    """To the node that has the attempt: write this image, and all else as it was ordered when it was placed."""
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
    # Nearly always the one that it has. To compare two UUIDs costs more than all else here.
    if row.host is not None and row.host.share.host is host:
        return row.host.kind
    order = row.order
    choices = () if order is None else (order.chosen, *order.alternates)
    return next((each.kind for each in choices if each.share.host == host), "")


class Rules(Struct, frozen=True):
    """What an operator tuned, and how the consumer is called that holds what a silent host may still have."""

    cell: str
    attempt_timeout: timedelta
    destroy_timeout: timedelta
    # The same two where the host is a bare-metal node.
    deploy_timeout: timedelta
    undeploy_timeout: timedelta
    remind_every: timedelta
    # Longer than a question may go unanswered: until then it is with whoever asked it.
    ask_lease: timedelta
    retry_delay_first: timedelta
    retry_delay_max: timedelta
    kept_after_end: timedelta
    cleanup_consumer: Callable[[InstanceId, int], ConsumerId]

    def time_to_build(self, host: Choice) -> timedelta:
        """How long an attempt on this host may last without a word of it."""
        return self.deploy_timeout if host.kind == NODE else self.attempt_timeout

    def time_to_destroy(self, host: Choice | None) -> timedelta:
        """How long a delete waits for this host."""
        return self.undeploy_timeout if host is not None and host.kind == NODE else self.destroy_timeout
