"""Messages of an audit: what placement, the cells and their hosts each have about the instances, and the orders that mend
a difference between them. Only operators send these.

Each answer is a page in the order of ids, so an audit walks through all books side by side. Each order names what its
sender saw (compare-and-set): if that has changed since, nothing is done.
"""

import collections
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta

from bus.message import AnswerMessage, Kind, Route, Scope, StrictMessage
from bus.messages.build import InstanceState
from bus.messages.placement import Attempt, ConsumerType
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.inventories import (
    CellName,
    ConsumerId,
    Counter,
    GroupId,
    Integer,
    Label,
    Moment,
    Natural,
    ProviderId,
    ResourceAmount,
    ServerGroup,
    Share,
    Value,
)

NAMED_MAX = 200
# Types of consumers that hold what an instance gave up by a swap. On the instance's own host they have no place of their own:
# their rows name no host.
BESIDE_INSTANCES = ("CLEANUP", "MIGRATION")
Instances = Annotated[tuple[InstanceId, ...], Meta(max_length=NAMED_MAX)]
PageLimit = Annotated[int, Meta(ge=1, le=1000)]


class AskBooks(StrictMessage, frozen=True, tag="books.query"):
    """Asks placement for the rows of these consumers; or for a page of all consumers that hold something.

    Pages are in the order of ids, and begin after the id `after`.
    """

    ROUTE = Route(Kind.QUESTION, "placement.questions", answer="books.found", by=("operator",))

    consumers: Annotated[tuple[ConsumerId, ...], Meta(max_length=NAMED_MAX)] = ()
    after: ConsumerId | None = None
    limit: PageLimit = 500
    # Mark the consumers that were claimed within so many seconds, as far as the change log reaches.
    new_s: Natural = 0


class BookEntry(Value, frozen=True):
    """A consumer as placement has it.

    `ended` says that its attempt has ended. `is_new` says that the consumer was claimed within the last `new_s`
    seconds, according to placement's change log; the question (`AskBooks`) sets `new_s`.
    """

    id: ConsumerId
    type: Label
    project: Label
    user: Label
    cell: Label
    generation: Counter
    attempt: Counter
    ended: bool = False
    host: ProviderId | None = None
    group: GroupId | None = None
    held: tuple[ResourceAmount, ...] = ()
    is_new: bool = False


class BooksFound(AnswerMessage, frozen=True, tag="books.found"):
    """A page of consumers as placement has them. `next` is where the next page begins, null on the last page."""

    consumers: tuple[BookEntry, ...]
    next: ConsumerId | None = None


class AskContradictions(StrictMessage, frozen=True, tag="contradictions.query"):
    """Asks where placement's own tables contradict each other."""

    ROUTE = Route(Kind.QUESTION, "placement.questions", answer="contradictions.found", by=("operator",))


class ContradictionsFound(AnswerMessage, frozen=True, tag="contradictions.found"):
    """Where placement's tables contradict each other: the first contradictions, one sentence each.

    `count` counts all of them.
    """

    contradictions: tuple[str, ...]
    count: Natural = 0


class RecountBooks(StrictMessage, frozen=True, tag="books.recount"):
    """Order to placement: count again what it derives from allocations, and correct the numbers that are wrong.

    For each provider these are: what is in use of it, how many consumers have it as their host, and which consumers
    hold something of it. Only the trees with a wrong number are locked.
    """

    ROUTE = Route(Kind.ORDER, "placement.work", answer="write.answered", by=("operator",))


class SeenConsumer(Value, frozen=True):
    """The state of a consumer's row that an audit saw, and on which the audit's correction is based."""

    generation: Counter
    attempt: Counter
    ended: bool = False


class MendedClaim(Value, frozen=True):
    """The consumer as an audit's order leaves it: the share that it holds, and the values in its row.

    Placement does not compare the shapes in `share` with those of its trees. If `has_place` is false, the consumer does
    not count as a consumer of the share's host, and is in no server group.
    """

    cell: CellName
    attempt: Attempt
    share: Share
    type: ConsumerType = "INSTANCE"
    project: Label = ""
    user: Label = ""
    group: ServerGroup | None = None
    has_place: bool = True


class MendConsumer(StrictMessage, frozen=True, tag="books.mend"):
    """Make this consumer hold exactly `claim`; without `claim`, end it and free everything.

    Refused if the consumer's row is no longer as in `seen` (null: it had no row). Also refused if it would hold more than
    before and that does not fit.
    """

    ROUTE = Route(Kind.ORDER, "placement.work", answer="write.answered", by=("operator",))

    consumer: ConsumerId
    seen: SeenConsumer | None = None
    claim: MendedClaim | None = None


