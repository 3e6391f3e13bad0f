"""Environment files: for each worker one file with the variables that it needs, as systemd's `EnvironmentFile=` reads it.

Each command knows some of the variables of a file, and leaves the others, comments, and the order of lines as they are. A
variable that is there with another value is not overwritten unless the operator says so.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

import typer
from msgspec import Struct

from kit.errors import PASSWORD_FILE
from moor.private_files import replace_private

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)")
# The parts of a URL's query that say how its user logs in.
_OF_LOGIN = (PASSWORD_FILE, "auth")
# What neither a shell nor systemd takes for anything else.
_PLAIN = re.compile(r"[\w@%+=:,./?-]*", re.ASCII)

EnvironmentDirectory = Annotated[
    Path | None,
    typer.Option(
        "--env-dir",
        metavar="DIR",
        show_default=False,
        help="Also write an environment file for each role to this directory, readable only by its owner.",
    ),
]
ReplaceEnvironment = Annotated[
    bool,
    typer.Option(
        "--replace-env",
        help="Overwrite variables that environment files have with other values; without it that is refused.",
    ),
]


class EnvironmentFile(Struct, frozen=True):
    """What one file must have. An empty value: the variable must not be there."""

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
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        differing = {str(file.path): names for file in files if (names := file.differing())}
        if not os.access(directory, os.W_OK):
            raise PermissionError(f"it is not writable for user id {os.geteuid()}")
    except (OSError, UnicodeDecodeError) as problem:
        raise typer.BadParameter(
            f"--env-dir is {str(directory)!r}, which cannot be used: {problem}"
        ) from None
    if differing and not replace:
        what = "; ".join(f"{path}: {', '.join(names)}" for path, names in differing.items())
        raise typer.BadParameter(
            f"these files have other values, and nothing was changed: {what}. --replace-env overwrites them"
        )
    return files


def with_login(url: str, user: str, password: str) -> str:
    """The URL with this user and password in place of its own."""
    plain = without_login(url)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return plain._replace(netloc=f"{login}@{plain.netloc}").geturl()


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
        raise typer.BadParameter(
            f"{name} has a quote or a line end, which no environment file can have: write it as %27 or %0A"
        )
    return f"{name}='{value}'"


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
