"""`moor settings`: explains each setting, and shows its value and where it was set."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import click
from rich.padding import Padding
from rich.text import Text

from kit.settings import Section, is_secret, near, without_password
from moor.flags import argument
from moor.options import Output, found, out, tuned, wants_document
from moor.settings import GENERAL
from moor.showing import print_json
from moor.tables import GAP
from moor.worker_settings import SECTIONS

Row = Mapping[str, Any]


def settings(
    name: Annotated[
        str,
        argument(
            metavar="NAME",
            show_default=False,
            help="A section, a setting or its variable: scheduler, move_timeout_s, scheduler.move_timeout_s, "
            f"MOOR_SCHEDULER_MOVE_TIMEOUT_S. The sections are {', '.join(SECTIONS)}.",
        ),
    ] = "",
    *,
    _output: Output = None,
) -> None:
    """List all settings, with their values, where each was set (a variable, a file or the default), and what it is for."""
    sections = (GENERAL, *SECTIONS.values())
    rows = [row for section in sections for row in _rows(section, name)]
    if not rows:
        known = {
            each for section in sections for field in section.settings for each in _names(section, field)
        }
        # There are hundreds of settings.
        listed = f"the sections are {', '.join(SECTIONS)}, and `moor settings` lists all"
        similar = near(name, sorted(known - {""}), listed)
        raise click.BadParameter(f"NAME is {name!r}; there is no such section or setting; {similar}")
    if wants_document():
        print_json(rows)
        return
    for row in rows:
        key = f"{row['section']}.{row['key']}".removeprefix(".")
        out.print(
            Text.assemble((key, "bold"), f" = {_text(row['value'])}  ", (row["stated"] or "default", "dim"))
        )
        details = f"{row['variable']}; {row['allowed']}; default {_text(row['default'])}; SIGHUP: {row['on_hangup']}"
        out.print(Padding(Text(f"{details}\n{row['meaning']}", overflow="fold"), (0, 0, 0, GAP)))


def _names(section: Section[Any], field: str) -> tuple[str, ...]:
    """The names by which `moor settings` finds a setting."""
    setting = section.settings[field]
    return section.name, field, setting.key, setting.variable


def _rows(section: Section[Any], name: str) -> Iterator[Row]:
    """The settings of a section that have this name, as -o json prints them; all if it is empty."""
    wanted = [field for field in section.settings if not name or name in _names(section, field)]
    if not wanted:
        return
    values, stated = tuned(section), found().stated(section)
    for field in wanted:
        setting = section.settings[field]
        yield {
            "section": section.name,
            "key": field,
            "variable": setting.variable,
            "value": _shown(field, getattr(values, field)),
            "stated": stated[field].where if field in stated else "",
            "default": _shown(field, setting.default),
            "allowed": setting.allowed,
            "on_hangup": section.on_hangup(field),
            "meaning": setting.meaning,
        }


def _shown(field: str, value: object) -> object:
    """The value without passwords."""
    match value:
        case str():
            return "***" if value and is_secret(field) else without_password(value)
        case dict():
            return {name: without_password(each) for name, each in value.items()}
        case tuple():
            return tuple(map(without_password, value))
    return value


def _text(value: object) -> str:
    text = str(value)
    match value:
        case tuple():
            text = ", ".join(value)
        case dict():
            text = ", ".join(f"{name}={each}" for name, each in value.items())
    return text or "empty"