class MendInstance(StrictMessage, frozen=True, tag="instance.mend"):
    """Order to write the state, cell, host and attempt of an instance, as its cell has them, to the API level's row.

    Nothing is done if the row is no longer at the sequence `seen`. The answer is the row as it is then
    (`InstancesFound`).
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="instance.found", by=("operator",))

    seen: Counter
    instance: InstanceState


class AskBooksBelow(StrictMessage, frozen=True):
    """Asks a worker of a cell for what it knows of these instances, or of all."""

    SCOPE = Scope.CELL

    cell: CellName
    instances: Instances = ()


class AskCellBooks(AskBooksBelow, frozen=True, tag="cell.books.query"):
    """Asks the conductor of a cell for its rows of these instances; or for a page of all its rows.

    Pages are in the order of ids, and begin after the id `after`.
    """

    ROUTE = Route(Kind.QUESTION, "conductor.{cell}.questions", answer="cell.books.found", by=("operator",))

    after: InstanceId | None = None
    limit: PageLimit = 200


class ExpectedClaim(Value, frozen=True):
    """A claim that the cell counts on; an audit compares it with placement's.

    Without `share`, the consumer may hold something or nothing. The cell waits for an answer, or for a host to clean
    up; or the source of a move gave nothing beyond what the destination needs. Without `has_place`, the consumer is a
    migration on the host where its instance stays: it does not count as a consumer of that host.
    """

    consumer: ConsumerId
    type: ConsumerType = "INSTANCE"
    attempt: Counter = 0
    share: Share | None = None
    has_place: bool = True


class HostEntry(Value, frozen=True, array_like=True):
    """An attempt of an instance that a host has something of: the instance runs there, or is being built."""

    instance: InstanceId
    host: ProviderId
    attempt: Integer


class BrokenGuest(Value, frozen=True):
    """An attempt that its host has, but cannot run again as it is, and why: a file of its disk is gone."""

    instance: InstanceId
    host: ProviderId
    attempt: Integer
    why: str


class CellEntry(Value, frozen=True):
    """An instance as its cell has it.

    `kind` is the kind of its host. `on_hosts` are the hosts that may have something of the instance; the host that has
    the instance itself comes first. `stirred_at` is when the cell last changed the instance's row, or sent a message
    about the instance. `freed` are other consumers of the instance that the cell has released lately.
    """

    instance: InstanceState
    user: Label = ""
    host: ProviderId | None = None
    kind: Label = ""
    group: ServerGroup | None = None
    claims: tuple[ExpectedClaim, ...] = ()
    on_hosts: tuple[HostEntry, ...] = ()
    stirred_at: Moment | None = None
    freed: tuple[ConsumerId, ...] = ()


class CellBooksFound(AnswerMessage, frozen=True, tag="cell.books.found"):
    """A page of the instances of a cell. `next` is where the next page begins, null on the last page."""

    entries: tuple[CellEntry, ...]
    next: InstanceId | None = None


class AskHostBooks(AskBooksBelow, frozen=True, tag="host.books.query"):
    """Asks the compute of a cell which of these instances its hosts have; or for a page of all instances that they have.

    Pages are in the order of ids, and begin after the id `after`. The answer says which of `hosts` could be asked.
    """

    ROUTE = Route(Kind.QUESTION, "compute.{cell}.questions", answer="host.books.found", by=("operator",))

    hosts: Annotated[tuple[ProviderId, ...], Meta(max_length=NAMED_MAX)] = ()
    after: InstanceId | None = None
    limit: PageLimit = 1000


class HostBooksFound(AnswerMessage, frozen=True, tag="host.books.found"):
    """A page of the instances on a cell's hosts. Hosts that do not work normally cannot be asked, and their instances
    are not in it.

    `asked` are those hosts of the question that were asked. `next` is where the next page begins, null on the last
    page. `broken` are those of the entries that cannot run again.
    """

    entries: tuple[HostEntry, ...]
    asked: tuple[ProviderId, ...] = ()
    next: InstanceId | None = None
    broken: tuple[BrokenGuest, ...] = ()


def amounts_by_class(amounts: Iterable[ResourceAmount]) -> collections.Counter[tuple[ProviderId, str]]:
    """The sums of these amounts by provider and resource class."""
    sums: collections.Counter[tuple[ProviderId, str]] = collections.Counter()
    for each in amounts:
        sums[each.provider, each.resource] += each.amount
    return sums


# Messages by which instances of another cloud are taken over, and given back. Operators send them (`moor nova import`).


# What an instance may be when it is taken over. A broken one is in error, and keeps its host and its share.
AdoptedState = Literal["active", "stopped", "shelved", "broken"]


class AdoptInstance(StrictMessage, frozen=True, tag="instance.adopt"):
    """Take over an instance that another cloud has built on this host, with exactly this share of it.

    The share is claimed in placement, the cell gets a row, and the host adopts the guest that it has. Nothing is built, and the
    guest is not touched. Repeating the order is harmless. A hypervisor must not be `up` here, so that nothing else is built there
    meanwhile. On a bare-metal node Ironic must have the instance, and the node must be active.

    `number` is the number of the instance in its request, from 0. `reason` says why it is broken.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="instance.found", by=("operator",))

    instance: InstanceId
    request_id: RequestId
    of_cell: CellName
    host: Label
    share: Share
    state: AdoptedState
    flavor: Flavor
    created_at: Moment
    number: Natural = 0
    name: Label = ""
    project: Label = ""
    user: Label = ""
    image: Image | None = None
    image_properties: dict[str, str] = {}
    availability_zone: Label = ""
    group: GroupId | None = None
    reason: str = ""


class GiveBackInstance(StrictMessage, frozen=True, tag="instance.give_back"):
    """Give an instance that was taken over back to the cloud that it came from: its claim is released, and its row is deleted. Its
    host forgets it, and leaves the guest as it is.

    It is refused if the instance was not taken over, or if it has moved, or was resized or rebuilt since. The host must not be
    `up` here. Repeating the order is harmless.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="instance.found", by=("operator",))

    instance: InstanceId
