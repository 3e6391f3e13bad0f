"""Messages between clients and the API level about moves of instances to another host."""

from collections.abc import Collection
from datetime import datetime
from typing import Annotated

from msgspec import Meta

from bus.message import AnswerMessage, Kind, ProjectMessage, Route, StrictMessage
from bus.messages.build import ChangeInstance, FlavorChange, InstanceState, MoveEnd, MoveKind, Size
from engine.flavors import Flavor, InstanceId, RequestId, keys_of
from engine.inventories import Counter, Integer, Label, Moment, UserName, Value
from engine.refusals import TOGETHER_MAX

# The outcome in the history of a move that waits for room.
WAITS = "waiting"
# An order to move that is refused because of one of these settings of schedulers names it as `field`. It may be repeated later.
MOVES_PER_HOST, MOVES_PER_CELL = MOVE_LIMITS = ("moves_per_host_max", "moves_per_cell_max")


class MoveWait(Value, frozen=True):
    """How a move waits while no host has room for it: at most `for_s` seconds; 0: not at all. Room that becomes free goes to the
    highest `priority` first, among builds, too, and then to what has waited longest.

    An evacuation waits unless it says otherwise: for the time that the schedulers' settings name, and with a priority above all
    that builds can have.
    """

    for_s: Integer | None = None
    priority: Integer | None = None


class MoveInstance(ChangeInstance, frozen=True, tag="move.request"):
    """Move an active instance to another host of its cell. The scheduler chooses the host and its alternates.

    `migrate` stops the instance while it moves, and `live-migrate` does not. `resize` gives it another size, either by `change` or
    by `flavor`: `change` names what changes, and all else stays, such as the image's properties, ports and volumes; `flavor`
    replaces the whole flavor. It stays on its host only if `hosts` names that. `evacuate` builds it anew, since its host is down; this is also done for an instance in
    error that keeps its host, and for a shelved one. `shelve` stops it, and it keeps its host and its share. `offload` stops it,
    saves it as an image, and frees its host and its share; this is also done for a shelved instance. `unshelve` runs it again:
    on its host, or on any suitable one if it was offloaded. `stop` switches it off where it is; it keeps its host and its share.
    `start` runs it again, and `reboot` stops and starts it. To stop what is stopped, or to start what is active, changes nothing.
    A stopped instance stays stopped when it is migrated, resized or evacuated. `hosts`: one of these; empty: any suitable one. With
    `source`, it is moved only if it is on this host.

    The client chooses `request_id`; a repeated request with the same content is not done twice. The answer is the instance's
    current state (`InstancesFound`), or the reason of a refusal (`BuildRejected`). With `project`, only an instance of that
    project is moved. Without it, one of any project, which needs the right to all projects.

    `together` names others that leave by the same order. One host is chosen with room for all of them, or none of them moves; then
    each moves by itself, and one that cannot get there stays. The answer has their states, too, each without `together`. The
    members of an affinity group leave a host in no other way. `with_group`: together with the members of its affinity group that
    are on its host. If a group has more than 100 there, 100 move by one order, to a host with room for all; an order for another
    one then moves the next.

    An evacuation with a `source_epoch` is made only while this is the number of the setting of its host (`HostSetting.number`), as its cell knows
    it: whoever has set the host up since has ended what was asked before.

    With `wait`, the move waits if no host has room for it: until then the instance stays as it is, and can be deleted; to abort
    the move ends the wait. The move fails if it finds no room in time. An evacuation always waits, unless its `wait` says 0
    seconds, and ends if the host is up again before.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="instance.found", by=("application", "keeper"))

    request_id: RequestId
    instance: InstanceId
    kind: MoveKind
    flavor: Flavor | None = None
    change: FlavorChange | None = None
    hosts: Annotated[tuple[Label, ...], Meta(max_length=1000)] = ()
    # The limit from acceptance to arrival; for a move that waits, from the choice of a host. None: the scheduler's default.
    deadline_s: Integer | None = None
    # When a move that arrived confirms itself; 0: at once. None: the scheduler's default. Only `migrate` and `resize` wait.
    confirm_s: Integer | None = None
    together: Annotated[tuple[InstanceId, ...], Meta(max_length=TOGETHER_MAX)] = ()
    with_group: bool = False
    wait: MoveWait | None = None
    for_user: UserName = ""
    source: Label = ""
    source_epoch: Counter | None = None

    def about(self) -> Collection[int] | None:
        return None if self.with_group else keys_of((self.request_id, self.instance, *self.together))


class EndMove(ChangeInstance, frozen=True, tag="move.end"):
    """End the move with this `request_id`: `confirm` or `revert` it after the instance has arrived, or `abort` it before, also
    while it waits for room.

    A move is not reverted while its source host is down. The answer is the same as to a `move.request`.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="instance.found", by=("application", "keeper"))

    request_id: RequestId
    instance: InstanceId
    how: MoveEnd

    def about(self) -> Collection[int]:
        return keys_of((self.request_id, self.instance))


