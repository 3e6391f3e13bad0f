"""Images that are stored under names: what `--image` names, and where the name is looked up."""

from bus.messages.images import AskImages, ImagesFound, NamedImage, is_image_source
from moor.asking import Asks, answer_of, items_of
from moor.nearest_names import near_texts
from moor.options import fail

PAGE = 500


def image_name_in(image: str) -> str:
    """The text as the name of a stored image; empty for an image's own id or URL, which is looked up nowhere."""
    return "" if is_image_source(image) else image


async def stored_image(asking: Asks, name: str, project: str) -> NamedImage:
    """The stored image of this name. If there is none, the command ends, and names those near it."""
    found = (await answer_of(asking, AskImages(name=name, project=project), ImagesFound)).images
    if not found:
        every = AskImages(project=project, limit=PAGE)
        known = await items_of(asking, every, ImagesFound, lambda page: page.images)
        near = near_texts(name, [each.name for each in known])
        fail(
            f"--image is {name!r}, and no image of this name is stored{near}; `moor image list` shows all, and an image that is not "
            "stored is named by its id, a uuid, or its URL"
        )
    return found[0]
