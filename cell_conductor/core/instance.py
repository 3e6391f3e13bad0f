"""An instance in its cell: one frozen row, with its unconfirmed messages.

    unknown    no order has arrived yet; no row is stored in this state
    building   an attempt is with a host; it ends with the host's answer, or by a timeout
    swapping   the host failed or fell silent; placement is asked to move the claim to the next alternate; or the API level
               is asked for further alternates
    active     built
    rebuilding the host builds it anew, from another image; it ends with the host's answer, or by a timeout
    moving     on its way to another host, or back (moving.py)
    stopped    switched off on its host, and keeps its share (moving.py)
    shelved    the same, by an order to shelve it (moving.py)
    offloaded  saved as an image: no host has it, and it holds nothing; but a silent host may keep something (transition.py)
    moved      runs on the other host; the move waits to be confirmed or reverted
    broken     a rebuild or a move failed: the host still has the instance, but it does not run; the API level sees an error
    error      given up, with the reason of every attempt
    deleting   to be deleted; the host has the order, or the order to place it has not arrived yet
    deleted    gone; the row stays for a while, to recognise late messages

An instance ends as active or broken (until it is rebuilt, moved or deleted), error, or deleted.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal, TypedDict

from msgspec import Struct

from bus.messages.build import (
    AlternatesSpent,
    AttemptFailed,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceMoved,
    Move,
    Rebuild,
)
from bus.messages.cell import (
    AdoptGuest,
    AdoptInCell,
    DeployInstance,
    DestroyInstance,
    LeaveGuest,
    PlaceInCell,
    ReceiveInstance,
    RedeployInstance,
    RespawnInstance,
    SpawnInstance,
    StartInstance,
    StopInstance,
    UndeployInstance,
)
from bus.messages.placement import ReleaseClaim
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.hosts import NODE
from engine.inventories import Choice, ConsumerId, ProviderId

State = Literal[
    "unknown",
    "building",
    "swapping",
    "active",
    "rebuilding",
    "moving",
    "moved",
    "stopped",
    "shelved",
    "offloaded",
    "broken",
    "error",
    "deleting",
    "deleted",
]
# The orders to a host, which is a hypervisor or a bare-metal node.
Spawn = SpawnInstance | DeployInstance
Destroy = DestroyInstance | UndeployInstance | LeaveGuest
Rebuilding = RespawnInstance | RedeployInstance
HostOrder = Spawn | AdoptGuest | Destroy | Rebuilding | StopInstance | StartInstance | ReceiveInstance
InstanceEvents = InstanceActive | InstanceMoved | InstanceFailed | InstanceDeleted | AlternatesSpent
OutboxMessage = HostOrder | ReleaseClaim | InstanceEvents
SPAWNS = (SpawnInstance, DeployInstance)
DESTROYS = (DestroyInstance, UndeployInstance, LeaveGuest)
ADOPTS = (AdoptGuest,)
REBUILDS = (RespawnInstance, RedeployInstance)
MOVES = (StopInstance, StartInstance, ReceiveInstance)
ORDERS = (*SPAWNS, *ADOPTS, *DESTROYS, *REBUILDS, *MOVES)
# Draws an id that nobody can foresee.
DrawId = Callable[[], ConsumerId]


class Pending(Struct, frozen=True, gc=False):
    """A message that was sent, and that the broker may not have confirmed yet."""

    sequence: int
    at: datetime
    message: OutboxMessage


class HeldClaim(Struct, frozen=True, gc=False):
    """The claim of a consumer by one attempt. Releasing it does not affect a later attempt."""

    consumer: ConsumerId
    attempt: int


class Cleanup(Struct, frozen=True, omit_defaults=True, gc=False):
    """A host that may still have something of an attempt, and must destroy it.

    The claims in `release` stay held until the host confirms that it has done so. Images as which the instance was saved go with it,
    by moves up to `saved_until`.
    """

    attempt: int
    host: ProviderId
    release: tuple[HeldClaim, ...]
    saved_until: int = 0


class Saves(Struct, frozen=True, gc=False):
    """The last order to save the instance as an image: the number of its move, and the host. Images of earlier ones may be left, too."""

    number: int
    host: ProviderId


# The steps of a move (moving.py).
Step = Literal["claiming", "stopping", "freeing", "receiving", "leaving", "returning", "restarting"]


class Moving(Struct, frozen=True, omit_defaults=True, gc=False):
    """A move of an instance until it has ended, also while it waits to be confirmed.

    `source` is the host from which the instance moves, and knows it by `source_attempt`. `was` is the instance's state
    before the move. It is `rebuilding` also if the instance was in error and its host is still asked how a rebuild has
    ended. `heir` holds the rest of the source's share, by `heir_attempt`; that is 0 if placement has granted no
    destination yet.

    `is_stopped`: the source was ordered to stop the instance. `has_asked`: placement was asked for the next attempt. It
    may still grant a late copy of that question, even if it refused it at first. `outcome` is set once it is decided
    how the move ends, and `reason` says why. No further destination is tried after that.
    """

    step: Step
    source: Choice
    source_attempt: int
    was: State
    heir_attempt: int = 0
    heir: ConsumerId | None = None

    def source_heir(self) -> "HeldClaim":
        """The claim of the heir that holds the rest of the share of the move's source."""
        assert self.heir is not None, "placement has granted a destination, and its heir"
        return HeldClaim(self.heir, self.heir_attempt)

    is_stopped: bool = False
    has_asked: bool = False
    outcome: Literal["", "reverted", "aborted", "failed", "done"] = ""
    reason: str = ""


