"""Files that only their owner may read, and that of the passwords of users: each is replaced as a whole, and one command at a time
changes the file of passwords.
"""

import fcntl
import json
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import typer

from moor.options import err

P = ParamSpec("P")


def replace_private(file: Path, text: str, *, like: Path | None = None) -> None:
    """Give the file this text. Whoever reads it meanwhile finds the old text or the new one. Written by root, it then belongs to
    the owner of `like`.
    """
    descriptor, beside = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(text)
        if like is not None and os.geteuid() == 0:
            owner = like.stat()
            os.chown(beside, owner.st_uid, owner.st_gid)
        Path(beside).replace(file)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def changes_credentials(command: Callable[P, None]) -> Callable[P, None]:
    """Wraps a command that reads the passwords of its `credentials` and adds to them: of several at once, each waits for the one
    before it. Otherwise one would overwrite what another has added since it was read.
    """

    @wraps(command)
    def alone(*args: P.args, **kwargs: P.kwargs) -> None:
        file = kwargs.get("credentials")
        with _held(file.parent if isinstance(file, Path) else None):
            command(*args, **kwargs)

    return alone


@contextmanager
def _held(directory: Path | None) -> Iterator[None]:
    descriptor = -1
    if directory is not None:
        # A directory that cannot be used: the command says so.
        with suppress(OSError):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    if descriptor < 0:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            err.print(f"waiting for another command that changes passwords in {directory}", markup=False)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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
