"""Turns options of commands into fields of a build request: what is attached to an instance, its config drive, and the stored image that
`--image` names.
"""

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from msgspec import Struct

from bus.messages.moves import MoveWait
from bus.messages.stored_names import AskImages, ImagesFound, NamedImage, is_image_source
from engine.flavors import (
    CONFIG_DRIVE_MAX,
    ConfigDriveParts,
    NumaAffinity,
    PortRequest,
    VolumeRequest,
    Wait,
    text_of,
)
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


_CLASS = re.compile(r"[A-Z0-9_]+")
# By the word on the command line: the field of a port request.
PORT_WORDS = {"network": "physical_network", "type": "vnic_type", "numa": "numa_affinity_policy"}
NUMA_WORDS = tuple(each for each in get_args(NumaAffinity) if each)


class AttachedOptions(Struct, frozen=True):
    port: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'ID [WORD...]'",
            help="A network port; may be repeated. With an id alone it is attached to a bare-metal node. With words, its host must "
            "give it: CLASS=N (amount); TRAIT (required); no:TRAIT (forbidden); network=NAME; type=NAME (its kind, such as "
            "normal or direct); numa=POLICY (how near its device is to the guest's NUMA cells: legacy, required, preferred).",
        ),
    ] = None
    volume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'ID CLASS=N [WORD...]'",
            help="A volume that its host, or a pool of the host, must give: an id, amounts, and traits as of a port; may be repeated.",
        ),
    ] = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that these options set in a build request."""
        ports, volumes = _words("--port", self.port or ()), _words("--volume", self.volume or ())
        return {
            "ports": tuple(id_ for id_, *words in ports if not words),
            "port_requests": tuple(
                PortRequest(id=id_, **_needs("--port", words, PORT_WORDS)) for id_, *words in ports if words
            ),
            "volume_requests": tuple(
                VolumeRequest(id=id_, **_needs("--volume", words, {})) for id_, *words in volumes
            ),
        }


def _words(flag: str, texts: Sequence[str]) -> list[list[str]]:
    given: dict[str, str] = {}
    for text in texts:
        if not text.strip():
            raise typer.BadParameter(f"{flag} is {text!r}, and names no id")
        put_once(given, text.split()[0], text, flag)
    return [text.split() for text in given.values()]


def _needs(flag: str, words: Sequence[str], named: dict[str, str]) -> dict[str, Any]:
    """The fields that these words set in the request for a port or a volume."""
    needs: dict[str, Any] = {"resources": {}, "required": (), "forbidden": ()}
    pairs: dict[str, str] = {}
    for word in words:
        key, is_pair, value = word.partition("=")
        if key == "numa" and key in named and value not in NUMA_WORDS:
            raise typer.BadParameter(
                f"{flag} has the word {word!r}: must be numa={', numa='.join(NUMA_WORDS)}"
            )
        if is_pair and key in named:
            put_once(pairs, key, value, flag)
            needs[named[key]] = value
        elif is_pair and _CLASS.fullmatch(key) and value.isdecimal() and int(value):
            put_once(needs["resources"], key, int(value), flag)
        elif is_pair:
            known = "".join(f", or {each}=NAME" for each in named)
            raise typer.BadParameter(
                f"{flag} has the word {word!r}: must be CLASS=N, with a whole number above 0{known}"
            )
        elif word.startswith("no:"):
            needs["forbidden"] += (word.removeprefix("no:"),)
        else:
            needs["required"] += (word,)
    return needs
