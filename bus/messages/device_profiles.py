"""Messages about device profiles, which schedulers store under names: the devices of an instance whose flavor names the profile."""

from typing import Annotated

from msgspec import Meta

from bus.message import Message, ProjectMessage, StrictMessage
from bus.messages.placement import Label, Positive, ResourceClass, Trait, Value

DeviceProfileName = Annotated[
    str, Meta(min_length=1, max_length=255, description="the device profile's name")
]


class DeviceGroup(Value, frozen=True):
    """Devices that one provider gives: amounts by class, and the traits that the provider has, or has not."""

    resources: Annotated[dict[ResourceClass, Positive], Meta(max_length=20)]
    required: Annotated[tuple[Trait, ...], Meta(max_length=20)] = ()
    forbidden: Annotated[tuple[Trait, ...], Meta(max_length=20)] = ()


class DeviceProfile(Value, frozen=True):
    """What an instance gets beside its flavor's sizes, if the flavor names the profile by `accel:device_profile`. Each group is
    a granular group of the request.
    """

    name: Label = ""
    groups: Annotated[tuple[DeviceGroup, ...], Meta(max_length=16)] = ()
    description: Label = ""


class CreateDeviceProfile(StrictMessage, frozen=True, tag="device.profile.create"):
    """Store a device profile under its name. A repeated order with the same content is not done twice. Other content under the same
    name is rejected, with the first field that differs: delete the profile first.
    """

    profile: DeviceProfile


class DeleteDeviceProfile(StrictMessage, frozen=True, tag="device.profile.delete"):
    """Delete a device profile: no flavor of a new request may name it any more. Instances keep their devices. The answer has
    the deleted profile; it is empty if there was none.
    """

    name: DeviceProfileName


class AskDeviceProfiles(ProjectMessage, frozen=True, tag="device.profile.query"):
    """Asks for one device profile, or for a page of all, in the order of their names, after `after`. Profiles are for all projects:
    `project` only says who asks.
    """

    name: Annotated[Label, Meta(description="only the device profile of this name")] = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200


class DeviceProfilesFound(Message, frozen=True, tag="device.profile.found"):
    """The device profiles that were asked for, created or deleted. `next` is where the next page begins, empty on the last page."""

    profiles: tuple[DeviceProfile, ...]
    next: Label = ""
