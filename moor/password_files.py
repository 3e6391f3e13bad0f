"""Files of one password each, for the workers of one machine, and new passwords.

An environment file then names the file of the password, and a worker reads it at each login (kit/errors.py). So a password
is changed without a stop.
"""

import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from msgspec import Struct

from kit.errors import PASSWORD_FILE, BadSecretFile, read_secret
from kit.settings import near
from moor.environment_files import with_login, without_login
from moor.private_files import replace_private

ALL = "all"

PasswordDirectory = Annotated[
    Path | None,
    typer.Option(
        "--password-dir",
        metavar="DIR",
        show_default=False,
        help="Write each password to a file in this directory, too, and name that file in the environment files in place of the "
        "password. The files belong to the owner of the directory.",
    ),
]
Rotate = Annotated[
    list[str] | None,
    typer.Option(
        "--rotate",
        metavar="USER",
        show_default=False,
        help="Make a new password for this user; may be repeated. `all` stands for every user that this command makes.",
    ),
]


def new_password() -> str:
    return secrets.token_urlsafe(24)


def passwords_of(
    names: Collection[str], known: Mapping[str, str], rotate: Collection[str] | None
) -> dict[str, str]:
    """The password of each user: the known one, or a new one for a user that has none or is to get another."""
    wanted = {*(rotate or ())}
    if unknown := sorted(wanted - {ALL, *names}):
        raise typer.BadParameter(
            f"--rotate is {unknown[0]!r}: there is no such user; {near(unknown[0], [*names, ALL])}"
        )
    return {
        name: new_password() if ALL in wanted or name in wanted else known.get(name) or new_password()
        for name in sorted(names)
    }


class PasswordFiles(Struct, frozen=True):
    """Where passwords go: into files of this directory, or, without one, into the URLs themselves."""

    directory: Path | None
    # Of which servers: the end of the files' names.
    of: str

    def check(self) -> None:
        """Check that files can be written, before the command changes anything."""
        if self.directory is None:
            return
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(self.directory, os.W_OK):
                raise PermissionError(f"it is not writable for user id {os.geteuid()}")
        except OSError as problem:
            raise typer.BadParameter(
                f"--password-dir is {str(self.directory)!r}, which cannot be used: {problem}"
            ) from None

    def login(self, url: str, user: str, password: str) -> str:
        """The URL with this user, and its password or the file of that."""
        if self.directory is None:
            return with_login(url, user, password)
        plain = without_login(url)
        query = plain.query + "&" * bool(plain.query) + f"{PASSWORD_FILE}={quote(str(self._file(user)))}"
        return plain._replace(netloc=f"{quote(user, safe='')}@{plain.netloc}", query=query).geturl()

    def write(self, passwords: Mapping[str, str]) -> str:
        """Write the files whose password is another; returns what was done, in words."""
        if self.directory is None:
            return ""
        changed = [user for user, password in passwords.items() if self._now(user) != password]
        for user in changed:
            replace_private(self._file(user), f"{passwords[user]}\n", like=self.directory)
        done = f"written: {', '.join(changed)}" if changed else "as it was"
        return f"{self.directory}: {done}"

    def _file(self, user: str) -> Path:
        assert self.directory is not None, "passwords are in the URLs"
        return self.directory.absolute() / f"{user}.{self.of}"

    def _now(self, user: str) -> str:
        try:
            return read_secret(str(self._file(user)))
        except BadSecretFile:
            return ""


def files_of_passwords(directory: Path | None, of: str) -> PasswordFiles:
    """The files, checked."""
    files = PasswordFiles(directory, of)
    files.check()
    return files
