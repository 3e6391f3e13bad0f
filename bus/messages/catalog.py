"""Messages about the catalog: flavors, images and device profiles, which schedulers store under names for requests to name."""

from typing import Annotated
from uuid import UUID

from msgspec import Meta

from bus.message import AnswerMessage, Kind, ProjectMessage, Route, StrictMessage
from engine.flavors import DeviceProfile, Flavor, Image, Reference
from engine.inventories import Label, Value

# Flavors: a build request may name them in place of the whole flavor.


FlavorName = Annotated[str, Meta(min_length=1, max_length=255, description="the flavor's name")]


class AskStored(ProjectMessage, frozen=True):
    """Asks for what is stored under one name, or for a page of all, in the order of their names, after `after`. All projects have the
    same: `project` only says who asks.
    """

    name: Annotated[Label, Meta(description="only the one of this name")] = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200


class CreateFlavor(StrictMessage, frozen=True, tag="flavor.create"):
    """Store a flavor under its name. A repeated order with the same content is not done twice. Other content under the same name
    is rejected, with the first field that differs: delete the flavor first.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="flavor.found", by=("operator",))

    flavor: Flavor


class DeleteFlavor(StrictMessage, frozen=True, tag="flavor.delete"):
    """Delete a flavor: no request may name it any more. Instances stay as they are. The answer has the deleted flavor; it is
    empty if there was none.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="flavor.found", by=("operator",))

    name: FlavorName


class AskFlavors(AskStored, frozen=True, tag="flavor.query"):
    """Asks for one flavor, or for a page of all, in the order of their names, after `after`. Flavors are for all projects:
    `project` only says who asks.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="flavor.found", by=("application", "keeper"))


class FlavorsFound(AnswerMessage, frozen=True, tag="flavor.found"):
    """The flavors that were asked for, created or deleted. `next` is where the next page begins, empty on the last page."""

    flavors: tuple[Flavor, ...]
    next: Label = ""


# Images: a build request may name one in place of an image and its properties.


ImageName = Annotated[str, Meta(min_length=1, max_length=255, description="the image's name")]


def is_image_source(text: str) -> bool:
    """Is this an image's own id, a uuid, or its URL? Such a text is looked up nowhere, so no image is stored under it."""
    if "://" in text:
        return True
    try:
        UUID(text)
    except ValueError:
        return False
    return True


class NamedImage(Value, frozen=True):
    """An image that is stored under a name, with its properties: what each of its instances requires of a host.

    `source`, `checksum`, `kernel` and `ramdisk` are those of an `Image`.
    """

    name: Label = ""
    source: Reference = ""
    checksum: Label = ""
    kernel: Reference = ""
    ramdisk: Reference = ""
    properties: dict[str, str] = {}

    @property
    def image(self) -> Image:
        return Image(source=self.source, checksum=self.checksum, kernel=self.kernel, ramdisk=self.ramdisk)


class CreateImage(StrictMessage, frozen=True, tag="image.create"):
    """Store an image under its name. A repeated order with the same content is not done twice. Other content under the same
    name is rejected, with the first field that differs: change that image, or delete it first.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="image.found", by=("operator",))

    image: NamedImage


class SetImage(StrictMessage, frozen=True, tag="image.set"):
    """Change a stored image for the requests that name it from now on. Everything that the order does not name stays.

    A property with a value is set, and one with null is removed. Instances, and their later moves, stay as they are. The answer has
    the changed image; it is empty if there is none of this name. A repeated order changes nothing.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="image.found", by=("operator",))

    name: ImageName
    source: Reference | None = None
    checksum: Label | None = None
    kernel: Reference | None = None
    ramdisk: Reference | None = None
    properties: dict[str, str | None] = {}


class DeleteImage(StrictMessage, frozen=True, tag="image.delete"):
    """Delete a stored image: no request may name it any more. Instances stay as they are. The answer has the deleted image; it
    is empty if there was none.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="image.found", by=("operator",))

    name: ImageName


class AskImages(AskStored, frozen=True, tag="image.query"):
    """Asks for one stored image, or for a page of all, in the order of their names, after `after`. Images are for all projects:
    `project` only says who asks.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="image.found", by=("application",))


class ImagesFound(AnswerMessage, frozen=True, tag="image.found"):
    """The images that were asked for, created, changed or deleted. `next` is where the next page begins, empty on the last page."""

    images: tuple[NamedImage, ...]
    next: Label = ""


# Device profiles: the devices of an instance whose flavor names the profile.


DeviceProfileName = Annotated[
    str, Meta(min_length=1, max_length=255, description="the device profile's name")
]


class CreateDeviceProfile(StrictMessage, frozen=True, tag="device.profile.create"):
    """Store a device profile under its name. A repeated order with the same content is not done twice. Other content under the same
    name is rejected, with the first field that differs: delete the profile first.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="device.profile.found", by=("operator",))

    profile: DeviceProfile


class DeleteDeviceProfile(StrictMessage, frozen=True, tag="device.profile.delete"):
    """Delete a device profile: no flavor of a new request may name it any more. Instances keep their devices. The answer has
    the deleted profile; it is empty if there was none.
    """

    ROUTE = Route(Kind.ORDER, "scheduler.requests", answer="device.profile.found", by=("operator",))

    name: DeviceProfileName


class AskDeviceProfiles(AskStored, frozen=True, tag="device.profile.query"):
    """Asks for one device profile, or for a page of all, in the order of their names, after `after`. Profiles are for all projects:
    `project` only says who asks.
    """

    ROUTE = Route(Kind.QUESTION, "scheduler.questions", answer="device.profile.found", by=("application",))


class DeviceProfilesFound(AnswerMessage, frozen=True, tag="device.profile.found"):
    """The device profiles that were asked for, created or deleted. `next` is where the next page begins, empty on the last page."""

    profiles: tuple[DeviceProfile, ...]
    next: Label = ""
