"""Files that only their owner may read: each is replaced as a whole, and one command at a time changes the file of passwords."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec

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