class Instance(Struct, frozen=True, omit_defaults=True, gc=False):
    """The row of an instance.

    `attempt` is the attempt whose share the instance holds, as far as the cell knows. While a swap is asked, it may hold
    that of the next attempt already. The host knows the instance by `attempt`. After a move that came back it knows it by
    `kept_attempt`: the share was claimed anew, but nothing was built anew.

    `order` is None if the instance was removed before the order to place it arrived. `alternates` are those not tried
    yet. `host` is also None while the instance is offloaded and holds nothing. `saved` is the image that it was saved as,
    until it runs again. `was_silent`: the host was given up without an answer, so it is unknown what it has. `rebuild`
    and `move` are the last ones that were ordered. `heir` is the consumer that takes over what the attempt holds, at the
    next swap: drawn before the first question that names it. `flavor` is set after a resize, and if the host is an alternate with
    another flavor than the order's; `image` and `image_properties` are those of the last rebuild that was done, the latter None
    if those of the boot count.
    """

    id: InstanceId
    request_id: RequestId
    state: State
    changed_at: datetime
    order: PlaceInCell | AdoptInCell | None = None
    attempt: int = 0
    host: Choice | None = None
    alternates: tuple[Choice, ...] = ()
    was_silent: bool = False
    heir: ConsumerId | None = None
    # How often placement was asked for the next alternate without an answer.
    tries: int = 0
    failures: tuple[AttemptFailed, ...] = ()
    reason: str = ""
    cleanups: tuple[Cleanup, ...] = ()
    # When the state times out, and when hosts are reminded of what they must clean up.
    state_ends_at: datetime | None = None
    remind_at: datetime | None = None
    rebuild: Rebuild | None = None
    move: Move | None = None
    moving: Moving | None = None
    flavor: Flavor | None = None
    image: Image | None = None
    image_properties: dict[str, str] | None = None
    kept_attempt: int = 0
    saved: str = ""
    # None if no image of the instance can be left.
    saves: Saves | None = None
    # It goes back to the cloud that it came from: its host forgets it, and must not destroy it.
    given_back: bool = False
    # The `number` of the last message that its bare-metal node is gone, or back.
    gone_or_back: int = 0
    # While the instance waits for further alternates: the sequence of the event that asks for them.
    spent: int = 0
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
        """The highest attempt that placement may have granted to this instance."""
        return self.attempt + 1 if self.is_asking else self.attempt

    @property
    def is_asking(self) -> bool:
        """Is placement asked for the next attempt? Then it may have granted it without the cell knowing."""
        step = self.moving.step if self.moving is not None else ""
        return self.state == "swapping" or step in ("claiming", "returning")

    @property
    def ends_by(self) -> datetime:
        """The time by which the instance must be built: the deadline of the request, or of the move that unshelves it."""
        if self.saved and self.move is not None:
            return self.move.ends_by
        assert self.order is not None, "an instance that is built was placed"
        return self.order.ends_by

    @property
    def is_unshelving(self) -> bool:
        """Is the instance offloaded (shelved without a host), and being built anew?"""
        return bool(self.saved) and self.state in ("swapping", "building")

    @property
    def keeps_share(self) -> bool:
        """Does the instance's own claim stay held because a silent host has not cleaned up yet?"""
        return any(held.consumer == self.id for each in self.cleanups for held in each.release)

    @property
    def must_clean_up(self) -> bool:
        """Was the host of the current attempt given up, and may it still have something of the instance?"""
        return any(each.attempt == self.host_attempt for each in self.cleanups)

    @property
    def is_stranded(self) -> bool:
        """Did placement refuse to move the instance's claim back to the source of its move? The source has the instance, and
        the instance still holds the share of the destination.
        """
        return self.state == "broken" and self.moving is not None and self.moving.step == "returning"

    @property
    def host_attempt(self) -> int:
        """The attempt by which the current host knows the instance."""
        return self.kept_attempt or self.attempt

    def is_current(self, attempt: int, host: ProviderId) -> bool:
        """Is this the current attempt, on the current host, and still counted on?"""
        return (
            self.state
            in ("building", "active", "rebuilding", "moving", "moved", "stopped", "shelved", "broken")
            and self.host_attempt == attempt
            and self.host is not None
            and self.host.share.host == host
        )


