"""What a client asks of the API level, and what it is told: builds, deletes, questions about instances."""

from typing import Annotated, ClassVar, NewType
from uuid import UUID

from msgspec import Meta

from bus.message import CellName, ConsumerId, Message, Project
from bus.messages.placement import Counter, Label, Moment, Natural, ServerGroup, Value

RequestId = NewType("RequestId", UUID)
# An instance is a consumer of placement's from its first claim to its end.
InstanceId = ConsumerId


class Flavor(Value, frozen=True):
    """How large an instance is, and what it needs of its host. Amounts are judged by who schedules, not here, so that
    nonsense is answered with its field and value.
    """

    name: Label = ""
    vcpus: int = 0
    ram_mb: int = 0
    root_gb: int = 0
    ephemeral_gb: int = 0
    swap_mb: int = 0
    extra_specs: dict[str, str] = {}


# Where something is to be fetched: an id in a service, or a URL.
Reference = Annotated[str, Meta(max_length=2048)]


class Image(Value, frozen=True):
    """What is written onto a bare-metal node. `source` is an id in the image service, or a URL; Ironic wants a `checksum`
    of what it fetches by URL. An image of one partition needs a `kernel` and a `ramdisk` too.
    """

    source: Reference
    checksum: Label = ""
    kernel: Reference = ""
    ramdisk: Reference = ""


# A URL; or what Ironic takes instead, the base64 of a zipped ISO image: some KiB, unless user data is large.
ConfigDrive = Annotated[str, Meta(max_length=64 * 1024)]
# Ids of network ports that are attached to the instance.
Ports = Annotated[tuple[Label, ...], Meta(max_length=32)]


class BuildInstance(Message, frozen=True, tag="build.request"):
    """Build one instance, or `count` alike. The client chooses `request_id`; asked again with the same content, the
    answer is the same. Instance ids follow from it unless they are given.

    Only bare-metal nodes read `image`, `config_drive` and `ports`: a request that names one of them gets a node, or no
    host.
    """

    IS_STRICT: ClassVar[bool] = True

    request_id: RequestId | None = None
    flavor: Flavor | None = None
    count: int = 1
    instance_ids: tuple[InstanceId, ...] = ()
    name: Label = ""
    project: Project = ""
    user: Label = ""
    image_properties: dict[str, str] = {}
    availability_zone: Label = ""
    group: ServerGroup | None = None
    # Empty: any host that qualifies.
    hosts: tuple[str, ...] = ()
    ignore_hosts: tuple[str, ...] = ()
    # From its acceptance to its end, whatever that is. None: as long as the scheduler gives to hosts of the chosen kind.
    deadline_s: int | None = None
    image: Image | None = None
    config_drive: ConfigDrive = ""
    ports: Ports = ()


class BuildRejected(Message, frozen=True, tag="build.rejected"):
    """It makes no sense, or not to us: nothing was done. `field` and `value` say where."""

    request_id: RequestId | None
    field: str
    value: str
    reason: str
    project: Label = ""


class BuildAccepted(Message, frozen=True, tag="build.accepted"):
    """Written down: these instances will be active, in error or deleted by the deadline."""

    request_id: RequestId
    instances: tuple[InstanceId, ...]
    project: Label = ""


class DeleteInstance(Message, frozen=True, tag="instance.delete"):
    """Delete it, whatever state it is in. Asked again, it is gone still. Who waits for an answer is told what is known
    of it now (`InstancesFound`): nothing, if its request was not seen yet, and then it will not be built.

    With `project`, only an instance of that project; without, of whichever, which needs the right to all projects.
    """

    IS_STRICT: ClassVar[bool] = True

    instance: InstanceId
    project: Project = ""


class RebuildInstance(Message, frozen=True, tag="instance.rebuild"):
    """Write this image onto the node that has the instance, in place of what is there; its host and its share stay. Only an
    active instance is rebuilt, or one whose last rebuild failed. The client chooses `request_id`; asked again with the
    same content, it is not done again. The answer is what is known of the instance now (`InstancesFound`), or why not
    (`BuildRejected`).

    With `project`, only an instance of that project; without, of whichever, which needs the right to all projects.
    """

    IS_STRICT: ClassVar[bool] = True

    request_id: RequestId
    instance: InstanceId
    image: Image
    project: Project = ""
    # From its acceptance to its end, whatever that is. None: as long as the scheduler gives to bare-metal nodes.
    deadline_s: int | None = None


class FunnelStep(Value, frozen=True):
    """How many hosts one step removed, and why one of them was."""

    step: str
    removed: Natural
    example: str = ""


class Miss(Value, frozen=True):
    """A host that nearly was it, and what it lacked."""

    host: str
    reason: str


class NoValidHost(Value, frozen=True):
    """Why nowhere: `steps` together removed all `hosts`. `nearest` are the hosts that were asked for by name; where none
    were, those that lacked the least.
    """

    hosts: Natural
    steps: tuple[FunnelStep, ...]
    nearest: tuple[Miss, ...] = ()


class AttemptFailed(Value, frozen=True):
    """One try to build on one host, and how it ended."""

    attempt: Natural
    host: str
    reason: str


class ClaimRefused(Value, frozen=True):
    """A host was chosen, and placement did not give its share: the picture it was chosen by was older than the host."""

    host: str
    reason: str


class Rebuild(Value, frozen=True):
    """The last rebuild of an instance. A later one has a higher `number`. `failure` is why it failed; empty while it is
    under way, and when it is done.
    """

    request_id: RequestId
    number: Counter
    image: Image
    ends_by: Moment
    failure: str = ""


class InstanceState(Value, frozen=True):
    """An instance, whole, as of `sequence`: what is older about it is no longer true.

    States: accepted, placed, building, active, rebuilding, error, deleting, deleted. `host` is empty while there is none.
    `keeps_share`: it is deleted or in error, but its host has not confirmed that it is gone: its share stays held until
    then. An instance in error with a `rebuild` keeps its host and its share, and may be rebuilt again.
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
    # Before it was placed, while it was still to be: claims that were tried again, there or elsewhere.
    refusals: tuple[ClaimRefused, ...] = ()
    no_valid_host: NoValidHost | None = None
    reason: str = ""
    changed_at: Moment | None = None
    keeps_share: bool = False
    rebuild: Rebuild | None = None


class InstancePlaced(Message, frozen=True, tag="instance.placed"):
    """A host holds its share for it, and its cell has the order."""

    cell: CellName
    instance: InstanceState


class InstanceActive(Message, frozen=True, tag="instance.active"):
    cell: CellName
    instance: InstanceState


class InstanceFailed(Message, frozen=True, tag="instance.error"):
    """It ended in error; `failures` and `no_valid_host` say why. Its cell is `cell0` if it never had one."""

    cell: CellName
    instance: InstanceState


class InstanceDeleted(Message, frozen=True, tag="instance.deleted"):
    cell: CellName
    instance: InstanceState


class AskInstances(Message, frozen=True, tag="instance.query"):
    """These instances; or those of a request; or a page of all, in the order of their ids, after `after`.

    With `project`, of these only the instances of that project; without, of all, which needs the right to all projects.
    """

    IS_STRICT: ClassVar[bool] = True

    instances: Annotated[tuple[InstanceId, ...], Meta(max_length=200)] = ()
    request_id: RequestId | None = None
    after: InstanceId | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100
    state: Label = ""
    project: Project = ""


class InstancesFound(Message, frozen=True, tag="instance.found"):
    """`next` is where the next page starts; None on the last one."""

    instances: tuple[InstanceState, ...]
    next: InstanceId | None = None
