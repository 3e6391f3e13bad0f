"""What `--image` names: a stored image, whose name is looked up, or an image's own id or URL, which is not."""

import asyncio
from uuid import UUID

import pytest
import typer

from bus.message import Message
from bus.messages.stored_names import AskImages, ImagesFound, NamedImage
from engine.flavors import Image
from moor.instances.requests import ImageOptions, image_name_in, stored_image

DEBIAN = NamedImage(name="debian-13", source="http://images/debian")
ID = "0b6d1c9e-5d3f-4a4f-9c8e-3a0b1c2d3e4f"


class Asked:
    """A bus on which these images are stored."""

    def __init__(self, *images: NamedImage) -> None:
        self._images = images

    async def ask(self, question: Message) -> Message:
        assert isinstance(question, AskImages)
        return ImagesFound(images=tuple(each for each in self._images if question.name in ("", each.name)))


@pytest.mark.parametrize("source", [ID, UUID(ID).hex, "http://images/debian", "file:///srv/debian"])
def test_an_id_or_a_url_is_the_image_itself(source: str) -> None:
    assert image_name_in(source) == ""
    assert ImageOptions(image_checksum="0a").read(source) == Image(source=source, checksum="0a")


@pytest.mark.parametrize("name", ["debian", "debian-13", "0b6d", "http"])
def test_any_other_text_is_the_name_of_a_stored_image(name: str) -> None:
    assert image_name_in(name) == name
    assert ImageOptions().read(name) is None
    with pytest.raises(
        typer.BadParameter, match=r"--image-checksum is '0a', but --image is .* a stored image"
    ):
        ImageOptions(image_checksum="0a").read(name)


def test_without_an_image_nothing_describes_one() -> None:
    assert image_name_in("") == ""
    assert ImageOptions().read("") is None
    with pytest.raises(typer.BadParameter, match="--image is not given"):
        ImageOptions(image_kernel="k").read("")


@pytest.mark.parametrize(
    ("name", "says"), [("debain-13", "near it are debian-13; "), ("windows", "is stored; `moor image list`")]
)
def test_an_unknown_name_ends_the_command_with_those_near_it(
    name: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked(DEBIAN, NamedImage(name="arch", source="http://images/arch"))
    assert asyncio.run(stored_image(asked, "debian-13", "")) == DEBIAN

    with pytest.raises(typer.Exit):
        asyncio.run(stored_image(asked, name, ""))

    assert says in capsys.readouterr().err
