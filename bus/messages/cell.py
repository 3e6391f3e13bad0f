"""Messages inside one cell: orders of the API level to the conductor, and messages between the conductor and its hosts.

Hypervisors spawn, respawn and destroy; bare-metal nodes are deployed, redeployed and undeployed. The answers are the same.
"""

from typing import Annotated

from msgspec import Meta

from bus.message import AnswerMessage, CellMessage, Kind, ProjectMessage, Route
from bus.messages.audit import AdoptedState
from bus.messages.build import Move, Rebuild, SequenceNumber
from bus.messages.placement import Attempt
from engine.flavors import ConfigDrive, Flavor, Image, InstanceId, Ports, RequestId
from engine.inventories import (
    ALTERNATES_MAX,
    Choice,
    Counter,
    Integer,
    Label,
    Moment,
    ProviderId,
    ServerGroup,
    Share,
)

# Messages about the consoles of guests, which their hosts keep.


CONSOLE_BYTES_MAX = 64 * 1024

Bytes = Annotated[int, Meta(ge=1, le=CONSOLE_BYTES_MAX)]


class AskConsole(ProjectMessage, frozen=True, tag="console.query"):
    """Asks what the guest of an instance has written to its serial console, which its host keeps.

    At most `limit` bytes, from the byte `start` on; with a negative `start`, from so many bytes before the end on.

    With `project`, only of an instance of that project. Without it, of all projects, which needs the right to all of them.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="console.found", by=("application",))

    instance: InstanceId
    start: Integer = -4096
    limit: Bytes = 4096


class TellConsole(CellMessage, frozen=True, tag="console.tell"):
    """Order to the compute of this cell: publish what a `console.query` asks for, as `console.told`.

    `question` identifies the `console.query` in both messages. The compute obeys the order soon, or not at all.
    """

    ROUTE = Route(Kind.ORDER, "compute.{cell}.questions", by=("scheduler",))

    question: Label
    asked_at: Moment
    instance: InstanceId
    start: Integer = -4096
    limit: Bytes = 4096


class ConsoleTold(CellMessage, frozen=True, tag="console.told"):
    """A part of a console, published for the scheduler that asked by `console.tell`.

    It is an event, since cells have no right to send messages to schedulers. Its fields are those of `console.found`.
    """

    ROUTE = Route(Kind.EVENT, by=("compute",), heard_by=("scheduler",))

    question: Label
    text: str = ""
    start: Counter = 0
    next: Counter = 0
    size: Counter = 0
    attempt: Counter = 0
    none: Label = ""


class ConsoleFound(AnswerMessage, frozen=True, tag="console.found"):
    """A part of a console: `text` begins at the byte `start`, and the next part at `next`; all of it has `size` bytes now. Bytes that are
    no UTF-8 are replaced. A part that is too large for a message is shorter than what was asked for. `attempt` is the attempt of
    the instance whose console it is.

    `none` says why there is no console; empty if there is one.
    """

    text: str = ""
    start: Counter = 0
    next: Counter = 0
    size: Counter = 0
    attempt: Counter = 0
    none: Label = ""


class InstanceMessage(CellMessage, frozen=True):
    """A message about one instance of a cell."""

    instance: InstanceId


class OrderToCell(InstanceMessage, frozen=True):
    """An order of a scheduler about one instance."""

    ROUTE = Route(Kind.ORDER, "conductor.{cell}.work", by=("scheduler",))


class PlaceInCell(OrderToCell, frozen=True, tag="place"):
    """Build this instance on the host that holds its claim; if that fails, on the alternates in their order. The cell
    numbers the instance's states from `sequence` on.

    If the request accepts several flavors, `flavor` is the one of the chosen host, and `tells_flavor` is set: the states of
    the instance tell its flavor. `other_flavors` are the flavors of those alternates that have another one, by host.
    """

    request_id: RequestId
    sequence: SequenceNumber
    attempt: Attempt
    issued_at: Moment
    ends_by: Moment
    flavor: Flavor
    chosen: Choice
    alternates: Annotated[tuple[Choice, ...], Meta(max_length=ALTERNATES_MAX)] = ()
    name: Label = ""
    project: Label = ""
    user: Label = ""
    image_properties: dict[str, str] = {}
    group: ServerGroup | None = None
    image: Image | None = None
    config_drive: ConfigDrive = ""
    ports: Ports = ()
    tells_flavor: bool = False
    other_flavors: dict[ProviderId, Flavor] = {}
    # When all of these hosts are used up, the API level may be asked for more (`instance.spent`).
    may_ask: bool = False


class AdoptInCell(PlaceInCell, frozen=True, kw_only=True, tag="adopt"):
    """The chosen host has the instance already: another cloud has built it there. Take it over as it is, and have the host adopt
    it. `reason` says why it is broken.
    """

    ROUTE = Route(Kind.ORDER, "conductor.{cell}.work", by=("scheduler",))

    state: AdoptedState
    reason: str = ""


class MoreAlternates(OrderToCell, frozen=True, tag="alternates"):
    """Order to the conductor: go on with these alternates, which were chosen since the others are used up.

    It answers the event `instance.spent` with the sequence `spent`, and counts only while the instance still waits for that
    answer. Without alternates the instance ends in error: `reason` says why there are none. The cell numbers the states
    of the instance from `sequence` on, if that is higher than the cell's own number. If the request accepts several flavors,
    `flavor` is the one of these alternates.
    """

    spent: Counter
    sequence: SequenceNumber
    alternates: Annotated[tuple[Choice, ...], Meta(max_length=ALTERNATES_MAX)] = ()
    reason: str = ""
    flavor: Flavor | None = None


class RemoveFromCell(InstanceMessage, frozen=True, tag="remove"):
    """Order to the conductor: delete the instance, whatever its state in the cell is.

    The cell continues the sequence of the instance from this `sequence`, if it is higher than the cell's own.
    """

    ROUTE = Route(Kind.ORDER, "conductor.{cell}.work", by=("scheduler", "operator"))

    request_id: RequestId
    sequence: SequenceNumber
    issued_at: Moment


class GiveBackInCell(RemoveFromCell, frozen=True, tag="give_back"):
    """As `remove`, but the host is to forget the instance, and leaves the guest as it is."""

    ROUTE = Route(Kind.ORDER, "conductor.{cell}.work", by=("scheduler",))


class RebuildInCell(OrderToCell, frozen=True, tag="rebuild"):
    """Write another image onto the host of this instance, in place. The cell continues its sequence from the rebuild's
    number.
    """

    rebuild: Rebuild


class MoveInCell(OrderToCell, frozen=True, tag="move"):
    """Order to the conductor: move the instance to the first of these hosts that can take it.

    Without hosts, the instance is shelved, offloaded or unshelved where it is. The cell continues the sequence of the
    instance from the move's number.
    """

    move: Move
    choices: Annotated[tuple[Choice, ...], Meta(max_length=ALTERNATES_MAX + 1)] = ()


class EndMoveInCell(OrderToCell, frozen=True, tag="settle"):
    """Order to the conductor: confirm, revert or abort this move, as its `asked` says.

    If the order to move arrives after this one, the conductor does not obey it. The cell numbers the states of the
    instance from `sequence` on, if that is higher than the cell's own number.
    """

    move: Move
    sequence: SequenceNumber


class AttemptMessage(InstanceMessage, frozen=True):
    """A message about one try to have an instance on a host. `attempt` identifies the try in all messages about it."""

    attempt: Attempt
    host: ProviderId


class OrderToHost(AttemptMessage, frozen=True):
    """An order to a host: to a virtual one, if it says nothing else."""

    ROUTE = Route(Kind.ORDER, "compute.{cell}.work", by=("conductor",))


class OrderToNode(AttemptMessage, frozen=True):
    """An order to the daemons for bare-metal nodes."""

    ROUTE = Route(Kind.ORDER, "ironic.{cell}.work", by=("conductor",))


class WordOfHost(AttemptMessage, frozen=True):
    """What a host or a node says of an attempt."""

    ROUTE = Route(Kind.ORDER, "conductor.{cell}.work", by=("compute", "ironic"))


class BuildOrder(OrderToHost, frozen=True):
    """An order to a host that names the flavor of an instance, and the share that the instance takes of the host."""

    flavor: Flavor
    share: Share


class SpawnInstance(BuildOrder, frozen=True, tag="spawn"):
    """Order to a host: create the instance. With `stopped`, it does not run: the host answers as to a stop order.

    With `source`, the instance is evacuated from that host, which had it as `source_attempt`: a host that reaches the disk there
    takes it over, and any other one creates the instance from its image. The instance may have images of its `project`, and
    public ones. `from_saved`: the image is what the instance itself was saved as.
    """

    name: Label = ""
    project: Label = ""
    image: Image | None = None
    from_saved: bool = False
    stopped: bool = False
    image_properties: dict[str, str] = {}
    config_drive: ConfigDrive = ""
    ports: Ports = ()
    source: ProviderId | None = None
    source_attempt: Counter = 0


class AdoptGuest(BuildOrder, frozen=True, tag="adopt.guest"):
    """Order to a host: the guest of this instance is there already; it is this attempt from now on. Nothing is built.

    The host answers as to a spawn order, and with `stopped` as to a stop order. If it has no such guest, it answers
    `spawn.failed`.
    """

    name: Label = ""
    stopped: bool = False


class LeaveGuest(OrderToHost, frozen=True, tag="leave"):
    """Order to a host: forget this attempt, and leave the guest as it is, since another cloud has it from now on.

    The host answers `destroyed`, and obeys no later order about this attempt.
    """


class RespawnInstance(BuildOrder, frozen=True, tag="respawn"):
    """Order to a host: destroy the disk of the instance that has this attempt, and create it anew from this image.

    `number` is the number of the rebuild. The host does not obey if it has already obeyed an order of a later rebuild
    or move. The instance may have images of its `project`, and public ones.
    """

    number: Counter
    image: Image
    name: Label = ""
    project: Label = ""
    image_properties: dict[str, str] = {}
    config_drive: ConfigDrive = ""
    ports: Ports = ()


class DestroyInstance(AttemptMessage, frozen=True, tag="destroy"):
    """Order to a host: remove everything of this attempt. A host that has nothing of it confirms the order too.

    With `saved_until`, it also removes the images as which moves up to this number have saved the instance, whichever host has done so:
    the instance runs again, or is deleted.
    """

    ROUTE = Route(Kind.ORDER, "compute.{cell}.work", by=("conductor", "operator"))

    saved_until: Counter = 0


class StopInstance(OrderToHost, frozen=True, tag="stop"):
    """Order to a host: stop the instance, and keep what the host has of it. `number` is the number of the move.

    The host does not obey if it has already obeyed an order with a later number, or the order to start with the same
    number. With `save_as`, the host also uploads the disk as the image of this name, even if the instance is stopped
    already. The image belongs to the `project` of the instance.
    """

    number: Counter
    save_as: Label = ""
    project: Label = ""


class StartInstance(OrderToHost, frozen=True, tag="start"):
    """Order to a host: run the instance again that a `stop` order has stopped. Both orders have the same `number`.

    If the `stop` order arrives later, the host does not obey it. The answer is that to a spawn order.
    """

    number: Counter


class ReceiveInstance(BuildOrder, frozen=True, tag="receive"):
    """Order to a host: take the instance over from the attempt `source_attempt` on the host `source`.

    The source may be the same host. The source has stopped the instance, unless `live` is set. The host answers as to a
    spawn order: `spawned` or `spawn.failed`. With `stopped`, the instance does not run here: the host answers as to a stop order.
    """

    source: ProviderId
    source_attempt: Attempt
    live: bool = False
    name: Label = ""
    stopped: bool = False


class DeployInstance(BuildOrder, frozen=True, tag="deploy"):
    """Order to the daemons for bare-metal nodes: deploy the instance on this node."""

    ROUTE = Route(Kind.ORDER, "ironic.{cell}.work", by=("conductor",))

    name: Label = ""
    project: Label = ""
    user: Label = ""
    image_properties: dict[str, str] = {}
    image: Image | None = None
    config_drive: ConfigDrive = ""
    ports: Ports = ()


class UndeployInstance(OrderToNode, frozen=True, tag="undeploy"):
    """Order to the daemons for bare-metal nodes: remove everything of this attempt from the node.

    The order is also confirmed if the node has nothing of this attempt.
    """


class AdoptDeployed(OrderToNode, frozen=True, tag="adopt.node"):
    """Order to the daemons for bare-metal nodes: Ironic has deployed this instance on the node; it is this attempt from now on. Nothing
    is ordered from Ironic.

    Only a refusal is answered, by `spawn.failed`: Ironic has no such instance there, or the node is not active.
    """


class LeaveNode(OrderToNode, frozen=True, tag="leave.node"):
    """Order to the daemons for bare-metal nodes: forget this attempt, and leave the instance as it is on the node.

    The daemons answer `destroyed`, and obey no later order about this attempt.
    """


class RedeployInstance(OrderToNode, frozen=True, tag="redeploy"):
    """Order to the daemons for bare-metal nodes: write this image onto the node that has this attempt.

    `number` is the number of the rebuild; later rebuilds have higher numbers.
    """

    number: Counter
    flavor: Flavor
    image: Image
    name: Label = ""
    image_properties: dict[str, str] = {}
    config_drive: ConfigDrive = ""


class DeployProgressed(AttemptMessage, frozen=True, tag="deploy.progress"):
    """The node still works on this attempt: its timeout starts again. `words` describe the work, for people.

    `at_rest`: the instance is active, and `words` are what its node says beside that; empty if it says nothing else.
    """

    ROUTE = Route(Kind.ORDER, "conductor.{cell}.work", by=("ironic",))

    words: Label = ""
    at_rest: bool = False


class UndeployOrdered(AttemptMessage, frozen=True, tag="node.undeploy_ordered"):
    """A daemon takes an instance off its bare-metal node by itself, without an order of a person; `reason` says why."""

    ROUTE = Route(Kind.EVENT, by=("ironic",), public=True)

    reason: Label


class NodePower(CellMessage, frozen=True, tag="node.power"):
    """A bare-metal node on which an instance lives has lost its power, or Ironic the control of it: `words` say which. Empty words: it
    has its power again, or the instance is gone. `number` is that of the loss; a later loss of the same node has a higher one.

    Keepers ask a person about it. It may be said more than once.
    """

    ROUTE = Route(Kind.EVENT, "keeper.events", by=("ironic",), public=True)

    node: ProviderId
    name: Label
    number: Counter
    instance: InstanceId | None = None
    words: Label = ""


class InstanceSpawned(WordOfHost, frozen=True, tag="spawned"):
    """The instance runs on the host.

    `kind` is the kind of the host: a conductor without a row for the instance needs it to order the removal. `number` is
    the number of the last order to stop or to start the instance that the host has obeyed; 0 if there was none.

    About an instance on a bare-metal node that was said to be gone (`SpawnFailed`): both are there after all. Such messages
    are numbered by `number`, in one sequence with those that say that the node is gone.
    """

    kind: Label = ""
    number: Counter = 0


class SpawnFailed(WordOfHost, frozen=True, tag="spawn.failed"):
    """The host could not create or receive the instance, and has cleaned up. Or it could not start the instance again.

    After a failed start the host still has the instance, unless the reason says that there is none. If the host refused
    an order to start the instance, `number` is the number of that order. Otherwise it is that of the last order to stop
    or to start the instance that the host has obeyed; 0 if there was none.

    About an instance that is active on a bare-metal node: the node does not exist any more. `number` counts the messages that
    it is gone, or back.
    """

    reason: str
    number: Counter = 0


class InstanceDestroyed(WordOfHost, frozen=True, tag="destroyed"):
    """Nothing of this attempt is left on the host."""


class InstanceStopped(AttemptMessage, frozen=True, tag="stopped"):
    """The host has stopped the instance, or could not: then `failure` says why.

    After a failure the instance still runs, if the host has it. But if only saving its disk failed, the instance may be
    stopped. `saved` is the image that was made of the instance since it was stopped. `number` is the number of the last
    order to stop or to start the instance that the host has obeyed; 0 if there was none. If the host refused an order,
    it is the number of that order.

    Without an order: the instance ran, and has stopped by itself, for the reason `by_itself`. It can be started again.
    """

    ROUTE = Route(Kind.ORDER, "conductor.{cell}.work", by=("compute",))

    failure: str = ""
    saved: Label = ""
    number: Counter = 0
    by_itself: Label = ""


class InstanceRedeployed(WordOfHost, frozen=True, tag="redeployed"):
    """The result of the rebuild with this number; `failure` is empty if it succeeded.

    `is_active` says whether an instance runs on the host. After a failure, it is the old one.
    """

    number: Counter
    failure: str = ""
    is_active: bool = True
