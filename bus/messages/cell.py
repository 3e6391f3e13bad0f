"""What is said inside one cell: the order to place an instance, and the talk of its conductor with its hosts.

A hypervisor spawns and destroys, a bare-metal node is deployed and undeployed; the answers are the same. Only a node is
rebuilt.
"""

from typing import Annotated

from msgspec import Meta

from bus.message import CellName, Message, ProviderId
from bus.messages.build import ConfigDrive, Flavor, Image, InstanceId, Ports, Rebuild, RequestId
from bus.messages.placement import Attempt, Counter, Label, Moment, ServerGroup, Share, Value


class Choice(Value, frozen=True, array_like=True):
    """A host that qualifies, and the share it would give. Only the chosen one holds it; alternates were only looked at.

    `qualities` says what the host's tree was when it was chosen (qualities.py): who finds its shape moved can tell whether
    it was only its inventories. Empty: nobody can. `kind` is the host's (hosts.py).
    """

    name: Label
    share: Share
    qualities: Label = ""
    kind: Label = ""


class PlaceInCell(Message, frozen=True, tag="place"):
    """Build this instance on the host that holds its claim; if that fails, on the alternates in their order."""

    cell: CellName
    instance: InstanceId
    request_id: RequestId
    attempt: Attempt
    issued_at: Moment
    ends_by: Moment
    flavor: Flavor
    chosen: Choice
    alternates: Annotated[tuple[Choice, ...], Meta(max_length=20)] = ()
    name: Label = ""
    project: Label = ""
    user: Label = ""
    image_properties: dict[str, str] = {}
    group: ServerGroup | None = None
    image: Image | None = None
    config_drive: ConfigDrive = ""
    ports: Ports = ()


class RemoveFromCell(Message, frozen=True, tag="remove"):
    """The instance is to be deleted, whatever has become of it here."""

    cell: CellName
    instance: InstanceId
    request_id: RequestId
    issued_at: Moment


class RebuildInCell(Message, frozen=True, tag="rebuild"):
    """Write another image onto the host of this instance, in place. Its cell goes on counting from the rebuild's number."""

    cell: CellName
    instance: InstanceId
    rebuild: Rebuild


class SpawnInstance(Message, frozen=True, tag="spawn"):
    """To the host: make it. `attempt` names this try in everything that is said of it."""

    cell: CellName
    instance: InstanceId
    attempt: Attempt
    host: ProviderId
    flavor: Flavor
    share: Share
    name: Label = ""


class DestroyInstance(Message, frozen=True, tag="destroy"):
    """To the host: nothing of this attempt is to be left. Done even where nothing is."""

    cell: CellName
    instance: InstanceId
    attempt: Attempt
    host: ProviderId


class DeployInstance(Message, frozen=True, tag="deploy"):
    """To the daemons that look after bare-metal nodes: make this node the instance. `attempt` names this try in everything
    that is said of it.
    """

    cell: CellName
    instance: InstanceId
    attempt: Attempt
    host: ProviderId
    flavor: Flavor
    share: Share
    name: Label = ""
    project: Label = ""
    user: Label = ""
    image_properties: dict[str, str] = {}
    image: Image | None = None
    config_drive: ConfigDrive = ""
    ports: Ports = ()


class UndeployInstance(Message, frozen=True, tag="undeploy"):
    """To the daemons that look after bare-metal nodes: nothing of this attempt is to be left on the node. Done even where
    nothing is.
    """

    cell: CellName
    instance: InstanceId
    attempt: Attempt
    host: ProviderId


class RedeployInstance(Message, frozen=True, tag="redeploy"):
    """To the daemons that look after bare-metal nodes: write this image onto the node, which has the attempt of the
    instance. `number` tells this rebuild of it from others; a higher one is later.
    """

    cell: CellName
    instance: InstanceId
    attempt: Attempt
    host: ProviderId
    number: Counter
    flavor: Flavor
    image: Image
    name: Label = ""
    image_properties: dict[str, str] = {}
    config_drive: ConfigDrive = ""


class DeployProgressed(Message, frozen=True, tag="deploy.progress"):
    """The node still works on this attempt: its deadline begins anew. `words` say what the node does, for people."""

    cell: CellName
    instance: InstanceId
    attempt: Attempt
    host: ProviderId
    words: Label = ""


class InstanceSpawned(Message, frozen=True, tag="spawned"):
    """It runs there. `kind` is the host's: whoever knows nothing of the instance tells by it how to get rid of it."""

    cell: CellName
    instance: InstanceId
    attempt: Attempt
    host: ProviderId
    kind: Label = ""


class SpawnFailed(Message, frozen=True, tag="spawn.failed"):
    """The host could not, and has cleaned up after itself."""

    cell: CellName
    instance: InstanceId
    attempt: Attempt
    host: ProviderId
    reason: str


class InstanceDestroyed(Message, frozen=True, tag="destroyed"):
    """Nothing of this attempt is left on the host."""

    cell: CellName
    instance: InstanceId
    attempt: Attempt
    host: ProviderId


class InstanceRedeployed(Message, frozen=True, tag="redeployed"):
    """How the rebuild of that number ended: done, or `failure` says why not. `is_active`: the instance runs on the node; after
    a failure, what ran there before.
    """

    cell: CellName
    instance: InstanceId
    attempt: Attempt
    host: ProviderId
    number: Counter
    failure: str = ""
    is_active: bool = True
