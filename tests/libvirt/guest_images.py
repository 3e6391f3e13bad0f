"""The image of tests: its guests write a line to their serial port, again and again."""

from pathlib import Path

from laboratory.demo_guests import bootable_image

TEXT = "guest is up\r\n"


def write_image(path: Path, text: str = TEXT) -> None:
    """Write a raw image that boots."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bootable_image(text))
