"""The rows of a cell: its instances, each with its unconfirmed messages, and what is known of its hosts. All are frozen values.

The states of an instance:

    unknown    no order has arrived yet; no row is stored in this state
    building   an attempt is with a host; it ends with the host's answer, or by a timeout
    swapping   the host failed or fell silent; placement is asked to move the claim to the next alternate; or the API level
               is asked for further alternates
    active     built
    rebuilding the host builds it anew, from another image; it ends with the host's answer, or by a timeout
    moving     on its way to another host, or back (moving.py)
    stopped    switched off on its host, and keeps its share (moving.py)
    shelved    the same, by an order to shelve it (moving.py)
    offloaded  saved as an image: no host has it, and it holds nothing; but a silent host may keep something (swapping.py)
    moved      runs on the other host; the move waits to be confirmed or reverted
    broken     a rebuild or a move failed: the host still has the instance, but it does not run; the API level sees an error
    error      given up, with the reason of every attempt
    deleting   to be deleted; the host has the order, or the order to place it has not arrived yet
    deleted    gone; the row stays for a while, to recognise late messages

An instance ends as active or broken (until it is rebuilt, moved or deleted), error, or deleted.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Literal

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
    AdoptDeployed,
    AdoptGuest,
    AdoptInCell,
    DeployInstance,
    DestroyInstance,
    LeaveGuest,
    LeaveNode,
    PlaceInCell,
    ReceiveInstance,
    RedeployInstance,
    RespawnInstance,
    SpawnInstance,
    StartInstance,
    StopInstance,
    UndeployInstance,
)
from bus.messages.hosts import HeldAttempt, SetHostInCell
from bus.messages.placement import ClaimResources, ReleaseClaim, SwapClaim
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.hosts import NODE, HostMode
from engine.inventories import Choice, ConsumerId, ProviderId
from engine.refusals import ClaimVerdict

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
Destroy = DestroyInstance | UndeployInstance | LeaveGuest | LeaveNode
Rebuilding = RespawnInstance | RedeployInstance
Adopt = AdoptGuest | AdoptDeployed
HostOrder = Spawn | Adopt | Destroy | Rebuilding | StopInstance | StartInstance | ReceiveInstance
InstanceEvents = InstanceActive | InstanceMoved | InstanceFailed | InstanceDeleted | AlternatesSpent
OutboxMessage = HostOrder | ReleaseClaim | InstanceEvents
SPAWNS = (SpawnInstance, DeployInstance)
DESTROYS = (DestroyInstance, UndeployInstance, LeaveGuest, LeaveNode)
ADOPTS = (AdoptGuest, AdoptDeployed)
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


# What a conductor knows of the cell's hosts: the modes that operators have set, and which hosts are silent.
#
# A host is lost if it is silent, or set down or dead. Attempts on it end at once and take their alternates. Bare-metal
# nodes are never lost by silence: Ironic works on while their daemons are away. After `dead` it is certain that nothing
# runs on a host, so nobody waits for it to clean up.


class CellHost(Struct, frozen=True):
    """A host whose mode an operator has set. `word` is the last order to set it; each order has a number.

    `cleaned` is the number of the order after which the host was found to have no attempts but those that the cell
    counts on.
    """

    word: SetHostInCell
    cleaned: int = 0

    @property
    def mode(self) -> HostMode:
        return self.word.setting.mode

    @property
    def must_clean(self) -> bool:
        """Must the host still destroy attempts that are not its own, before it may be used again?"""
        return self.mode == "dead" or (self.word.must_clean and self.cleaned < self.word.setting.number)

    def is_cleaned_by(self, number: int) -> bool:
        """Is the host clean after it has listed, for the order with this number, that it has nothing but its own?

        Not if it was set again since, or lists what it has without being asked (0): it is asked again. Repeated lists clean it
        again, since the event that told so may have been lost.
        """
        return self.mode != "dead" and self.word.must_clean and self.word.setting.number == number


class HeardHost(Struct, frozen=True):
    """A host that some conductor of the cell has heard. `silent_since` is when a conductor found it silent; None if it was
    heard since.
    """

    id: ProviderId
    silent_since: datetime | None = None


class HostStates(Struct, frozen=True):
    """The hosts whose mode was set, and the hosts that are silent.

    Both have the hosts' ids as integers: each boot looks its host up, and Python computes the hash of a UUID at each lookup.
    """

    set: Mapping[int, CellHost] = {}
    silent: AbstractSet[int] = frozenset()

    def is_dead(self, host: ProviderId) -> bool:
        known = self.set.get(host.int)
        return known is not None and known.mode == "dead"

    def why_lost(self, host: Choice) -> str:
        """Why attempts on this host end, if the host is lost: an operator set it down or dead, or its heartbeats have
        stopped. Empty if it is not lost.
        """
        known = self.set.get(host.share.host.int)
        if known is not None and known.mode in ("down", "dead"):
            return ("the host is dead" if known.mode == "dead" else "the host is set down") + _because(known)
        is_silent = host.share.host.int in self.silent and host.kind != NODE
        return "the host's heartbeats have stopped" if is_silent else ""

    def source_behind(self, row: Instance) -> ProviderId | None:
        """The source of the row's move, if the move names a later setting of it than is known here."""
        if row.moving is None or row.move is None or row.move.source_epoch is None:
            return None
        source = row.moving.source.share.host
        known = self.set.get(source.int)
        is_behind = row.move.source_epoch > (known.word.setting.number if known is not None else 0)
        return source if is_behind else None

    def why_not_as_of(self, host: Choice, epoch: int | None) -> str:
        """Why nothing is decided about this host by what was known when its setting had this number; empty if that is still so, or if
        no number is given.
        """
        known = self.set.get(host.share.host.int)
        number = known.word.setting.number if known is not None else 0
        if epoch is None or number == epoch:
            return ""
        mode = known.mode if known is not None else "up"
        return f"host {host.name} was set since: it is {mode} by setting {number}, and the order is as of setting {epoch}"

    def why_not_next(self, choice: Choice) -> str:
        """Why this alternate is passed over; empty if it may be tried."""
        known = self.set.get(choice.share.host.int)
        if known is not None and known.mode == "draining":
            return "the host is draining" + _because(known)
        if known is not None and known.mode == "up" and known.must_clean:
            return "the host was dead, and has not cleaned up yet"
        return self.why_lost(choice)

    def lost(self) -> frozenset[int]:
        """The hosts that are silent, or set down or dead. When a host becomes one of these, the rows that wait for it are
        looked at.
        """
        return frozenset(
            {host for host, known in self.set.items() if known.mode in ("down", "dead")} | self.silent
        )

    def dead(self) -> frozenset[int]:
        return frozenset({host for host, known in self.set.items() if known.mode == "dead"})

    def with_modes(self, of: Iterable[ProviderId], read: Mapping[ProviderId, CellHost]) -> "HostStates":
        """With the modes of these hosts as they were just read; none was set for a host that is not among those."""
        old = {each.int for each in of}
        modes = {host: known for host, known in self.set.items() if host not in old}
        return HostStates(modes | {host.int: known for host, known in read.items()}, self.silent)


