"""Messages about hosts themselves: whether a host is up, may be used, and how busy it is.

Messages about what hosts provide are in placement.py.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from bus.chunks import chunks
from bus.message import CellMessage, Message, ProviderId, StrictMessage, UserName
from bus.messages.placement import Counter, Label, Moment, Natural, Value

# The entries of a message about many hosts.
H = TypeVar("H", bound=Value)

# Kinds of hosts. The empty kind is a hypervisor that runs virtual machines.
NODE = "ironic"

HOSTS_PER_MESSAGE_MAX = 1000
# A message and its envelope must fit into a parcel.
HOSTS_BYTES_MAX = 250_000

# Weights are sums of products of metrics: far from what a float can hold.
Metric = Annotated[float, Meta(ge=-1e15, le=1e15)]

# The projects that may use a node: its owner's and its lessee's. Empty: all projects.
Projects = Annotated[tuple[Label, ...], Meta(max_length=10)]


class Supported(Value, frozen=True):
    """A kind of instances that a host can run; an empty field stands for any."""

    architecture: Label = ""
    hypervisor_type: Label = ""
    vm_mode: Label = ""


# A key has parts, joined by colons (cpu_info:model); a value with several words is a set of words.
Capabilities = Annotated[dict[Label, Annotated[str, Meta(max_length=1024)]], Meta(max_length=64)]


class HostDescription(Value, frozen=True, kw_only=True):
    """A host as it describes itself. `id` is its root provider."""

    id: ProviderId
    name: Label
    instances: Natural = 0
    # Builds, migrations and similar work in progress.
    io_ops: Natural = 0
    availability_zone: Label = ""
    hypervisor_type: Label = ""
    hypervisor_version: Natural = 0
    kind: Label = ""
    projects: Projects = ()
    supports: Annotated[tuple[Supported, ...], Meta(max_length=64)] = ()
    capabilities: Capabilities = {}
    # Builds that failed there since the last one that succeeded.
    failed_builds: Natural = 0
    # Why placement has an older state of it: it has refused the host's last report, or to reshape the host.
    report_refused: Label = ""


class HostFacts(HostDescription, frozen=True):
    """A host in a report (`host.state`). If it has an `epoch` and a `sequence` of its own, these replace the report's.

    `is_gone`: the host does not exist any more, such as a node that Ironic has deleted. The schedulers forget it.
    """

    epoch: Counter = 0
    sequence: Counter = 0
    is_gone: bool = False


class HostsReported(CellMessage, frozen=True, tag="host.state"):
    """A report that these hosts are up, with facts about each. It is sent when they start and when the facts change.

    `epoch` is the reporter's term where several share the work (0 where there is no ring). `sequence` orders the
    reports of one term (0: in the order of arrival). The latest report of each host counts, whenever it arrives.
    """

    hosts: Annotated[tuple[HostFacts, ...], Meta(max_length=1000)]
    epoch: Counter = 0
    sequence: Counter = 0


class HostsAlive(CellMessage, frozen=True, tag="host.beat"):
    """Heartbeats of many hosts of a cell. A host that is not heard of for a while is down."""

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

    hosts: Annotated[tuple[HostImages, ...], Meta(max_length=1000)]
    sequence: Counter = 0


# up: it may be used while its heartbeats arrive. draining: nothing new is built there; its instances stay. down: as if its
# heartbeats had stopped. dead: as down, and it is certain that nothing runs there, so nobody waits for it to clean up.
HostMode = Literal["up", "down", "draining", "dead"]


class HostSetting(Value, frozen=True, kw_only=True):
    """The mode of a host. An operator sets it, or the scheduler after too many failed builds there.

    `number` rises with each setting of the host.
    """

    mode: HostMode = "up"
    reason: Label = ""
    by: Label = ""
    at: Moment | None = None
    number: Counter = 0


class SetHost(StrictMessage, frozen=True, tag="host.set"):
    """Set a host up, draining, down or dead. It stays so until it is set again. Operators send it.

    `dead` says that nothing runs on the host, and that nothing will. So what the host still held for instances that
    have left it is released at once. If a dead host returns, it must be set to another mode before it may be used.
    Before that it destroys all attempts of instances that its cell no longer counts on. A host that is heard may still run its
    instances: it is set dead only with `sure`.
    """

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


class HostState(HostDescription, frozen=True, kw_only=True):
    """A host in the schedulers' registry. `sequence` grows with each write to the registry.

    `report_epoch` and `report_sequence` identify the host's last report.
    """

    cell: Label
    up: bool
    setting: HostSetting = HostSetting()
    # The number of the setting that its cell has been told.
    told: Counter = 0
    # It was dead, and has not yet confirmed that nothing foreign is left on it.
    must_clean: bool = False
    heard_at: Moment | None = None
    # When it was last heard, if a scheduler has found it silent; schedulers that start go by it.
    silent_since: Moment | None = None
    sequence: Counter = 0
    report_epoch: Counter = 0
    report_sequence: Counter = 0
    # Other cells that have a host of this name. Only answers say it.
    also_in: tuple[Label, ...] = ()


class AskHosts(StrictMessage, frozen=True, tag="host.query"):
    """Asks for a page of hosts in the order of their names, after the name `after`; or for the host called `name`.

    A name may have a cell before it (`c1/h1`). Without one, the host of this name in each cell is found.
    """

    name: Label = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200


class HostsFound(Message, frozen=True, tag="host.found"):
    """A page of hosts. `next` is the name after which the next page begins, empty on the last page."""

    hosts: tuple[HostState, ...]
    next: Label = ""


class HostSet(Message, frozen=True, tag="host.was_set"):
    """The host has its new mode. `host` is the host's state now."""

    host: HostState


class HostChanged(CellMessage, frozen=True, tag="host.changed"):
    """The mode of a host was set, or a host that was dead has cleaned up. `host` is the host's state now."""

    host: HostState


def host_in_cell(cell: str, name: str) -> str:
    """How one names a host of this cell where a host of another cell may have the same name. Without a cell, it is the name."""
    return f"{cell}/{name}" if cell else name


def cell_and_name(host: str) -> tuple[str, str]:
    """The cell and the name of a host that may be named with its cell (`c1/h1`); without one, the cell is empty."""
    cell, slash, name = host.partition("/")
    return (cell, name) if slash and cell and name else ("", host)


def names_clash(name: str, cells: Sequence[str]) -> str:
    """Why this name does not say which host is meant: hosts of several cells have it."""
    as_words = [host_in_cell(cell, name) for cell in cells]
    return f"hosts of cells {' and '.join(cells)} have this name: give one as {' or '.join(as_words)}"


def in_messages(facts: Sequence[H]) -> list[tuple[H, ...]]:
    """Split values about many hosts into as few messages as possible, none with too many hosts or too many bytes."""
    share = HOSTS_BYTES_MAX // HOSTS_PER_MESSAGE_MAX
    sizes = [max(len(msgspec.json.encode(each)) + 1, share) for each in facts]
    return [tuple(facts[part]) for part in chunks(sizes, HOSTS_BYTES_MAX)] if facts else []
