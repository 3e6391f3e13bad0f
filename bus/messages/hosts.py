"""Messages about hosts themselves: whether a host is up, may be used, and how busy it is.

Messages about what hosts provide are in placement.py.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from bus.broker import chunks
from bus.message import AnswerMessage, CellMessage, Kind, Message, Route, StrictMessage
from bus.messages.books import ConsumerMoved
from bus.messages.placement import Attempt, InventoryInUse, ReportAccepted, ReportOutdated
from engine.flavors import InstanceId
from engine.hosts import Aggregate, HostFacts, HostMode, HostSetting, HostState, MetadataKey, MetadataValue
from engine.inventories import (
    AggregateId,
    ConsumerId,
    Counter,
    Integer,
    Label,
    Natural,
    ProviderId,
    ProviderState,
    ReportedProvider,
    ResourceAmount,
    ResourceClass,
    UserName,
    Value,
)
from engine.places import Place
from engine.refusals import DoesNotFit, NotAllowed, ShapeMoved

# The entries of a message about many hosts.
H = TypeVar("H", bound=Value)


HOSTS_PER_MESSAGE_MAX = 1000
# A message and its envelope must fit into a parcel.
HOSTS_BYTES_MAX = 250_000

# What kind of hosts is asked for: `hypervisor` are those that run virtual machines, `node` single bare-metal machines.
HostKind = Literal["", "hypervisor", "node"]

# Weights are sums of products of metrics: far from what a float can hold.
Metric = Annotated[float, Meta(ge=-1e15, le=1e15)]


class HostsReported(CellMessage, frozen=True, tag="host.state"):
    """A report that these hosts are up, with facts about each. It is sent when they start and when the facts change.

    `epoch` is the reporter's term where several share the work (0 where there is no ring). `sequence` orders the
    reports of one term (0: in the order of arrival). The latest report of each host counts, whenever it arrives.
    """

    ROUTE = Route(Kind.EVENT, "scheduler.events", by=("compute", "ironic"))

    hosts: Annotated[tuple[HostFacts, ...], Meta(max_length=1000)]
    epoch: Counter = 0
    sequence: Counter = 0


class HostsAlive(CellMessage, frozen=True, tag="host.beat"):
    """Heartbeats of many hosts of a cell. A host that is not heard of for a while is down."""

    ROUTE = Route(Kind.EVENT, by=("compute", "ironic"), heard_by=("conductor",))

    hosts: Annotated[tuple[ProviderId, ...], Meta(max_length=5000)]


class HostMetrics(Value, frozen=True, kw_only=True):
    """Values that a host measures, such as its temperature or load, under names that the host chooses."""

    id: ProviderId
    values: Annotated[dict[Label, Metric], Meta(max_length=64)]


class HostsMeasured(CellMessage, frozen=True, tag="host.metrics"):
    """The metrics of hosts of a cell. For each host they replace all earlier ones.

    No row stores them, and a scheduler that has just started has none until they are sent again. `sequence` orders
    these messages.
    """

    ROUTE = Route(Kind.EVENT, by=("compute",))

    hosts: Annotated[tuple[HostMetrics, ...], Meta(max_length=1000)]
    sequence: Counter = 0


class HostImages(Value, frozen=True, kw_only=True):
    """The images that a host has cached on its own disk, named as the `source` of images in requests."""

    id: ProviderId
    images: Annotated[tuple[Annotated[str, Meta(max_length=2048)], ...], Meta(max_length=64)]


class ImagesCached(CellMessage, frozen=True, tag="host.images"):
    """The images that hosts of a cell have cached. For each host they replace all earlier ones.

    No row stores them. They are sent when they change, and all of them are sent again now and then. `sequence` orders
    these messages.
    """

    ROUTE = Route(Kind.EVENT, by=("compute",))

    hosts: Annotated[tuple[HostImages, ...], Meta(max_length=1000)]
    sequence: Counter = 0


class SetHost(StrictMessage, frozen=True, tag="host.set"):
    """Set a host up, draining, down or dead. It stays so until it is set again. Operators send it.

    `dead` says that nothing runs on the host, and that nothing will. So what the host still held for instances that
    have left it is released at once. If a dead host returns, it must be set to another mode before it may be used.
    Before that it destroys all attempts of instances that its cell no longer counts on. A host that is heard may still run its
    instances: it is set dead only with `sure`.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="host.was_set", by=("operator", "keeper"))

    host: Annotated[
        Label,
        Meta(description="the host's name; with its cell before it (`c1/h1`) if several cells have the name"),
    ]
    mode: Annotated[
        HostMode,
        Meta(
            description="`up`: it may be used. `draining`: nothing new is built there; its instances stay. `down`: as if its "
            "heartbeats had stopped. `dead`: as down, and nobody waits for it to clean up any more: say so only if nothing runs "
            "there; not for bare-metal nodes"
        ),
    ]
    reason: Annotated[Label, Meta(description="why; the host's state and refused builds show it")] = ""
    for_user: UserName = ""
    sure: Annotated[bool, Meta(description="with `dead`: nothing runs on the host, though it is heard")] = (
        False
    )