ALL_UP = HostStates()


def _because(known: CellHost) -> str:
    return f": {known.word.setting.reason}" if known.word.setting.reason else ""


def newer(known: CellHost | None, word: SetHostInCell) -> CellHost | None:
    """The host after this order to set its mode; None if an equal or later order is known already."""
    if known is not None and known.word.setting.number >= word.setting.number:
        return None
    return CellHost(word)


def concerns(row: Instance, hosts: HostStates) -> bool:
    """Does the row wait for a host that is lost, so that the conductor must act on it?

    That is the host of the row's next step, if it is silent, down or dead. It is also a host that must still destroy
    something, but only if it is dead.
    """
    host = awaited(row)
    if host is not None and hosts.why_lost(host):
        return True
    return any(hosts.is_dead(each.host) for each in row.cleanups)


def hosts_of(rows: Iterable[Instance], *, next_ones: bool = False) -> set[ProviderId]:
    """The hosts on which these instances have something, or may have left something; also the `next_ones`, if wanted."""
    named: set[ProviderId] = set()
    for row in rows:
        choices = (row.host, row.moving.source if row.moving is not None else None)
        named |= {each.share.host for each in choices if each is not None}
        named |= {each.host for each in row.cleanups}
        if next_ones:
            named |= {each.share.host for each in row.alternates}
    return named


def awaited(row: Instance) -> Choice | None:
    """The host that must do the next step of a build, a rebuild or a move, and is given up if it is lost.

    None if the row waits for no such host. The source of a move that is to run the instance again is no such host: the
    row waits for it even while it is lost.
    """
    if row.state in ("building", "rebuilding"):
        return row.host
    if row.state != "moving" or row.moving is None:
        return None
    match row.moving.step:
        case "stopping":
            return row.moving.source
        case "receiving" | "leaving":
            return row.host
        case _:
            return None


def foreign(
    rows: Mapping[InstanceId, Instance],
    host: ProviderId,
    attempts: Iterable[HeldAttempt],
    *,
    destroys_unknown: bool,
) -> list[HeldAttempt]:
    """The attempts on this host that are not its own any more: the instance is gone, or elsewhere.

    Without `destroys_unknown`, attempts that the cell does not know to have ordered are not among them: its database was
    restored, and they may be all that there is of an instance. The audit names these, and a person decides.
    """
    found: list[HeldAttempt] = []
    for each in attempts:
        row = rows.get(each.instance)
        if row is None or each.attempt > row.last_attempt:
            if destroys_unknown:
                found.append(each)
        elif not (row.is_current(each.attempt, host) or _is_source(row, each.attempt, host)):
            found.append(each)
    return found


def _is_source(row: Instance, attempt: int, host: ProviderId) -> bool:
    """Is this the host from which the instance moves, and to which it may come back?"""
    moving = row.moving
    return moving is not None and (moving.source_attempt, moving.source.share.host) == (attempt, host)


# What is asked of placement about an instance.
Question = SwapClaim | ClaimResources


class SwapAnswered(Struct, frozen=True):
    """Placement's verdict on a swap, or on the first claim for an instance that is to be unshelved.

    The verdict is None if placement could not be asked or did not answer.
    """

    instance: InstanceId
    swap: Question
    verdict: ClaimVerdict | None
