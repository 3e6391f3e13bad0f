"""The site's page settings, from the structs of settings."""

from collections.abc import Iterator
from typing import Any

from bus.configuration.sections import Section, text_of
from moor.settings import GENERAL
from moor.worker_settings import SECTIONS

INTRODUCTION = """# Settings

This page is made from the code. `moor settings` prints the same with the values in force, and where each was set;
`moor settings claims_max` prints one. [commands.md](commands.md#settings) says where settings may stand: a flag counts before a variable, a
variable before the file, and the file before the default. A value that is not allowed is refused before anything starts.

A time ends in `_s` (seconds) or `_ms` (milliseconds). In a file a list is a TOML list and a table is a TOML table; in a variable or a flag
a list has commas, and a table has pairs: `harbour=amqp://...,island=amqp://...`.

A worker that gets a SIGHUP (`systemctl reload`, `kill -HUP`) reads its file again. The column SIGHUP says which settings then are *reloaded*, and
which *need a restart* of the workers. [commands.md](commands.md#reloading) says more.
"""


def page() -> str:
    return "\n".join(
        (INTRODUCTION, *_section(GENERAL), *(line for each in SECTIONS.values() for line in _section(each)))
    )


def _section(section: Section[Any]) -> Iterator[str]:
    yield f"## [{section.name}]" if section.name else "## Above all tables"
    yield ""
    yield f"For {section.about}."
    yield ""
    yield "| key, variable, flag | default | allowed | SIGHUP | meaning |"
    yield "|---|---|---|---|---|"
    for field, setting in section.settings.items():
        names = (field, setting.variable, setting.extra.get("flag"))
        shown = f"`{text_of(setting.default)}`" if setting.default not in ("", (), {}) else ""
        row = (
            "<br>".join(f"`{each}`" for each in names if each),
            shown,
            setting.allowed,
            section.on_hangup(field),
        )
        yield f"| {' | '.join((*row, setting.meaning))} |"
    yield ""
