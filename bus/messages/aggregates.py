"""Messages about host aggregates: named groups of hosts with metadata. A host is a hypervisor or a single bare-metal node.

Placement keeps the members, as aggregates of their providers; the schedulers keep names and metadata.
"""

from typing import Annotated

from msgspec import Meta

from bus.message import AggregateId, Message, StrictMessage
from bus.messages.placement import Counter, Label, Natural, Value

HOSTS_PER_ORDER_MAX = 1000
METADATA_KEYS_MAX = 200

MetadataKey = Annotated[str, Meta(min_length=1, max_length=255)]
MetadataValue = Annotated[str, Meta(max_length=255)]
# Each is a host's name or the id of its root provider.
HostNames = Annotated[tuple[Label, ...], Meta(max_length=HOSTS_PER_ORDER_MAX)]


class Aggregate(Value, frozen=True):
    """An aggregate without its members. `sequence` orders its states: the time of the write in microseconds, so that an
    aggregate that was deleted and created again is later than before.
    """

    id: AggregateId
    name: Label
    metadata: dict[MetadataKey, MetadataValue] = {}
    sequence: Counter = 0


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

    aggregate: AggregateId
    name: Label = ""
    metadata: Annotated[dict[MetadataKey, MetadataValue | None], Meta(max_length=METADATA_KEYS_MAX)] = {}
    add_hosts: HostNames = ()
    remove_hosts: HostNames = ()


class AggregateSet(Message, frozen=True, tag="aggregate.was_set"):
    """The order about an aggregate is done. `aggregate` is the aggregate's state now."""

    aggregate: AggregateState


class DeleteAggregate(StrictMessage, frozen=True, tag="aggregate.delete"):
    """Deletes the name and the metadata of an aggregate. Refused while a host is in it. Repeating the order is
    harmless.
    """

    aggregate: AggregateId


class AggregateDeleted(Message, frozen=True, tag="aggregate.was_deleted"):
    """There is no such aggregate any more. `was_there` says whether there was one before the order."""

    aggregate: AggregateId
    was_there: bool


class AskAggregates(StrictMessage, frozen=True, tag="aggregate.query"):
    """Asks for a page of aggregates, or with `name` for a page of the hosts of one aggregate.

    Pages are in the order of names, and begin after the name `after`: that of an aggregate, or of a host.
    """

    name: Label = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200


class AggregatesFound(Message, frozen=True, tag="aggregate.found"):
    """A page of aggregates, or of the hosts of one aggregate; only the latter lists `hosts`.

    `next` is the name after which the next page begins, empty on the last page.
    """

    aggregates: tuple[AggregateState, ...]
    next: Label = ""


class AggregateChanged(Message, frozen=True, tag="aggregate.changed"):
    """An event: the name and metadata of an aggregate as they are now. Members are in `providers.changed` instead."""

    aggregate: Aggregate
    deleted: bool = False
