"""The states of an attempt to have an instance on a host, and the host's answers to orders.

An attempt is built on the host or received from another host. Later it may be stopped and started again, rebuilt from
another image, and destroyed. It is identified by its host, instance and number. The host's answer to an order follows from
the attempt's state (`_STEPS`):

`begins`: the driver begins the work. `later`: the answer to the work that goes on answers this order, too. `again`: the host
answers what the attempt is now. `refused`: the host answers the reason, and does nothing. So a repeated order gets the same
answer, and an attempt that was destroyed never runs.

An instance is stopped and started once by each move, and rebuilt once by each rebuild; later ones have higher numbers. Orders
may overtake each other: an order of a move or a rebuild that is older than the last one obeyed, or of the same rebuild, is
handled as a repeated spawn order.

A host receives what the source has: a stopped instance, or any if the move is live. Otherwise the attempt fails at once. So a
late copy of the order never takes over an instance that its source has lost, or runs again.

`save` is an order to stop that also saves the instance as an image. While that image is being made, and when it was made, it is
handled as any order to stop.

A host adopts the guest of an instance that another cloud has built there, as it spawns one; and it leaves such a guest, as it
destroys one. An attempt that was left stays so: an order to destroy it gets the answer again, and does nothing.

A guest that runs may stop without an order: it ends, or somebody kills it. Then its attempt is `stopped`, the host tells so
(`by_itself`), and the instance can be started again.

An instance that is built or received as a stopped one is `stopped` when that has ended, and is started like any other.

An instance that could not be stopped is `built`, and one that could not be started or saved is `stopped`; its `failure` says
why. The next order to stop or to start it begins the work once more. An instance that could not be rebuilt is `broken`: its old
disk is gone, and nothing runs. The next rebuild begins anew.

A host has a limited number of builds at once; an attempt that it receives or rebuilds counts as a build, too. Further
attempts wait for their turn, the earliest first; the conductor's deadline for an attempt runs on meanwhile, and a destroyed
attempt waits no more.

A host forgets attempts: all of them when it restarts, unless its store keeps them; finished ones after a long time. It builds
or receives an unknown attempt when ordered to, and confirms that it is gone when ordered to destroy it. So a spawn order that
arrives after its destroy was forgotten is built once more; the conductor, which has moved on, then orders another destroy.
If the host is silent by then, it lists what it has when it can send again (compute_sim/reporting.py).
"""

from enum import Enum
from typing import Literal

from msgspec import Struct, field, structs