class AskHosts(StrictMessage, frozen=True, tag="host.query"):
    """Asks for a page of hosts in the order of their names, after the name `after`; or for the host called `name`.

    A name may have a cell before it (`c1/h1`). Without one, the host of this name in each cell is found. One question looks at a
    bounded number of hosts. So with a filter a page may have few hosts or none, and yet say where the `next` one begins.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="host.found", by=("admin", "keeper"))

    name: Label = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200
    cell: Label = ""
    mode: HostMode | Literal[""] = ""
    kind: HostKind = ""
    up: bool | None = None
    place: Annotated[Place, Meta(description="only hosts in this domain, such as `dc1/hall2`")] = ""


class ClassAmounts(Value, frozen=True):
    """How much a host has of a resource class, and how much of it is used.

    `capacity` is what may be used: without what is reserved, and with overcommitment. What is used may exceed it, if capacity shrank.
    """

    used: Counter
    capacity: Integer


class HostUse(Value, frozen=True):
    """The sums over the providers of a host's tree, by resource class; of several providers each counts as full at most. Pools that hosts
    share are not in it.

    One scheduler's knowledge of placement's books; `classes` is empty if placement has no provider of the host.
    """

    host: ProviderId
    classes: dict[ResourceClass, ClassAmounts] = {}


class HostsFound(AnswerMessage, frozen=True, tag="host.found"):
    """A page of hosts. `next` is the name after which the next page begins, empty on the last page.

    `uses` has an entry for each host, in the same order.
    """

    hosts: tuple[HostState, ...]
    next: Label = ""
    uses: tuple[HostUse, ...] = ()


class HostSet(AnswerMessage, frozen=True, tag="host.was_set"):
    """The host has its new mode. `host` is the host's state now."""

    host: HostState


class HostPlaced(Value, frozen=True):
    """A host was placed: `by` is the user that asked for it, `before` its place before."""

    by: Label = ""
    before: Place = ""


class HostChanged(CellMessage, frozen=True, tag="host.changed"):
    """The mode of a host was set, it was placed, a host that was dead has cleaned up, or a host was deleted. `host` is the host's state
    now; of a host that was `deleted`, its last one. If it was placed, `placed` names the user that asked for it, and its place before.
    """

    ROUTE = Route(Kind.EVENT, by=("scheduler",), public=True)

    host: HostState
    deleted: bool = False
    placed: HostPlaced | None = None


# However long their names and places are, one message to placement has room for all of them.
HOSTS_PLACED_MAX = 500


class HostPlace(Value, frozen=True):
    """Where a host is: the domains that it is in, the largest first. Empty: where its compute or Ironic says."""

    host: Label
    place: Place


class PlaceHosts(StrictMessage, frozen=True, tag="host.place"):
    """Say where these hosts are; it counts before what their computes or Ironic report. Operators send it.

    If one host is unknown or named twice, nothing is changed, and the refusal names its entry. With `only_check`, nothing is changed in
    any case. The members of server groups that are there stay, whatever their rules say of the new places.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="host.were_placed", by=("operator",))

    hosts: Annotated[
        tuple[HostPlace, ...],
        Meta(
            min_length=1,
            max_length=HOSTS_PLACED_MAX,
            description="each by its name; with its cell before it (`c1/h1`) if several cells have the name",
        ),
    ]
    only_check: bool = False
    for_user: UserName = ""


class HostsPlaced(AnswerMessage, frozen=True, tag="host.were_placed"):
    """The hosts of the order, each with its cell (`c1/h1`) and its place now; as many as one message has room for."""

    hosts: tuple[HostPlace, ...]


class DeleteHost(StrictMessage, frozen=True, tag="host.delete"):
    """Forget a host that is gone for good, with its providers in placement. Operators send it.

    Refused while the host is heard, while an instance is on it or on its way there, and while anything in placement is held of it. A bare-metal
    node is Ironic's, and is deleted there. A host that comes back is a new one. The order may be repeated until it is answered
    that there is no such host.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="host.deleted", by=("operator",))

    host: Annotated[
        Label,
        Meta(description="the host's name; with its cell before it (`c1/h1`) if several cells have the name"),
    ]
    for_user: UserName = ""


class HostDeleted(AnswerMessage, frozen=True, tag="host.deleted"):
    """The host is forgotten. `host` is its last state."""

    host: HostState


