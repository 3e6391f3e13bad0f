"""Messages about named images, which schedulers store: a build request may name one in place of an image and its properties."""

from typing import Annotated
from uuid import UUID

from msgspec import Meta

from bus.message import Message, ProjectMessage, StrictMessage
from bus.messages.build import Image, Reference
from bus.messages.placement import Label, Value

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

    image: NamedImage


class SetImage(StrictMessage, frozen=True, tag="image.set"):
    """Change a stored image for the requests that name it from now on. Everything that the order does not name stays.

    A property with a value is set, and one with null is removed. Instances, and their later moves, stay as they are. The answer has
    the changed image; it is empty if there is none of this name. A repeated order changes nothing.
    """

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

    name: ImageName


class AskImages(ProjectMessage, frozen=True, tag="image.query"):
    """Asks for one stored image, or for a page of all, in the order of their names, after `after`. Images are for all projects:
    `project` only says who asks.
    """

    name: Annotated[Label, Meta(description="only the image of this name")] = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200


class ImagesFound(Message, frozen=True, tag="image.found"):
    """The images that were asked for, created, changed or deleted. `next` is where the next page begins, empty on the last page."""

    images: tuple[NamedImage, ...]
    next: Label = ""
