"""Messages between clients and the API level: builds, rebuilds, deletes, and questions about instances."""

from collections.abc import Collection
from typing import Annotated, Literal

from msgspec import Meta

from bus.message import AnswerMessage, CellMessage, Kind, Message, ProjectMessage, Route, Scope, StrictMessage
from engine.flavors import (
    Flavor,
    FlavorPassedOver,
    Image,
    InstanceId,
    InstanceRequest,
    RequestId,
    keys_of,
)
from engine.inventories import (
    Counter,
    GroupId,
    Integer,
    Label,
    Moment,
    Natural,
    ProviderId,
    ResourceClass,
    UserName,
    Value,
)
from engine.refusals import TOGETHER_MAX, NoValidHost

# How ids begin: hexadecimal digits without dashes.
IdPrefix = Annotated[str, Meta(pattern=r"^([0-9a-f]{4,32})?\Z")]
# The API level and the cells continue each other's sequences. No message may bring one near the end of 64 bits: without a
# successor, a row could not be written any more. The limit for words of cells is lower than the one for orders to them,
# since the API level counts on before it sends an order.
SequenceNumber = Annotated[int, Meta(ge=0, le=2**62)]
SEQUENCE_FROM_CELL_MAX = 2**61


class FlavorChange(Value, frozen=True):
    """What a resize changes of an instance's flavor. Everything that it does not name stays as it is.

    An amount of 0 drops what the instance had. An extra spec with a value is set, and one with null is removed.
    """

    vcpus: Integer | None = None
    ram_mb: Integer | None = None
    root_gb: Integer | None = None
    ephemeral_gb: Integer | None = None
    swap_mb: Integer | None = None
    extra_specs: dict[str, str | None] = {}


CellLife = Literal["up", "down", "unknown"]


class BuildInstance(StrictMessage, InstanceRequest, frozen=True, tag="build.request"):
    """Build one instance, or `count` equal ones. The client chooses `request_id`. A repeated request with the same
    content gets the same answer. Instance ids are derived from it unless they are given.

    Each instance gets the first flavor for which there is a host: `flavor`, then the `alternatives` in their order.
    Everything else that the request says is true for each of them. With `flavor_names`, these are the flavors that are stored under
    these names when the request is accepted. If there is no such flavor, the instances end in error. The same is true for
    `image_name`: the stored image and its properties count, and a property in `image_properties` replaces the image's own.

    `priority` is from -1000 to 1000; 0 is that of the flavor (`moor:priority`), or none. When hosts are emptied, instances with a higher one are
    moved first. One that waits for room does so with it if it is positive, at most 100, and if `wait` names none.

    Only bare-metal nodes support `ports`: a request with them gets a node, or no host. The same is true for a request with an
    `image` or a `config_drive` whose flavor asks only for resource classes of nodes.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="build.accepted", by=("application",))
    SCOPE = Scope.PROJECT

    def about(self) -> Collection[int] | None:
        if self.same_host or self.different_host:
            return None
        return keys_of((self.request_id, *self.instance_ids) if self.request_id else self.instance_ids)


class BuildRejected(Message, frozen=True, tag="build.rejected"):
    """The request is invalid: nothing was done. `field` and `value` say what is wrong."""

    ROUTE = Route(Kind.EVENT, by=("scheduler",), public=True)

    request_id: RequestId | None
    field: str
    value: str
    reason: str
    project: Label = ""


class BuildAccepted(Message, frozen=True, tag="build.accepted"):
    """The request is stored. Until the deadline, each of these instances will be active, in error or deleted."""

    ROUTE = Route(Kind.EVENT, by=("scheduler",), public=True)

    request_id: RequestId
    instances: tuple[InstanceId, ...]
    project: Label = ""


class ChangeInstance(ProjectMessage, frozen=True):
    """A change of an instance that is there. A client that waits gets the instance's current state."""

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="instance.found", by=("application",))


class DeleteInstance(ChangeInstance, frozen=True, tag="instance.delete"):
    """Delete an instance in any state. Repeating the request is harmless. A client that waits gets the instance's
    current state (`InstancesFound`): none if its build request has not arrived yet, and then it will not be built.

    With `project`, only an instance of that project is deleted. Without it, one of any project, which needs the right
    to all projects.
    """

    instance: InstanceId
    for_user: UserName = ""

    def about(self) -> Collection[int]:
        return keys_of((self.instance,))


