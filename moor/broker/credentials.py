"""The file with the passwords of the broker's users: one TOML line per user, readable only by the file's owner."""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

import typer

from moor.private_files import replace_private


def known_passwords(file: Path | None) -> dict[str, str]:
    """Passwords by user; empty if there is no file yet."""
    if file is None or not file.exists():
        return {}
    return {user: str(password) for user, password in tomllib.loads(file.read_text()).items()}


def check_private(file: Path | None) -> None:
    """Check that the file of passwords can be read and written, before the command changes anything."""
    if file is None:
        return
    try:
        known_passwords(file)
        if not file.parent.is_dir():
            raise FileNotFoundError(f"there is no directory {file.parent}")
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise PermissionError(f"{file.parent} is not writable for user id {os.geteuid()}")
    except (OSError, ValueError) as problem:
        raise typer.BadParameter(f"--credentials is {str(file)!r}, which cannot be used: {problem}") from None


def write_private(file: Path, passwords: Mapping[str, str]) -> None:
    lines = "".join(
        f"{json.dumps(name)} = {json.dumps(password)}\n" for name, password in sorted(passwords.items())
    )
    replace_private(file, lines)