def flavor_of(row: Instance, order: PlaceInCell) -> Flavor:
    return row.flavor or order.flavor


def spawn_order(row: Instance, order: PlaceInCell, host: Choice) -> Spawn:
    """The order to this host to build the instance, as the row's attempt."""
    if host.kind == NODE:
        return _deploy_order(row, order, host)
    return SpawnInstance(
        cell=order.cell,
        instance=row.id,
        attempt=row.attempt,
        host=host.share.host,
        flavor=flavor_of(row, order),
        share=host.share,
        name=order.name,
        project=order.project,
        image=Image(source=row.saved) if row.saved else row.image or order.image,
        from_saved=bool(row.saved),
        stopped=row.moving is not None and row.moving.was == "stopped",
        image_properties=order.image_properties if row.image_properties is None else row.image_properties,
        config_drive=order.config_drive,
        ports=order.ports,
        **_evacuated_from(row),
    )


class _Evacuated(TypedDict, total=False):
    source: ProviderId
    source_attempt: int


def _evacuated_from(row: Instance) -> _Evacuated:
    moving, move = row.moving, row.move
    if moving is None or move is None or move.kind != "evacuate":
        return {}
    return {"source": moving.source.share.host, "source_attempt": moving.source_attempt}


def _properties_with(rebuild: Rebuild, order: PlaceInCell) -> dict[str, str]:
    """The properties that count with the image of this rebuild: those of the boot if it says none."""
    return order.image_properties if rebuild.image_properties is None else rebuild.image_properties


def _deploy_order(row: Instance, order: PlaceInCell, node: Choice) -> DeployInstance:
    return DeployInstance(
        cell=order.cell,
        instance=row.id,
        attempt=row.attempt,
        host=node.share.host,
        flavor=flavor_of(row, order),
        share=node.share,
        name=order.name,
        project=order.project,
        user=order.user,
        image_properties=order.image_properties,
        image=order.image,
        config_drive=order.config_drive,
        ports=order.ports,
    )


def rebuild_order(row: Instance, order: PlaceInCell, host: Choice, rebuild: Rebuild) -> Rebuilding:
    """The order to this host to build the instance anew from the rebuild's image; everything else stays as it was."""
    if host.kind == NODE:
        return _redeploy_order(row, order, host, rebuild)
    return RespawnInstance(
        cell=order.cell,
        instance=row.id,
        attempt=row.host_attempt,
        host=host.share.host,
        number=rebuild.number,
        flavor=flavor_of(row, order),
        share=host.share,
        image=rebuild.image,
        name=order.name,
        project=order.project,
        image_properties=_properties_with(rebuild, order),
        config_drive=order.config_drive,
        ports=order.ports,
    )


def _redeploy_order(row: Instance, order: PlaceInCell, node: Choice, rebuild: Rebuild) -> RedeployInstance:
    return RedeployInstance(
        cell=order.cell,
        instance=row.id,
        attempt=row.host_attempt,
        host=node.share.host,
        number=rebuild.number,
        flavor=flavor_of(row, order),
        image=rebuild.image,
        name=order.name,
        image_properties=_properties_with(rebuild, order),
        config_drive=order.config_drive,
    )


def kind_of(row: Instance, host: ProviderId) -> str:
    """The kind of a host that has or had this instance: a bare-metal node, or a hypervisor (empty, if it is unknown).

    It is looked up among the hosts that the order to place the instance names. A node is always one of them, since an
    instance on a node never moves to another host.
    """
    return next((each.kind for each in choices_of(row.order) if each.share.host == host), "")


def choices_of(order: PlaceInCell | None) -> tuple[Choice, ...]:
    return () if order is None else (order.chosen, *order.alternates)


class ConductorRules(Struct, frozen=True):
    """The settings by which a conductor decides."""

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

    def time_to_build(self, host: Choice) -> timedelta:
        """How long to wait for this host's next message about an attempt, before it is given up."""
        return self.deploy_timeout if host.kind == NODE else self.attempt_timeout

    def time_to_destroy(self, host: Choice | None) -> timedelta:
        """How long a delete waits for this host to destroy the instance."""
        return self.undeploy_timeout if host is not None and host.kind == NODE else self.destroy_timeout