class RebuildInstance(ChangeInstance, frozen=True, tag="instance.rebuild"):
    """Build the instance anew on its host, from this image; what is on its disk is lost. Host and share stay. Only an
    active instance can be rebuilt, or one in error that keeps its host. The client chooses `request_id`; a repeated request with
    the same content is not done twice. The answer is the instance's current state (`InstancesFound`), or the reason of
    a refusal (`BuildRejected`).

    The image is given as `image`, or by `image_name`: the image that is stored under this name, with its properties. The host that
    has the instance must qualify for them; they replace those of the instance's image when the rebuild is done.

    With `project`, only an instance of that project is rebuilt. Without it, one of any project, which needs the right
    to all projects.
    """

    request_id: RequestId
    instance: InstanceId
    image: Image | None = None
    image_name: Label = ""
    # The limit from acceptance to the end. None: the scheduler's default for bare-metal nodes.
    deadline_s: Integer | None = None


class AttemptFailed(Value, frozen=True):
    """One failed try to build on one host. With `is_refused`, nothing was tried there: placement refused the claim, or the
    host could not be used any more.
    """

    attempt: Natural
    host: str
    reason: str
    is_refused: bool = False


class ClaimRefused(Value, frozen=True):
    """A host was chosen, but placement refused the claim: the scheduler's picture of the host was outdated."""

    host: str
    reason: str


class Rebuild(Value, frozen=True):
    """The last rebuild of an instance. Later rebuilds have a higher `number`.

    `failure` says why the rebuild failed. It is empty while the rebuild runs, and after it has succeeded. If the order named a
    stored image, this is `image_name`. `image_properties` are those that count with this image; null if they are those of the boot.
    """

    request_id: RequestId
    number: SequenceNumber
    image: Image
    ends_by: Moment
    failure: str = ""
    image_name: Label = ""
    image_properties: dict[str, str] | None = None


MoveKind = Literal[
    "migrate",
    "live-migrate",
    "resize",
    "evacuate",
    "shelve",
    "offload",
    "unshelve",
    "stop",
    "start",
    "reboot",
]
# These stop the instance while it moves, and may wait to be confirmed.
STOPPED_MEANWHILE: tuple[MoveKind, ...] = ("migrate", "resize")
# No host is chosen for these; nor for an unshelve, unless the instance was offloaded.
IN_PLACE: tuple[MoveKind, ...] = ("shelve", "offload", "stop", "start", "reboot")
# These switch the power of an instance, and change nothing else.
POWER: tuple[MoveKind, ...] = ("stop", "start", "reboot")
MoveEnd = Literal["confirm", "revert", "abort"]


class Move(Value, frozen=True):
    """The last move of an instance to another host. To shelve, offload or unshelve an instance, to stop, start or reboot it, counts
    as a move too.

    Later moves have a higher `number`. `source` and `destination` are the names of the hosts. The destination is empty
    as long as the instance has no share of a new host. The source is empty for an instance that was offloaded.

    A resize has the new `flavor`. After the arrival, the client confirms or reverts the move. If it does neither within
    `confirm_s` seconds, until `confirm_by`, the move is confirmed. What stays in its place needs no confirmation,
    and ends as `done`. `asked` is the end that a client asked for. `outcome` is empty while the move goes on; `failure`
    says why it failed.

    `together` are the members of an affinity group that leave by one order, this one among them, in the order of their ids;
    `leaves` are the hosts on which they were. One host was chosen with room for all of them, and each moves by itself.

    A move that waits for room (`InstanceState.waiting`) has not begun. When it begins, it gets a new number and a new `ends_by`.
    If others get the room before its cell has claimed it, the move fails, and before `waits_until` it waits again.

    `source_epoch`: an evacuation is made only while this is the number of its source's setting.
    """

    request_id: RequestId
    number: SequenceNumber
    kind: MoveKind
    source: Label
    ends_by: Moment
    confirm_s: Natural = 0
    flavor: Flavor | None = None
    destination: Label = ""
    confirm_by: Moment | None = None
    asked: Literal["", "confirm", "revert", "abort"] = ""
    outcome: Literal["", "confirmed", "reverted", "aborted", "failed", "done"] = ""
    failure: str = ""
    together: Annotated[tuple[InstanceId, ...], Meta(max_length=TOGETHER_MAX)] = ()
    leaves: Annotated[tuple[ProviderId, ...], Meta(max_length=TOGETHER_MAX)] = ()
    waits_until: Moment | None = None
    source_epoch: Counter | None = None


