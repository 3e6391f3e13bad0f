"""The site's page settings, from the structs of settings."""

from collections.abc import Iterator
from typing import Any

from kit.settings import Section, text_of
from moor.settings import GENERAL
from moor.worker_settings import SECTIONS

INTRODUCTION = """# Settings

This page is made from the code. `moor settings` prints the same with the values in force, and where each was set;
`moor settings move_timeout_s` prints one. [commands.md](commands.md#settings) says where settings may stand: a flag counts before a variable, a
variable before the file, and the file before the default. A value that is not allowed is refused before anything starts.

The variable of `move_timeout_s` in the table `[scheduler]` is `MOOR_SCHEDULER_MOVE_TIMEOUT_S`, and so on; variables and flags with other names stand below
their key.

A time ends in `_s` (seconds) or `_ms` (milliseconds). In a file a list is a TOML list and a table is a TOML table; in a variable or a flag
a list has commas, and a table has pairs: `harbour=amqp://...,island=amqp://...`.

A worker that gets a SIGHUP (`systemctl reload`, `kill -HUP`) reads its file again. It then follows the settings that are marked as *reloaded*; all
others need a restart. [commands.md](commands.md#reloading) says more.
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
    yield "| key | default | allowed | meaning |"
    yield "|---|---|---|---|"
    for field, setting in section.settings.items():
        usual = "_".join(("MOOR", *((section.name,) if section.name else ()), field)).upper()
        names = (field, "" if setting.variable == usual else setting.variable, setting.extra.get("flag"))
        shown = f"`{text_of(setting.default)}`" if setting.default not in ("", (), {}) else ""
        reloaded = " *Reloaded.*" if section.on_hangup(field) == "reloaded" else ""
        key = "<br>".join(f"`{each}`" for each in names if each)
        yield f"| {key} | {shown} | {'' if setting.allowed == 'a text' else setting.allowed} | {setting.meaning}{reloaded} |"
    yield ""