def in_messages(facts: Sequence[H]) -> list[tuple[H, ...]]:
    """Split values about many hosts into as few messages as possible, none with too many hosts or too many bytes."""
    share = HOSTS_BYTES_MAX // HOSTS_PER_MESSAGE_MAX
    sizes = [max(len(msgspec.json.encode(each)) + 1, share) for each in facts]
    return [tuple(facts[part]) for part in chunks(sizes, HOSTS_BYTES_MAX)] if facts else []


# Messages in a cell about the modes of its hosts.
#
# The API level tells the cell each new mode. A host that was dead or silent tells the conductors which attempts of instances it
# still has. They have it destroy all attempts that the cell no longer counts on.


ATTEMPTS_PER_MESSAGE_MAX = 2000


class SetHostInCell(CellMessage, frozen=True, tag="host.mode"):
    """Tells the conductors of a cell the mode of a host. The setting with the highest number counts.

    With `must_clean` the host was dead. The cell reports when the host has destroyed everything that the cell no longer
    counts on (`host.cleaned`).
    """

    ROUTE = Route(Kind.ORDER, "conductor.{cell}.work", by=("scheduler",))

    host: ProviderId
    name: Label
    setting: HostSetting
    must_clean: bool = False


class CheckHost(CellMessage, frozen=True, tag="host.check"):
    """Order to a host: report a page of the attempts of instances that it has, from behind the instance `after`.

    `number` is that of the `HostSetting` by which the host's mode was set; the answer repeats it.
    """

    ROUTE = Route(Kind.ORDER, "compute.{cell}.work", by=("conductor",))

    host: ProviderId
    number: Counter
    after: InstanceId | None = None


class HeldAttempt(Value, frozen=True, array_like=True):
    """An attempt that a host has: an entry in the list that it sends to the conductor."""

    instance: InstanceId
    attempt: Attempt


class HostHolds(CellMessage, frozen=True, tag="host.holds"):
    """A page of all attempts that a host has, in the order of their instances. It answers a `host.check`.

    A host also sends the first page without being asked, when answers of it may have been lost: when its compute starts, and
    when it can send again after it could not. `number` is 0 then.

    `after` and `number` repeat those of the order. `next` is the `after` for the next page, null on the last page. The
    conductor orders the host to destroy the attempts that the cell no longer counts on.
    """

    ROUTE = Route(Kind.ORDER, "conductor.{cell}.work", by=("compute",))

    host: ProviderId
    number: Counter
    attempts: Annotated[tuple[HeldAttempt, ...], Meta(max_length=ATTEMPTS_PER_MESSAGE_MAX)] = ()
    after: InstanceId | None = None
    next: InstanceId | None = None


class HostsNotHere(CellMessage, frozen=True, tag="host.not_here"):
    """The compute of the cell does not have these hosts, though there were orders for them: it may have been started with fewer.

    They count as silent until they are heard, and what runs there stays theirs. No order for them was obeyed.
    """

    ROUTE = Route(Kind.ORDER, "conductor.{cell}.work", by=("compute",))

    hosts: Annotated[tuple[ProviderId, ...], Meta(max_length=ATTEMPTS_PER_MESSAGE_MAX)]


class HostCleaned(CellMessage, frozen=True, tag="host.cleaned"):
    """A host that was dead before the setting with this number has destroyed all attempts that its cell no longer has."""

    ROUTE = Route(Kind.EVENT, "scheduler.events", by=("conductor",))

    host: ProviderId
    number: Counter


# Messages by which a compute brings a host into a new shape while instances live there: for instance from one provider to NUMA
# cells below it, and back.
#
# The compute asks what placement has of the host's tree (`AskHostShape`), lets its driver say which provider gives what to each
# consumer from then on, and asks for everything in one step (`ReshapeHost`). Placement writes all of it in one transaction, or
# nothing.


class HostHolder(Value, frozen=True):
    """A consumer that holds something of a host's tree: its generation, and what it holds there. What it holds elsewhere, of
    a pool for instance, is not in it.
    """

    consumer: ConsumerId
    generation: Counter
    amounts: Annotated[tuple[ResourceAmount, ...], Meta(max_length=1000)]


class AskHostShape(CellMessage, frozen=True, tag="host.shape.query"):
    """Asks placement for the tree of this root, and for a page of the consumers that hold something of it, in the order of their
    ids, after the id `after`.
    """

    ROUTE = Route(Kind.QUESTION, "placement.claims", answer="host.shape.found", by=("compute",), public=True)

    root: ProviderId
    after: ConsumerId | None = None