class Waiting(Value, frozen=True):
    """The time until which an instance waits for room, and its priority. If it still waits then, it ends in error.

    Or its move waits (`InstanceState.move`): then `since` and `reason` are given, too, and if it still waits at the end, the move
    fails, and the instance stays as it is.
    """

    until: Moment
    priority: Natural = 0
    since: Moment | None = None
    reason: str = ""


# The reason of a stopped instance begins so if it died: its guest did not shut down by itself, and nobody stopped it.
DIED = "died: "


class InstanceState(Value, frozen=True):
    """The full state of an instance as of `sequence`. A state with a lower sequence is outdated.

    States: accepted, waiting, placed, building, active, stopped, rebuilding, moving, moved, shelved, offloaded, error, deleting,
    deleted. One that is `stopped` does not run, keeps its host and its share, and stays stopped when it moves.
    An instance that is `moved` has arrived, and waits for the client to confirm or to revert. One that is `shelved` is stopped,
    and keeps its host. One that is `offloaded` is saved as an image, and has neither a host nor a share. `host` is empty while
    there is none. `keeps_share`: the instance is deleted, offloaded or in error, but its host has not confirmed that it is gone;
    until then its share stays held. An instance in error that has a `host` keeps it and its share, and may be rebuilt.
    """

    id: InstanceId
    request_id: RequestId
    sequence: Counter
    state: Label
    cell: Label = ""
    host: Label = ""
    attempt: Natural = 0
    name: Label = ""
    project: Label = ""
    failures: tuple[AttemptFailed, ...] = ()
    # Claims of the scheduler that were refused, and tried again there or elsewhere, before the instance was placed or failed.
    refusals: tuple[ClaimRefused, ...] = ()
    no_valid_host: NoValidHost | None = None
    reason: str = ""
    changed_at: Moment | None = None
    keeps_share: bool = False
    rebuild: Rebuild | None = None
    # Only while it waits, or its move does. A move that waits leaves the state as it is.
    waiting: Waiting | None = None
    move: Move | None = None
    # The flavor that the instance got, if its request accepts several.
    flavor: Flavor | None = None
    # The better flavors for which the scheduler found no host, in their order.
    passed_over: tuple[FlavorPassedOver, ...] = ()


class InstanceEvent(CellMessage, frozen=True):
    """A new state of an instance, and its cell."""

    ROUTE = Route(Kind.EVENT, "scheduler.events", by=("scheduler", "conductor"), public=True)

    instance: InstanceState


class InstanceWaiting(InstanceEvent, frozen=True, tag="instance.waiting"):
    """No host has room for the instance now, or for its move, and its request asked to wait; `no_valid_host` says why. It is
    tried again when a host changes. `cell` is `cell0`; of a move, that of its instance. The same event says that a move has ended
    which only waited: then `waiting` is null.
    """

    ROUTE = Route(Kind.EVENT, by=("scheduler", "conductor"), public=True)


class InstancePlaced(InstanceEvent, frozen=True, tag="instance.placed"):
    """The claim on a host is granted, and the cell has the order."""

    ROUTE = Route(Kind.EVENT, by=("scheduler", "conductor"), public=True)


class InstanceActive(InstanceEvent, frozen=True, tag="instance.active"):
    """The instance runs: its build, rebuild or move has ended."""


class InstanceMoved(InstanceEvent, frozen=True, tag="instance.moved"):
    """A move has reached its end on the host: the instance's state is `moved`, `stopped`, `shelved` or `offloaded`.

    If it is `moved`, the instance waits for the client to confirm or to revert the move.
    """


class AlternatesSpent(InstanceEvent, frozen=True, tag="instance.spent"):
    """A cell has used up the hosts for an instance, and keeps the claim of its last attempt; `failures` say why each host
    failed. The API level chooses further alternates for it, or lets it end.
    """


