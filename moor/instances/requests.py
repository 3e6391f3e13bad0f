"""Turns options of commands into fields of a build request; and finds the stored image that `--image` names."""

import base64
from collections.abc import Sequence
from pathlib import Path

import typer

from bus.messages.build import CONFIG_DRIVE_MAX, Wait
from bus.messages.config_drive import ConfigDriveParts, text_of
from bus.messages.images import AskImages, ImagesFound, NamedImage, is_image_source
from bus.messages.moves import MoveWait
from moor.asking import Asks, answer_of, items_of
from moor.nearest_names import near_texts
from moor.options import fail, put_once

GZIP = b"\x1f\x8b"
KEY_NAME = "moor"


def pairs_of(flag: str, texts: Sequence[str] | None, default: str | None = None) -> dict[str, str]:
    """Parse KEY=VALUE of a repeatable flag. A text without `=` gets the default value, if there is one."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or (not equals and default is None):
            raise typer.BadParameter(f"{flag} is {text!r}, must be KEY=VALUE")
        put_once(pairs, key, value if equals else default or "", flag)
    return pairs


def wait_of(for_s: int | None, priority: int | None) -> Wait | None:
    if for_s is not None:
        return Wait(for_s=for_s, priority=priority or 0)
    if priority is not None:
        raise typer.BadParameter(
            f"--priority is {priority}, and nothing waits: it orders requests with --wait-for-room"
        )
    return None


def move_wait_of(for_s: int | None, priority: int | None) -> MoveWait | None:
    wait = wait_of(for_s, priority)
    return None if wait is None else MoveWait(for_s=wait.for_s, priority=priority)


def drive_of(
    config_drive: str,
    user_data: Path | None,
    meta: Sequence[str] | None,
    ssh_key: Path | None,
) -> str:
    """The config drive of a request: as given, or of these parts. A request has one, and it is bounded."""
    if not (user_data or meta or ssh_key):
        return _bounded(config_drive_of(config_drive), "--config-drive")
    if config_drive:
        raise typer.BadParameter(
            "--config-drive is a whole config drive, and --user-data, --meta and --ssh-key make one: give one or the other"
        )
    meta_data: dict[str, object] = {}
    if ssh_key:
        meta_data["public_keys"] = {KEY_NAME: _text_in("--ssh-key", ssh_key).strip()}
    if meta:
        meta_data["meta"] = pairs_of("--meta", meta)
    parts = ConfigDriveParts(
        meta_data=meta_data, user_data=_text_in("--user-data", user_data) if user_data else ""
    )
    return _bounded(text_of(parts), "--user-data, --meta and --ssh-key together")


def _bounded(drive: str, of: str) -> str:
    if len(drive) > CONFIG_DRIVE_MAX:
        raise typer.BadParameter(
            f"the config drive of {of} has {len(drive)} characters, and a message carries at most {CONFIG_DRIVE_MAX}: let the user "
            "data fetch what is large, or give --config-drive a URL"
        )
    return drive


def _text_in(flag: str, file: Path) -> str:
    try:
        text = file.read_bytes().decode()
    except OSError as problem:
        raise typer.BadParameter(f"{flag} is '{file}': {problem}") from None
    except UnicodeDecodeError as problem:
        raise typer.BadParameter(f"{flag} is '{file}', which is no text: {problem}") from None
    if "\0" in text:
        raise typer.BadParameter(f"{flag} is '{file}', which is no text: it contains the character NUL")
    return text


def config_drive_of(given: str) -> str:
    """The config drive as Ironic accepts it: a URL, or the base64 of a gzipped image, read from the given file."""
    if not given or "://" in given:
        return given
    try:
        content = Path(given).read_bytes()
    except OSError as problem:
        raise typer.BadParameter(
            f"--config-drive is {given!r}, which is neither a URL nor a file: {problem}"
        ) from None
    if content.startswith(GZIP):
        return base64.b64encode(content).decode()
    try:
        base64.b64decode(text := content.decode("ascii").strip(), validate=True)
    except ValueError:
        raise typer.BadParameter(
            f"--config-drive is {given!r}: the file is neither a gzipped image nor the base64 of one"
        ) from None
    return text


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
