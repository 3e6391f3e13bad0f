"""Reads a configuration file as Nova's services do: sections, options that may repeat, values that go on in further lines.

It knows nothing about what options mean. Every value keeps its file and line, so that errors can name them.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from bus.configuration.sections import without_password

DEFAULT = "DEFAULT"
_SECTION = re.compile(r"\[(?P<name>[^\]]*)\]\s*(?:[#;].*)?\Z")
_OPTION = re.compile(r"(?P<name>[^\s:=\[][^:=]*?)\s*[:=](?P<value>.*)\Z", re.DOTALL)
# "$name", "${name}" and "${section.name}"; "$$" is a dollar.
_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<name>\w+)|\{(?P<braced>[\w.]+)\})")
REFERENCES_MAX = 10


class ConfFileError(ValueError):
    """The file cannot be read as Nova would read it; the message names the file and the line."""


class OptionLine(Struct, frozen=True):
    """One option with its value, as the file has it."""

    section: str
    option: str
    value: str
    where: str

    @property
    def key(self) -> tuple[str, str]:
        return self.section, self.option

    @property
    def shown(self) -> str:
        return f"[{self.section}] {self.option}"


class ConfFiles(Struct, frozen=True):
    """The lines of one or several files, in their order."""

    lines: tuple[OptionLine, ...]

    @property
    def last(self) -> Mapping[tuple[str, str], OptionLine]:
        """Of an option that repeats the last line counts, unless it may have several values."""
        return {line.key: line for line in self.lines}

    def resolved(self, line: OptionLine) -> str:
        """The value, with the options that it refers to by `$name` in their places."""
        return self._resolved(line, line.value, REFERENCES_MAX)

    def _resolved(self, line: OptionLine, value: str, left: int) -> str:
        if left == 0:
            raise ConfFileError(
                f"{line.where}: {line.shown} is {without_password(line.value)!r}: its references go round in a circle"
            )

        def replaced(found: re.Match[str]) -> str:
            if found["dollar"]:
                return "$"
            section, _, option = (found["name"] or found["braced"]).rpartition(".")
            places = [(section, option)] if section else [(line.section, option), (DEFAULT, option)]
            for key in places:
                if key in self.last:
                    return self._resolved(line, self.last[key].value, left - 1)
            raise ConfFileError(
                f"{line.where}: {line.shown} is {without_password(line.value)!r}: the file has no {option!r} that it refers to"
            )

        return _REFERENCE.sub(replaced, value)


def read_files(files: Iterable[Path]) -> ConfFiles:
    """Of several files a later one counts more, as with several `--config-file` of Nova's services."""
    lines: list[OptionLine] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfFileError(f"{file}: cannot be read: {problem}") from None
        lines += parse(text, str(file))
    return ConfFiles(tuple(lines))


def parse(text: str, file: str) -> list[OptionLine]:
    """The lines that set options. A comment begins with `#` or `;`; a line that begins with a blank goes on with the value before."""
    found: list[OptionLine] = []
    section = ""
    goes_on = False
    for number, raw in enumerate(text.splitlines(), 1):
        where = f"{file} line {number}"
        stripped = raw.strip()
        if not stripped:
            goes_on = False
        elif raw[0].isspace() and goes_on:
            last = found[-1]
            found[-1] = OptionLine(
                last.section, last.option, f"{last.value}\n{stripped}".strip("\n"), last.where
            )
        elif stripped[0] in "#;":
            continue
        elif stripped[0] == "[":
            section, goes_on = _section(stripped, where), False
        else:
            found.append(_line(stripped, section, where))
            goes_on = True
    return found


def _section(text: str, where: str) -> str:
    if not (begun := _SECTION.match(text)) or not begun["name"].strip():
        raise ConfFileError(f"{where}: {text!r} is no section: it must be like [filter_scheduler]")
    return begun["name"].strip()


def _line(text: str, section: str, where: str) -> OptionLine:
    if not (option := _OPTION.match(text)):
        raise ConfFileError(
            f"{where}: {without_password(text)!r} is neither a section, a comment nor an option with = or :"
        )
    if not section:
        raise ConfFileError(
            f"{where}: the option {option['name'].strip()!r} stands before the first section; Nova's services would not start with it"
        )
    value = option["value"].strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return OptionLine(section, option["name"].strip(), value, where)