from bus.message import Message
from bus.messages.cell import (
    AdoptGuest,
    DestroyInstance,
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    InstanceStopped,
    LeaveGuest,
    ReceiveInstance,
    RespawnInstance,
    SpawnFailed,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from engine.flavors import InstanceId
from engine.inventories import ProviderId

BuildOrder = SpawnInstance | ReceiveInstance | RespawnInstance
HostOrder = BuildOrder | AdoptGuest | StopInstance | StartInstance | DestroyInstance | LeaveGuest
# What a field of a message takes (`Label`).
LABEL_MAX = 255
# Host, instance and attempt, as integers, since Python computes the hash of a UUID at each lookup.
AttemptKey = tuple[int, int, int]


class Well(Struct, frozen=True):
    """The host works normally."""


class Silent(Struct, frozen=True):
    """The condition of a host whose messages do not arrive: they are lost, or, with `until_s`, kept until then and sent
    late.
    """

    until_s: float | None = None


class Dead(Struct, frozen=True):
    """The host no longer exists."""


Condition = Well | Silent | Dead
WELL = Well()


class Work(Struct, frozen=True):
    """How far a driver's work for an attempt is: it goes on for this time at least, and `failure` says why it fails.

    `runs_on` says of a rebuild that failed before it changed anything that the instance runs as before. `needs_order`: the store
    keeps the order until the work has ended, so that a later process can begin it again.
    """

    left_ms: float = 0.0
    failure: str = ""
    runs_on: bool = False
    needs_order: bool = False


class AttemptState(Enum):
    WAITING = "waiting"
    BUILDING = "building"
    RECEIVING = "receiving"
    BUILT = "built"
    STOPPING = "stopping"
    STOPPED = "stopped"
    STARTING = "starting"
    REBUILDING = "rebuilding"
    BROKEN = "broken"
    FAILED = "failed"
    DESTROYED = "destroyed"

    def __init__(self, state: str) -> None:
        # Attributes, not properties: they are read a dozen times a boot, and to look up a member takes long.
        self.is_over = state in ("failed", "destroyed")
        # Is it one of the builds that a host has at once?
        self.takes_slot = state in ("building", "receiving", "rebuilding")


class AttemptRecord(Struct, frozen=True, gc=False):
    """An attempt on its host, as the store keeps it.

    Its work ends at `ends_s`, and its answer is sent then; None after that. In the table it is `due_s`. `cause` and `trace` are those
    of the order that will be answered. `order` is kept while the attempt waits for its turn. `rank` is the `rank_of` the last order to stop, to start
    or to rebuild that was obeyed. `rebuild` is the number of the rebuild that the answer is about; 0 after the attempt was
    stopped or started. `image` names the image as which the stopped instance is saved; with a `failure`, it was not saved.
    """

    cell: str
    host: ProviderId
    instance: InstanceId
    attempt: int
    state: AttemptState
    failure: str = ""
    ends_s: float | None = field(default=None, name="due_s")
    cause: str = ""
    trace: str = ""
    order: BuildOrder | None = None
    rank: int = -1
    rebuild: int = 0
    image: str = ""
    # Built or received without running it.
    stays_stopped: bool = False
    # Given back with its guest: no later order may touch that.
    is_left: bool = False
    # Why its guest, which ran, has stopped without an order.
    by_itself: str = ""
    # The order whose work goes on, if the driver needs it to begin that work again.
    begun_order: BuildOrder | AdoptGuest | StopInstance | DestroyInstance | None = None

    @property
    def key(self) -> AttemptKey:
        return (self.host.int, self.instance.int, self.attempt)


Step = Literal["begins", "later", "again", "refused"]

# By state: what follows from an order to spawn or to receive, to stop, to save, to start, to respawn, and to destroy.
_STEPS: dict[AttemptState | None, tuple[Step, Step, Step, Step, Step, Step]] = {
    None: ("begins", "refused", "refused", "refused", "refused", "begins"),
    AttemptState.WAITING: ("later", "refused", "refused", "later", "begins", "begins"),
    AttemptState.BUILDING: ("later", "refused", "refused", "later", "refused", "begins"),
    AttemptState.RECEIVING: ("later", "refused", "refused", "later", "refused", "begins"),
    AttemptState.BUILT: ("again", "begins", "begins", "again", "begins", "begins"),
    AttemptState.STOPPING: ("later", "later", "begins", "begins", "begins", "begins"),
    AttemptState.STOPPED: ("again", "again", "begins", "begins", "begins", "begins"),
    AttemptState.STARTING: ("later", "begins", "begins", "later", "begins", "begins"),
    AttemptState.REBUILDING: ("later", "refused", "refused", "later", "begins", "begins"),
    AttemptState.BROKEN: ("again", "refused", "refused", "refused", "begins", "begins"),
    AttemptState.FAILED: ("again", "refused", "refused", "again", "refused", "begins"),
    AttemptState.DESTROYED: ("again", "refused", "refused", "refused", "refused", "begins"),
}

_SAVE = 2
_COLUMNS: dict[type[HostOrder], int] = {
    SpawnInstance: 0,
    ReceiveInstance: 0,
    StopInstance: 1,
    StartInstance: 3,
    RespawnInstance: 4,
    DestroyInstance: 5,
    AdoptGuest: 0,
    LeaveGuest: 5,
}
# The state of an attempt after its driver has begun to obey an order.
_BEGUN: dict[type[HostOrder], AttemptState] = {
    SpawnInstance: AttemptState.BUILDING,
    ReceiveInstance: AttemptState.RECEIVING,
    StopInstance: AttemptState.STOPPING,
    StartInstance: AttemptState.STARTING,
    RespawnInstance: AttemptState.REBUILDING,
    DestroyInstance: AttemptState.DESTROYED,
    AdoptGuest: AttemptState.BUILDING,
    LeaveGuest: AttemptState.DESTROYED,
}


def key_of(order: HostOrder) -> AttemptKey:
    return (order.host.int, order.instance.int, order.attempt)


def source_key_of(order: ReceiveInstance) -> AttemptKey:
    return (order.source.int, order.instance.int, order.source_attempt)


def why_not_received(source: AttemptRecord | None, order: ReceiveInstance) -> str:
    """Why the destination of a move cannot take over the source's attempt; empty if it can."""
    if source is None or source.state.is_over:
        return f"the source does not have attempt {order.source_attempt} of it"
    if order.live or source.state is AttemptState.STOPPED:
        return ""
    return f"attempt {order.source_attempt} is not stopped on the source"


def rank_of(order: HostOrder) -> int:
    """The place of this order among all orders to stop, to start or to rebuild its attempt; -1 for other orders.

    Orders are ranked by the number of their move or rebuild. Of one move, the stop comes before the start.
    """
    match order:
        # The most frequent first: msgspec makes `isinstance` slow for messages of other types.
        case SpawnInstance():
            return -1
        case StopInstance(number=number) | RespawnInstance(number=number):
            return 2 * number
        case StartInstance(number=number):
            return 2 * number + 1
        case _:
            return -1


def next_step(known: AttemptRecord | None, order: HostOrder) -> Step:
    """How the host handles this order, in a word of `_STEPS`: `begins`, `later`, `again` or `refused`."""
    steps = _STEPS[known.state if known is not None else None]
    if known is not None and (known.is_left or _is_late(known, order)):
        return steps[0]
    if known is not None and _is_being_destroyed(known, order):
        return "later"
    is_to_save = isinstance(order, StopInstance) and bool(order.save_as) and not _is_saved(known, order)
    return steps[_SAVE if is_to_save else _COLUMNS[type(order)]]


def _is_late(known: AttemptRecord, order: HostOrder) -> bool:
    """Has the host obeyed a later order to stop, to start or to rebuild before, or this same rebuild?"""
    is_same = isinstance(order, RespawnInstance) and order.number == known.rebuild
    # Other orders have a rank below all others.
    return is_same or 0 <= rank_of(order) < known.rank


def _is_being_destroyed(known: AttemptRecord, order: HostOrder) -> bool:
    """Does the work of the same order to destroy go on, or is it not answered? An order that also forgets saved images is another one."""
    if not isinstance(order, DestroyInstance) or known.state is not AttemptState.DESTROYED:
        return False
    begun_order = known.begun_order
    forgets = begun_order.saved_until if isinstance(begun_order, DestroyInstance) else 0
    return known.ends_s is not None and order.saved_until in (0, forgets)


def _is_saved(known: AttemptRecord | None, order: StopInstance) -> bool:
    """Is the instance of this attempt saved as the image that the order names, or is it just being saved?"""
    if known is None or known.image != order.save_as:
        return False
    return known.state is AttemptState.STOPPING or not known.failure


def begun(order: HostOrder, work: Work, at_s: float, *, cause: str = "", trace: str = "") -> AttemptRecord:
    """The attempt after its driver has begun to obey this order. A destroy cannot fail."""
    state = _BEGUN[type(order)]
    record = AttemptRecord(
        cell=order.cell,
        host=order.host,
        instance=order.instance,
        attempt=order.attempt,
        state=state,
        failure="" if state is AttemptState.DESTROYED else work.failure,
        ends_s=at_s + work.left_ms / 1000,
        cause=cause,
        trace=trace,
        rank=rank_of(order),
        begun_order=order
        if work.needs_order and isinstance(order, BuildOrder | AdoptGuest | StopInstance | DestroyInstance)
        else None,
    )
    match order:
        case SpawnInstance() | ReceiveInstance() | AdoptGuest():
            return structs.replace(record, stays_stopped=True) if order.stopped else record
        case StopInstance(save_as=image):
            return structs.replace(record, image=image)
        case RespawnInstance(number=number):
            return structs.replace(record, rebuild=number)
        case _:
            return structs.replace(record, is_left=isinstance(order, LeaveGuest))


def failed(
    order: BuildOrder, failure: str, at_s: float, *, cause: str = "", trace: str = ""
) -> AttemptRecord:
    """The record of an attempt that has failed before its driver began any work."""
    building = begun(order, Work(failure=failure), at_s, cause=cause, trace=trace)
    return structs.replace(building, state=AttemptState.FAILED)


def waiting(order: BuildOrder, *, cause: str = "", trace: str = "") -> AttemptRecord:
    """The record of an attempt that waits for its turn: its host has as many builds as it may have at once."""
    building = begun(order, Work(), 0.0, cause=cause, trace=trace)
    return structs.replace(building, state=AttemptState.WAITING, ends_s=None, order=order)


def answered_later(known: AttemptRecord, order: HostOrder) -> AttemptRecord:
    """The attempt's record after an order that begins no work, because the work of an earlier order has not ended.

    When that work ends, one message of the host answers both orders. Here only the order's rank (`rank_of`) is
    recorded, if it is higher than the recorded one.
    """
    rank = rank_of(order)
    return known if rank <= known.rank else structs.replace(known, rank=rank)


def answered_again(
    known: AttemptRecord, order: HostOrder, at_s: float, *, cause: str = "", trace: str = ""
) -> AttemptRecord:
    """The attempt after an order that changes nothing on the host: its answer is sent again, at once.

    If the order to stop or to start is later than a rebuild, the answer is no longer about that rebuild.
    """
    rank = rank_of(order)
    rebuild = known.rebuild if rank <= known.rank else 0
    stays = rebuild or known.state in (AttemptState.BROKEN, AttemptState.FAILED)
    return structs.replace(
        known,
        failure=known.failure if stays else "",
        image="" if known.failure else known.image,
        ends_s=at_s,
        cause=cause,
        trace=trace,
        rank=max(known.rank, rank),
        rebuild=rebuild,
        by_itself="",
    )


def stopped_by_itself(known: AttemptRecord, why: str, at_s: float) -> AttemptRecord:
    """The record of a built attempt whose guest has stopped without an order. That is told at once."""
    # What failed before, a stop or a rebuild, is answered.
    return structs.replace(
        known, state=AttemptState.STOPPED, failure="", ends_s=at_s, rebuild=0, by_itself=why, cause=""
    )


def refusal_of(known: AttemptRecord | None, order: StopInstance | StartInstance | RespawnInstance) -> Message:
    """The answer to an order that the host refuses."""
    reason = _why_refused(known, order)
    cell, instance, number, host = order.cell, order.instance, order.attempt, order.host
    if isinstance(order, StopInstance):
        return InstanceStopped(
            cell=cell, instance=instance, attempt=number, host=host, failure=reason, number=order.number
        )
    if isinstance(order, RespawnInstance):
        return InstanceRedeployed(
            cell=cell,
            instance=instance,
            attempt=number,
            host=host,
            number=order.number,
            failure=reason,
            is_active=False,
        )
    return SpawnFailed(
        cell=cell, instance=instance, attempt=number, host=host, reason=reason, number=order.number
    )


def _why_refused(known: AttemptRecord | None, order: HostOrder) -> str:
    if known is None:
        return f"the host has no attempt {order.attempt} of it"
    match known.state:
        case AttemptState.DESTROYED:
            return "it was destroyed"
        case AttemptState.FAILED:
            return f"the host does not have it: {known.failure}"
        case AttemptState.BROKEN:
            return f"it could not be rebuilt: {known.failure}"
        case _:
            return "it does not run yet"


def looked_at(
    attempt: AttemptRecord, condition: Condition, work: Work, at_s: float
) -> tuple[AttemptRecord, Message | None]:
    """An attempt after its driver has told how far the `work` is, and the host's answer, if there is one now.

    There is no answer while the work goes on. A silent host gives no answer, or gives it later; a dead host loses the
    attempt.
    """
    if condition is not WELL and isinstance(condition, Dead):
        # It was lost with its host.
        lost = structs.replace(
            attempt, state=AttemptState.DESTROYED, failure="", ends_s=None, begun_order=None
        )
        return lost, None
    if work.left_ms:
        return structs.replace(attempt, ends_s=at_s + work.left_ms / 1000), None
    state, failure = _ended(attempt, work)
    silent = condition if condition is not WELL and isinstance(condition, Silent) else None
    ends_s = silent.until_s if silent else None
    after = structs.replace(attempt, state=state, failure=failure, ends_s=ends_s, begun_order=None)
    return after, None if silent else answer_of(after)


def _ended(attempt: AttemptRecord, work: Work) -> tuple[AttemptState, str]:
    """The state of an attempt whose work is over, and its failure. If no work went on, nothing changes."""
    match attempt.state:
        case AttemptState.BUILDING | AttemptState.RECEIVING:
            if work.failure:
                return AttemptState.FAILED, work.failure
            return AttemptState.STOPPED if attempt.stays_stopped else AttemptState.BUILT, ""
        case AttemptState.REBUILDING:
            is_broken = work.failure and not work.runs_on
            return AttemptState.BROKEN if is_broken else AttemptState.BUILT, work.failure
        case AttemptState.STOPPING:
            return (
                AttemptState.BUILT if work.failure and not attempt.image else AttemptState.STOPPED,
                work.failure,
            )
        case AttemptState.STARTING:
            return AttemptState.STOPPED if work.failure else AttemptState.BUILT, work.failure
        case _:
            return attempt.state, attempt.failure


def answer_of(attempt: AttemptRecord) -> Message:
    """The message that tells the attempt's state, with the number of the order that last stopped or started it."""
    cell, instance, number, host = attempt.cell, attempt.instance, attempt.attempt, attempt.host
    order = max(0, attempt.rank // 2)
    if attempt.rebuild and attempt.state in (AttemptState.BUILT, AttemptState.BROKEN):
        return InstanceRedeployed(
            cell=cell,
            instance=instance,
            attempt=number,
            host=host,
            number=attempt.rebuild,
            failure=attempt.failure,
            is_active=attempt.state is AttemptState.BUILT,
        )
    match attempt.state, attempt.failure:
        case AttemptState.BUILT, "":
            return InstanceSpawned(cell=cell, instance=instance, attempt=number, host=host, number=order)
        case AttemptState.STOPPED, "":
            return InstanceStopped(
                cell=cell,
                instance=instance,
                attempt=number,
                host=host,
                number=order,
                saved=attempt.image,
                by_itself=attempt.by_itself[:LABEL_MAX],
            )
        case ((AttemptState.BUILT | AttemptState.STOPPED), failure) if (
            attempt.image or attempt.state is AttemptState.BUILT
        ):
            return InstanceStopped(
                cell=cell, instance=instance, attempt=number, host=host, number=order, failure=failure
            )
        case ((AttemptState.STOPPED | AttemptState.FAILED), failure):
            return SpawnFailed(
                cell=cell, instance=instance, attempt=number, host=host, number=order, reason=failure
            )
        case AttemptState.DESTROYED, _:
            return InstanceDestroyed(cell=cell, instance=instance, attempt=number, host=host)
        case _:
            raise ValueError(f"attempt {number} of {instance} is {attempt.state.value} and has no answer yet")
