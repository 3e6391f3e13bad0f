"""`moor settings`: shows the value of each worker setting, and where it was set."""

from typing import Annotated

import typer
from msgspec import structs, to_builtins

from moor.options import AsJson, out, tuned, tuning
from moor.tables import print_table, table_of
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
    if json:
        out.print_json(data=rows)
        return
    table = table_of("variable", "value", "stated")
    for row in rows:
        table.add_row(
            *(str(row[column]) for column in ("variable", "value")),
            str(row["stated"]) or "[dim]default[/dim]",
        )
    print_table(table)


def _rows(name: str) -> list[dict[str, object]]:
    section = SECTIONS[name]
    settings, stated = structs.asdict(tuned(section)), tuning().stated(section)
    return [
        {
            "section": name,
            "key": field,
            "variable": section.variable(field),
            "value": to_builtins(settings[field]),
            "stated": stated[field].where if field in stated else "",
        }
        for field in section.types
    ]
