"""Messages by which a compute brings a host into a new shape while instances live there: for instance from one provider to NUMA
cells below it, and back.

The compute asks what placement has of the host's tree (`AskHostShape`), lets its driver say which provider gives what to each
consumer from then on, and asks for everything in one step (`ReshapeHost`). Placement writes all of it in one transaction, or
nothing.
"""

from typing import Annotated

from msgspec import Meta

from bus.message import CellMessage, ConsumerId, Message, ProviderId
from bus.messages.administration import ConsumerMoved
from bus.messages.placement import (
    Counter,
    DoesNotFit,
    InventoryInUse,
    NotAllowed,
    ProviderState,
    ReportAccepted,
    ReportedProvider,
    ReportOutdated,
    ResourceAmount,
    ShapeMoved,
    Value,
)


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

    root: ProviderId
    after: ConsumerId | None = None


class HostShapeFound(Message, frozen=True, tag="host.shape.found"):
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

    root: ProviderId
    shape: Counter
    providers: Annotated[tuple[ReportedProvider, ...], Meta(max_length=1000)]
    sequence: Counter = 0
    moved: Annotated[tuple[HostHolder, ...], Meta(max_length=2000)] = ()


ReshapeVerdict = (
    ReportAccepted | ReportOutdated | InventoryInUse | DoesNotFit | ConsumerMoved | ShapeMoved | NotAllowed
)


class HostReshaped(Message, frozen=True, tag="host.reshaped"):
    """The verdict on a reshape of a host. If it is not `accepted`, nothing has changed.

    `shape_moved`, `consumer_moved` and `in_use` say that something changed since the sender asked: it asks again.
    """

    root: ProviderId
    verdict: ReshapeVerdict