class InstanceFailed(InstanceEvent, frozen=True, tag="instance.error"):
    """The instance ended in error; `failures` and `no_valid_host` say why. `cell` is `cell0` if it never had a cell."""


class InstanceDeleted(InstanceEvent, frozen=True, tag="instance.deleted"):
    """The instance is deleted."""


InstanceOrder = Literal["id", "age", "name", "host"]


class AskInstances(ProjectMessage, frozen=True, tag="instance.query"):
    """Asks for instances: those with these ids, those of one request, or a page of all.

    Pages begin after the instance `after`. Their `order` is that of ids; `age`, the oldest request first; `name`, where web-2 is
    before web-10; or `host`, by cell, host and name, without deleted instances. Requests are as old as their ids say, which begin with their
    time if they are made as ours are (uuid7); instances of one request are in the order of their numbers. The first 100 characters of a
    name count. Instances that are equal by the order are in that of their ids.

    One question reads a bounded number of rows. So a page may have few instances or none, and yet say where the `next` one begins.

    With `project`, only instances of that project. Without it, of all projects, which needs the right to all of them.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="instance.found", by=("application", "keeper"))

    instances: Annotated[tuple[InstanceId, ...], Meta(max_length=200)] = ()
    request_id: RequestId | None = None
    after: InstanceId | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100
    state: Label = ""
    # Only what is on the host of this name; with its cell before it (`c1/h1`) if several cells have the name.
    host: Label = ""
    cell: Label = ""
    # Only instances with exactly this name.
    name: Label = ""
    # Only instances whose name contains this text, in capitals or not.
    part: Label = ""
    # Only instances that have the flavor of this name now, or the stored image.
    flavor: Label = ""
    image: Label = ""
    # Only instances whose own id begins like this, or the id of their request.
    id_prefix: IdPrefix = ""
    request_prefix: IdPrefix = ""
    # Without deleted instances.
    living: bool = False
    # Only those that have stopped by themselves, and are stopped: they died, or their guests have shut down.
    died: bool = False
    order: InstanceOrder = "id"
    backwards: bool = False
    # Also count all instances that are asked for, as far as one question may read.
    counted: bool = False


class CellHeard(Value, frozen=True):
    """Whether a cell is up, as far as one scheduler knows.

    `heard_at` is the time of the last heartbeat of a conductor that can work. `life` is `unknown` if no such heartbeat has
    come yet, and the time after which the cell would be down has not passed.
    """

    cell: Label
    life: CellLife
    heard_at: Moment | None = None
    reason: str = ""


class Size(Value, frozen=True):
    """How large an instance is: the name of its flavor, and its amounts by resource class."""

    flavor: Label = ""
    amounts: dict[ResourceClass, Natural] = {}


class InstanceDetails(Value, frozen=True):
    """An instance's size, and when its hosts were chosen. The API level has these facts beside the instance's state.

    `size` is what the instance holds; null if its request is not kept. `priority` is that of its request, or else of its flavor.
    `group` is its server group, which has the `policy`.
    `placed_at` is when a host was chosen for the boot, and `move_placed_at` when one was chosen for the last move.
    """

    id: InstanceId
    size: Size | None = None
    accepted_at: Moment | None = None
    placed_at: Moment | None = None
    move_placed_at: Moment | None = None
    # The name of the stored image that it was built from, unless it was rebuilt since.
    image: Label = ""
    priority: Integer = 0
    group: GroupId | None = None
    policy: Label = ""


class InstancesFound(AnswerMessage, frozen=True, tag="instance.found"):
    """A page of instances, each with the last state that its cell has told. `cells` are the cells of these instances.

    `next` is where the next page begins, null on the last page. `details` has an entry for each instance, in the same
    order, if this answers a question (`AskInstances`); the answer to an order has none.

    `count` is how many instances the question asks for, on all pages; null if it did not ask for it. With `more_than` there may be
    more: one question counts only among the rows that it may read.
    """

    instances: tuple[InstanceState, ...]
    next: InstanceId | None = None
    cells: tuple[CellHeard, ...] = ()
    details: tuple[InstanceDetails, ...] = ()
    count: Natural | None = None
    more_than: bool = False