class HostShapeFound(AnswerMessage, frozen=True, tag="host.shape.found"):
    """A host's tree as placement has it, and a page of those that hold something of it. `next` is where the next page begins, null
    on the last page. A tree of another cell has no providers.
    """

    root: ProviderId
    providers: tuple[ProviderState, ...] = ()
    holders: tuple[HostHolder, ...] = ()
    next: ConsumerId | None = None


class ReshapeHost(CellMessage, frozen=True, tag="host.reshape"):
    """Changes a tree as a whole report does (`providers`, `sequence`), and in the same step what consumers hold of it.

    `moved` names the consumers whose amounts go to other providers of the tree, each with all amounts that it holds of the tree
    afterwards. The sum of each class stays as it was. Refused if the tree is no longer of this `shape`, or a consumer no longer of
    its generation: then the sender asks for the shape again.
    """

    ROUTE = Route(Kind.ORDER, "placement.work", answer="host.reshaped", by=("compute",), public=True)

    root: ProviderId
    shape: Counter
    providers: Annotated[tuple[ReportedProvider, ...], Meta(max_length=1000)]
    sequence: Counter = 0
    moved: Annotated[tuple[HostHolder, ...], Meta(max_length=2000)] = ()


ReshapeVerdict = (
    ReportAccepted | ReportOutdated | InventoryInUse | DoesNotFit | ConsumerMoved | ShapeMoved | NotAllowed
)


class HostReshaped(AnswerMessage, frozen=True, tag="host.reshaped"):
    """The verdict on a reshape of a host. If it is not `accepted`, nothing has changed.

    `shape_moved`, `consumer_moved` and `in_use` say that something changed since the sender asked: it asks again.
    """

    root: ProviderId
    verdict: ReshapeVerdict


# Messages about host aggregates: named groups of hosts with metadata. A host is a hypervisor or a single bare-metal node.
#
# Placement keeps the members, as aggregates of their providers; the schedulers keep names and metadata.


HOSTS_PER_ORDER_MAX = 1000
METADATA_KEYS_MAX = 200

# Each is a host's name or the id of its root provider.
HostNames = Annotated[tuple[Label, ...], Meta(max_length=HOSTS_PER_ORDER_MAX)]


class AggregateState(Aggregate, frozen=True):
    """An aggregate with its members."""

    hosts_count: Natural = 0
    hosts: tuple[Label, ...] = ()


class SetAggregate(StrictMessage, frozen=True, tag="aggregate.set"):
    """Creates an aggregate or changes it: sets and removes keys of its metadata, adds and removes hosts.

    The client chooses the id. Repeating the order is harmless. If it is delivered again after a newer order, it
    changes nothing.

    A host is in one availability zone: an order that would put a host into two is refused. An order that is refused
    because of one host may have added or removed others.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="aggregate.was_set", by=("admin",))

    aggregate: AggregateId
    name: Label = ""
    metadata: Annotated[dict[MetadataKey, MetadataValue | None], Meta(max_length=METADATA_KEYS_MAX)] = {}
    add_hosts: HostNames = ()
    remove_hosts: HostNames = ()


class AggregateSet(AnswerMessage, frozen=True, tag="aggregate.was_set"):
    """The order about an aggregate is done. `aggregate` is the aggregate's state now."""

    aggregate: AggregateState


class DeleteAggregate(StrictMessage, frozen=True, tag="aggregate.delete"):
    """Deletes the name and the metadata of an aggregate. Refused while a host is in it. Repeating the order is
    harmless.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="aggregate.was_deleted", by=("admin",))

    aggregate: AggregateId


class AggregateDeleted(AnswerMessage, frozen=True, tag="aggregate.was_deleted"):
    """There is no such aggregate any more. `was_there` says whether there was one before the order."""

    aggregate: AggregateId
    was_there: bool


class AskAggregates(StrictMessage, frozen=True, tag="aggregate.query"):
    """Asks for a page of aggregates, or with `name` for a page of the hosts of one aggregate.

    Pages are in the order of names, and begin after the name `after`: that of an aggregate, or of a host.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="aggregate.found", by=("admin", "keeper"))

    name: Label = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200


class AggregatesFound(AnswerMessage, frozen=True, tag="aggregate.found"):
    """A page of aggregates, or of the hosts of one aggregate; only the latter lists `hosts`.

    `next` is the name after which the next page begins, empty on the last page.
    """

    aggregates: tuple[AggregateState, ...]
    next: Label = ""


class AggregateChanged(Message, frozen=True, tag="aggregate.changed"):
    """An event: the name and metadata of an aggregate as they are now. Members are in `providers.changed` instead."""

    ROUTE = Route(Kind.EVENT, by=("scheduler",), public=True)

    aggregate: Aggregate
    deleted: bool = False