class Change(Value, frozen=True):
    """An order for an instance, and how it ended. `what` is boot, rebuild, delete, the kind of a move, or
    `stopped` for a guest that stopped without an order: `failure` says why. The `outcome` of a boot is `active`, with the moment in `ended_at`,
    also when the instance is something else since; `placed` as long as its cell builds it, or if no row says how it ended; or `error`.

    `by` is the user that sent the order, as the broker verified it; empty on a broker without users. If the order said for
    which person it was, ` for ` and that name follow: the sender answers for the name. `ended_by` is the
    user that sent an order to end it. The `outcome` of a move is `waiting` as long as it waits for room, and `failure` says
    why. `destination` is the host on which placement has granted the share; before that,
    the host that the scheduler chose first. `size` is the one that a boot or a resize asks for.
    """

    instance: InstanceId
    number: Counter
    what: Label
    cell: Label
    asked_at: Moment
    by: Label = ""
    request_id: RequestId | None = None
    source: Label = ""
    destination: Label = ""
    ended_at: Moment | None = None
    ended_by: Label = ""
    outcome: Label = ""
    failure: str = ""
    size: Size | None = None


class AskHistory(ProjectMessage, frozen=True, tag="history.query"):
    """Asks for a page of an instance's history: one change for each order that it was given, in the order of their
    numbers, after `after`.

    With `project`, only of an instance of that project. Without it, of any, which needs the right to all projects.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="history.found", by=("application", "keeper"))

    instance: Annotated[InstanceId, Meta(description="the instance's id")]
    after: Counter = 0
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class HistoryFound(AnswerMessage, frozen=True, tag="history.found"):
    """A page of the changes of an instance. `instance` is the instance's state now; null if there is no such instance.

    `next` is the number after which the next page begins; 0 on the last page.
    """

    instance: InstanceState | None
    changes: tuple[Change, ...] = ()
    next: Counter = 0


class MovePlace(Value, frozen=True):
    """Identifies a move in the list of all moves, which are ordered by the time of their request."""

    asked_at: Moment
    instance: InstanceId


class AskMoves(StrictMessage, frozen=True, tag="migration.query"):
    """Asks for a page of the moves of all instances, the newest first: those under way, or with `ended` all of them.

    With `host`, only moves from that host or to it. `after` is the last move of the page before.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="migration.found", by=("admin",))

    host: Label = ""
    ended: bool = False
    after: MovePlace | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class MovesFound(AnswerMessage, frozen=True, tag="migration.found"):
    """A page of moves. `next` is the move after which the next page begins; null on the last page."""

    moves: tuple[Change, ...]
    next: MovePlace | None = None


def is_to_wait_again(told: InstanceState, now: datetime) -> bool:
    """Has the cell ended a move for which nothing was tried, since others got the room before the cell asked for it? Then it
    waits again, as long as its time is not up.
    """
    move = told.move
    if move is None or move.outcome != "failed" or move.waits_until is None:
        return False
    if now >= move.waits_until or not told.failures or not all(each.is_refused for each in told.failures):
        return False
    return told.state != "error" or (told.keeps_share and bool(told.host))
