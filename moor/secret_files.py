"""Files that only their owner may read: the passwords of users, and for each worker its password and its environment. Each is replaced
as a whole, and one command at a time changes the file of passwords.
"""

import fcntl
import json
import os
import re
import secrets
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

import click
from msgspec import Struct

from kit.settings import near
from kit.urls import PASSWORD_FILE, BadSecretFile, read_secret
from moor.flags import option
from moor.options import err, say, wrong_value

P = ParamSpec("P")


def replace_private(file: Path, text: str, *, like: Path | None = None) -> None:
    """Give the file this text. A program that reads it meanwhile finds the old text or the new one. Written by root, it then belongs to
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
    """Passwords by user; empty if there is no file yet. It can be read and written: that is checked before the command changes anything."""
    if file is None:
        return {}
    with wrong_value(f"--credentials is {str(file)!r}, which cannot be used: ", OSError):
        known = tomllib.loads(file.read_text()) if file.exists() else {}
        if not file.parent.is_dir():
            raise FileNotFoundError(f"there is no directory {file.parent}")
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise PermissionError(f"{file.parent} is not writable for user id {os.geteuid()}")
    return {user: str(password) for user, password in known.items()}


def write_private(file: Path, passwords: Mapping[str, str]) -> None:
    lines = "".join(
        f"{json.dumps(name)} = {json.dumps(password)}\n" for name, password in sorted(passwords.items())
    )
    replace_private(file, lines)


# Environment files: for each worker one file with the variables that it needs, as systemd's `EnvironmentFile=` reads it.
#
# Each command knows some of the variables of a file, and leaves the others, comments, and the order of lines as they are. A
# variable that is there with another value is not overwritten unless the operator says so.

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)")
# The parts of a URL's query that say how its user logs in.
_OF_LOGIN = (PASSWORD_FILE, "auth")
# What neither a shell nor systemd takes for anything else.
_PLAIN = re.compile(r"[\w@%+=:,./?-]*", re.ASCII)

EnvironmentDirectory = Annotated[
    Path | None,
    option(
        "--env-dir",
        metavar="DIR",
        show_default=False,
        help="Also write an environment file for each role to this directory, readable only by its owner.",
    ),
]
ReplaceEnvironment = Annotated[
    bool,
    option(
        "--replace-env",
        help="Overwrite variables that environment files have with other values; without it that is refused.",
    ),
]


class EnvironmentFile(Struct, frozen=True):
    """The variables that one file must have. An empty value: the variable must not be there."""

    path: Path
    variables: Mapping[str, str]

    def differing(self) -> list[str]:
        """The variables that the file has with another value."""
        there = _assigned(self._lines())
        return [name for name, value in self.variables.items() if there.get(name, value) != value]

    def write(self) -> str:
        """Write the file; returns what was done, in words."""
        before = self._lines()
        there = _assigned(before)
        wanted = {name: value for name, value in self.variables.items() if value}
        kept = [line for line in before if _name(line) not in self.variables or _name(line) in wanted]
        last = {_name(line): number for number, line in enumerate(kept)}
        lines = [
            _line(name, wanted[name]) if (name := _name(line)) in wanted else line
            for number, line in enumerate(kept)
            # A name that is there twice counts as it stands last.
            if _name(line) not in wanted or last[_name(line)] == number
        ]
        lines += [_line(name, value) for name, value in wanted.items() if name not in there]
        if lines == before:
            return "as it was"
        replace_private(self.path, "".join(f"{line}\n" for line in lines))
        changed = [name for name in self.variables if there.get(name, "") != self.variables[name]]
        return f"{'changed' if before else 'written'}: {', '.join(changed)}"

    def _lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


def environment_files(
    directory: Path | None, variables: Mapping[str, Mapping[str, str]], *, replace: bool
) -> tuple[EnvironmentFile, ...]:
    """The files of these users or roles, checked before the command changes anything."""
    if directory is None:
        return ()
    files = tuple(EnvironmentFile(directory / f"{name}.env", each) for name, each in variables.items())
    with _usable("--env-dir", directory):
        differing = {str(file.path): names for file in files if (names := file.differing())}
    if differing and not replace:
        what = "; ".join(f"{path}: {', '.join(names)}" for path, names in differing.items())
        raise click.BadParameter(
            f"these files have other values, and nothing was changed: {what}. --replace-env overwrites them"
        )
    return files


@contextmanager
def _usable(flag: str, directory: Path) -> Iterator[None]:
    """Make the directory, and refuse one that cannot be written, or whose files cannot be read in this context."""
    with wrong_value(f"{flag} is {str(directory)!r}, which cannot be used: ", OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield
        if not os.access(directory, os.W_OK):
            raise PermissionError(f"it is not writable for user id {os.geteuid()}")


def without_login(url: str) -> SplitResult:
    """The URL without a user, and without what says how that user logs in."""
    parts = urlsplit(url)
    if named := {"user", "password"} & {key for key, _ in parse_qsl(parts.query)}:
        raise ValueError(
            f"the URL has {min(named)} in its query: write it before the host, as user:password@host"
        )
    query = "&".join(each for each in parts.query.split("&") if each.partition("=")[0] not in _OF_LOGIN)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query)


def _assigned(lines: Sequence[str]) -> dict[str, str]:
    found = [each for line in lines if (each := _ASSIGNMENT.fullmatch(line.strip()))]
    return {each["name"]: _unquoted(each["value"]) for each in found}


def _name(line: str) -> str:
    found = _ASSIGNMENT.fullmatch(line.strip())
    return found["name"] if found else ""


def _line(name: str, value: str) -> str:
    if _PLAIN.fullmatch(value):
        return f"{name}={value}"
    if "'" in value or "\n" in value:
        raise click.BadParameter(
            f"{name} has a quote or a line end, which no environment file can have: write it as %27 or %0A"
        )
    return f"{name}='{value}'"


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


# Files of one password each, for the workers of one machine, and new passwords.
#
# An environment file then names the file of the password, and a worker reads it at each login (kit/errors.py). So a password
# is changed without a stop.

ALL = "all"

PasswordDirectory = Annotated[
    Path | None,
    option(
        "--password-dir",
        metavar="DIR",
        show_default=False,
        help="Write each password to a file in this directory, too, and name that file in the environment files in place of the "
        "password. The files belong to the owner of the directory.",
    ),
]
Rotate = Annotated[
    list[str] | None,
    option(
        "--rotate",
        metavar="USER",
        show_default=False,
        help="Make a new password for this user; may be repeated. `all` stands for every user that this command makes.",
    ),
]


def passwords_of(
    names: Collection[str], known: Mapping[str, str], rotate: Collection[str] | None
) -> dict[str, str]:
    """The password of each user: the known one, or a new one for a user that has none or is to get another."""
    wanted = {*(rotate or ())}
    if unknown := sorted(wanted - {ALL, *names}):
        raise click.BadParameter(
            f"--rotate is {unknown[0]!r}: there is no such user; {near(unknown[0], [*names, ALL])}"
        )
    return {
        name: secrets.token_urlsafe(24)
        if ALL in wanted or name in wanted
        else known.get(name) or secrets.token_urlsafe(24)
        for name in sorted(names)
    }


class PasswordFiles(Struct, frozen=True):
    """Where passwords go: into files of this directory, or, without one, into the URLs themselves."""

    directory: Path | None
    # Of which servers: the end of the files' names.
    of: str

    def login(self, url: str, user: str, password: str) -> str:
        """The URL with this user, and its password or the file of that."""
        plain = without_login(url)
        if self.directory is None:
            login = f"{quote(user, safe='')}:{quote(password, safe='')}"
            return plain._replace(netloc=f"{login}@{plain.netloc}").geturl()
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
    """The files. They can be written: that is checked before the command changes anything."""
    if directory is not None:
        with _usable("--password-dir", directory):
            pass
    return PasswordFiles(directory, of)


def write_all(
    credentials: Path | None,
    known: Mapping[str, str],
    passwords: Mapping[str, str],
    *,
    files: Iterable[EnvironmentFile],
    password_files: PasswordFiles,
) -> None:
    """Write the files of a command that makes users, and print what was done. It comes before the users: a password that reaches only
    the server would be lost.
    """
    if credentials is not None:
        write_private(credentials, {**known, **passwords})
    for file in files:
        say(f"{file.path}: {file.write()}")
    if done := password_files.write(passwords):
        say(done)
