"""Passwords in files. Each file has one password, and is read anew at each login.

So a password is changed without a stop: the connections that are open go on, and the next one uses the new password. Until the
file has it, the server refuses the login, and the worker tries again.
"""

import logging
import os
import stat
from typing import Final

from bus.errors import Unavailable

log = logging.getLogger(__name__)

# The part of a URL's query that names the file.
PASSWORD_FILE: Final = "passwordfile"  # noqa: S105 - the name of a parameter
SECRET_BYTES_MAX: Final = 4096

# The files of which the log has said that others may read them, with their modes then.
_told: dict[str, int] = {}


class BadSecretFile(Unavailable):
    """The file of a password cannot be used now. The text names the file, and has nothing of its content."""


def read_secret(file: str) -> str:
    """The password in this file, without the line end. Raises BadSecretFile."""
    try:
        with open(file, "rb") as opened:  # noqa: PTH123 - its descriptor is needed
            mode = os.fstat(opened.fileno()).st_mode
            content = opened.read(SECRET_BYTES_MAX + 1)
    except OSError as problem:
        raise BadSecretFile(
            f"the password's file {file!r} cannot be read: {problem.strerror or problem}"
        ) from None
    _tell_if_others_read(file, stat.S_IMODE(mode))
    if len(content) > SECRET_BYTES_MAX:
        raise _bad(file, f"has more than {SECRET_BYTES_MAX} bytes")
    try:
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _bad(file, "is not UTF-8") from None
    if not secret:
        raise _bad(file, "is empty")
    if any(each in secret for each in "\n\r\0"):
        raise _bad(file, "has several lines")
    return secret


def _tell_if_others_read(file: str, mode: int) -> None:
    """Say it once for each mode. The group is not meant: a worker's file often belongs to root and the worker's group."""
    if mode & stat.S_IRWXO == 0:
        _told.pop(file, None)
    elif _told.get(file) != mode:
        _told[file] = mode
        log.warning(
            "the password's file %r may be used by every user of this machine (mode %04o): chmod 600 or 640",
            file,
            mode,
        )


def _bad(file: str, why: str) -> BadSecretFile:
    return BadSecretFile(
        f"the password's file {file!r} {why}: it must have the password alone, in one line of UTF-8"
    )
