"""`moor settings`: shows the value of each worker setting, and where it was set."""

from collections.abc import Mapping
from typing import Annotated

import typer
from msgspec import structs, to_builtins
from rich.text import Text

from bus.configuration.addresses import is_secret
from moor.options import AsJson, tuned, tuning
from moor.showing import print_all
from moor.tables import Columns
from moor.tuning import SECTIONS


def settings(
    section: Annotated[
        str,
        typer.Argument(show_default=False, help="Only one section: " + ", ".join(SECTIONS)),
    ] = "",
    *,
    json: AsJson = False,
) -> None:
    """List the settings of all workers, with their values and where each was set: a variable, a file or the default."""
    if section and section not in SECTIONS:
        raise typer.BadParameter(f"SECTION is {section!r}; the sections are {', '.join(SECTIONS)}")
    rows = [row for name in SECTIONS if section in ("", name) for row in _rows(name)]
    print_all(rows, COLUMNS, as_json=json)


COLUMNS = Columns[Mapping[str, object]](
    {
        "variable": lambda row: str(row["variable"]),
        "value": lambda row: str(row["value"]),
        "stated": lambda row: str(row["stated"]) if row["stated"] else Text("default", "dim"),
    }
)


def _rows(name: str) -> list[dict[str, object]]:
    section = SECTIONS[name]
    settings, stated = structs.asdict(tuned(section)), tuning().stated(section)
    return [
        {
            "section": name,
            "key": field,
            "variable": section.variable(field),
            "value": "***" if settings[field] and is_secret(field) else to_builtins(settings[field]),
            "stated": stated[field].where if field in stated else "",
        }
        for field in section.types
    ]
