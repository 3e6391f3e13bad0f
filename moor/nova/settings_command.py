"""`moor nova settings`: our settings for a nova.conf."""

from pathlib import Path
from typing import Annotated, Any

import typer

from moor.nova.conf_file import ConfFileError, read_files
from moor.nova.mapping import NovaSettings, Told, WrongOptionError, settings_for
from moor.options import WRONG, Output, fail, say, wants_document
from moor.showing import print_json
from moor.worker_settings import SECTIONS

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="A Nova whose scheduler Moorage replaces, or works beside.",
)


@app.callback()
def of_a_nova() -> None:
    """A Nova whose scheduler Moorage replaces, or works beside."""


@app.command()
def settings(
    from_: Annotated[
        list[Path],
        typer.Option(
            "--from",
            metavar="FILE",
            show_default=False,
            help="The nova.conf of nova-scheduler; may be repeated, as Nova's --config-file: of an option the last one counts.",
        ),
    ],
    *,
    _output: Output = None,
) -> None:
    """Write our settings for the filters, weighers and limits of a nova.conf, and name each line that has no equal here.

    The output is a part of a settings file. Nothing is changed.
    """
    try:
        made = settings_for(read_files(from_), SECTIONS)
    except (ConfFileError, WrongOptionError) as wrong:
        fail(str(wrong), WRONG)
    if wants_document():
        print_json(
            {
                "settings": made.tables,
                "became": made.became,
                "no_equal": made.no_equal,
                "stays": made.stays,
            }
        )
        return
    _print(made)


def _print(made: NovaSettings) -> None:
    for name, table in made.tables.items():
        say(f"[{name}]")
        for setting, value in table.items():
            say(f"{setting} = {_toml(value)}")
        say("")
    _print_lines("No equal here:", made.no_equal)
    _print_lines("Stays in nova.conf:", made.stays)


def _print_lines(title: str, lines: tuple[Told, ...]) -> None:
    """As comments, so that the output is a settings file as it stands."""
    if lines:
        say(f"# {title}")
        for line in lines:
            value = " ".join(line.value.split())
            say(f"#   {line.where}: [{line.section}] {line.option} = {value}\n#       {line.says}")
        say("")


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value)
