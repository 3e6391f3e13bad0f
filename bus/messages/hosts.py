"""What is known of hosts beside their providers: are they up, may they be used, how busy are they."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from bus.message import CellName, Message, ProviderId
from bus.messages.placement import Counter, Label, Moment, Natural, Value

# Kinds of hosts. The empty one is a hypervisor, on which instances are virtual machines.
NODE = "ironic"

HOSTS_PER_MESSAGE_MAX = 1000
# A message and its envelope must fit into a parcel.
HOSTS_BYTES_MAX = 250_000

# A node may be bound to these projects, its owner and its lessee: nobody else may use it. Empty: everybody may.
Projects = Annotated[tuple[Label, ...], Meta(max_length=10)]


class HostFacts(Value, frozen=True):
    """A host as it sees itself; `id` is its root provider. Of hosts that are reported together, each may have an `epoch` and a
    `sequence` of its own, which count instead of the report's.
    """

    id: ProviderId
    name: Label
    instances: Natural = 0
    # Builds, migrations and the like that are under way.
    io_ops: Natural = 0
    availability_zone: Label = ""
    hypervisor_type: Label = ""
    hypervisor_version: Natural = 0
    kind: Label = ""
    projects: Projects = ()
    epoch: Counter = 0
    sequence: Counter = 0


class HostsReported(Message, frozen=True, tag="host.state"):
    """These hosts are up, and this is what they are: at their start, and when it changes.

    `epoch` is the reporter's term where several share the work (0 where there is no ring); `sequence` orders the reports
    of one term (0: in the order they come). Of each host the latest counts, whenever it comes.
    """

    cell: CellName
    hosts: Annotated[tuple[HostFacts, ...], Meta(max_length=1000)]
    epoch: Counter = 0
    sequence: Counter = 0


class HostsAlive(Message, frozen=True, tag="host.beat"):
    """Heartbeats of a cell's hosts, many in one. Who is not heard of for a while is down."""

    cell: CellName
    hosts: Annotated[tuple[ProviderId, ...], Meta(max_length=5000)]


class SetHost(Message, frozen=True, tag="host.set"):
    """An operator's word: use this host, or do not."""

    IS_STRICT: ClassVar[bool] = True

    host: Label
    enabled: bool
    reason: Label = ""


class HostState(Value, frozen=True):
    """A host as the registry has it. `sequence` counts what the registry wrote of it; `report_epoch` and
    `report_sequence` say which report of its own was the last.
    """

    id: ProviderId
    name: Label
    cell: Label
    up: bool
    enabled: bool
    disabled_reason: Label = ""
    instances: Natural = 0
    io_ops: Natural = 0
    availability_zone: Label = ""
    hypervisor_type: Label = ""
    hypervisor_version: Natural = 0
    heard_at: Moment | None = None
    sequence: Counter = 0
    report_epoch: Counter = 0
    report_sequence: Counter = 0
    kind: Label = ""
    projects: Projects = ()


class AskHosts(Message, frozen=True, tag="host.query"):
    """Hosts in the order of their names, after `after`; or the one called `name`."""

    IS_STRICT: ClassVar[bool] = True

    name: Label = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200


class HostsFound(Message, frozen=True, tag="host.found"):
    """`next` is where the next page starts; empty on the last one."""

    hosts: tuple[HostState, ...]
    next: Label = ""


class HostSet(Message, frozen=True, tag="host.was_set"):
    """Done, and this is the host now; none if there is no such host."""

    host: HostState | None


def in_messages(facts: Sequence[HostFacts]) -> list[tuple[HostFacts, ...]]:
    """As few messages as these fit into."""
    messages: list[tuple[HostFacts, ...]] = []
    current: list[HostFacts] = []
    size = 0
    for each in facts:
        bytes_ = len(msgspec.json.encode(each)) + 1
        if current and (len(current) == HOSTS_PER_MESSAGE_MAX or size + bytes_ > HOSTS_BYTES_MAX):
            messages.append(tuple(current))
            current, size = [], 0
        current.append(each)
        size += bytes_
    return [*messages, tuple(current)] if current else messages
