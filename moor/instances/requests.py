"""Turns options of commands into fields of a build request."""

import base64
from collections.abc import Sequence
from pathlib import Path

import typer

from bus.messages.build import Wait

GZIP = b"\x1f\x8b"


def pairs_of(flag: str, texts: Sequence[str] | None, default: str | None = None) -> dict[str, str]:
    """Parse KEY=VALUE of a repeatable flag. A text without `=` gets the default value, if there is one."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or (not equals and default is None):
            raise typer.BadParameter(f"{flag} is {text!r}, must be KEY=VALUE")
        if key in pairs:
            raise typer.BadParameter(f"{flag} is {text!r}: {key} was already given, as {pairs[key]!r}")
        pairs[key] = value if equals else default or ""
    return pairs


def wait_of(for_s: int | None, priority: int | None) -> Wait | None:
    if for_s is not None:
        return Wait(for_s=for_s, priority=priority or 0)
    if priority is not None:
        raise typer.BadParameter(
            f"--priority is {priority}, and nothing waits: it orders requests with --wait-for-room"
        )
    return None


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
