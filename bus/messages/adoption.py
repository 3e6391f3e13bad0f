"""Messages by which instances of another cloud are taken over, and given back. Operators send them (`moor import nova`)."""

from typing import Literal

from bus.message import CellName, GroupId, StrictMessage
from bus.messages.build import Flavor, Image, InstanceId, RequestId
from bus.messages.placement import Label, Moment, Natural, Share

# What an instance may be when it is taken over. A broken one is in error, and keeps its host and its share.
AdoptedState = Literal["active", "stopped", "shelved", "broken"]


class AdoptInstance(StrictMessage, frozen=True, tag="instance.adopt"):
    """Take over an instance that another cloud has built on this host, with exactly this share of it.

    The share is claimed in placement, the cell gets a row, and the host adopts the guest that it has. Nothing is built, and the
    guest is not touched. Repeating the order is harmless. The host must not be `up` here, so that nothing else is built there
    meanwhile.

    `number` is the number of the instance in its request, from 0. `reason` says why it is broken.
    """

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

    instance: InstanceId
