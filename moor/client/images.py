"""Images that are stored under names, for all projects."""

from collections.abc import AsyncGenerator, Mapping

from bus.messages.images import AskImages, CreateImage, DeleteImage, ImagesFound, NamedImage, SetImage
from moor.client.errors import NotFound
from moor.client.session import ClientSession

IMAGES_PAGE = 200


class ImageCalls(ClientSession):
    """The client's methods about stored images."""

    async def create_image(self, image: NamedImage) -> NamedImage:
        """Store an image with its properties under its name, for all projects: `boot(..., image_name="NAME")` uses it. For operators.

        To repeat it with the same content is harmless. Raises `Rejected` if another image has this name: change that one, or delete
        it first.
        """
        return (await self._ask(CreateImage(image=image), ImagesFound)).images[0]

    async def set_image(
        self,
        name: str,
        *,
        source: str | None = None,
        checksum: str | None = None,
        kernel: str | None = None,
        ramdisk: str | None = None,
        properties: Mapping[str, str | None] | None = None,
    ) -> NamedImage:
        """Change a stored image for later boots; what is not named stays, and so do instances. Raises `NotFound`. For operators.

        A property with a value is set, and one with None is removed.
        """
        order = SetImage(
            name=name,
            source=source,
            checksum=checksum,
            kernel=kernel,
            ramdisk=ramdisk,
            properties=dict(properties or {}),
        )
        return await self._one_image(order, name)

    async def delete_image(self, name: str) -> NamedImage:
        """Delete a stored image; instances stay as they are. Returns it as it was. Raises `NotFound`. For operators."""
        return await self._one_image(DeleteImage(name=name), name)

    async def show_image(self, name: str) -> NamedImage:
        """The image that is stored under this name. Raises `NotFound`."""
        return await self._one_image(AskImages(name=name, project=self.project), name)

    async def list_images(self) -> AsyncGenerator[NamedImage, None]:
        """All stored images in the order of their names."""
        question = AskImages(project=self.project, limit=IMAGES_PAGE)
        async for each in self._items(question, ImagesFound, lambda page: page.images):
            yield each

    async def _one_image(self, question: SetImage | DeleteImage | AskImages, name: str) -> NamedImage:
        # Without a name the question would be for all of them.
        found = (await self._ask(question, ImagesFound)).images if name else ()
        if not found:
            raise NotFound("image", name)
        return found[0]
