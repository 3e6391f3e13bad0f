"""In which form a command prints what it shows: `-o table|wide|json|yaml`, or the older flags --json and --wide."""

from contextvars import ContextVar
from enum import StrEnum
from typing import Annotated, Any

import typer


class Form(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


# The value of -o; None if it is not given.
_form: ContextVar[Form | None] = ContextVar("form", default=None)


def form() -> Form:
    return _form.get() or Form.TABLE


def forget_form() -> None:
    _form.set(None)


def _note_form(value: Form | None) -> Form | None:
    _form.set(value)
    return value


def _is_document(flag: bool) -> bool:  # noqa: FBT001 - typer passes it by position
    """The value of --json: -o asks for documents, too."""
    _check_alone("--json", flag=flag, fitting=Form.JSON)
    return flag or form() in (Form.JSON, Form.YAML)


def _is_wide(flag: bool) -> bool:  # noqa: FBT001 - typer passes it by position
    _check_alone("--wide", flag=flag, fitting=Form.WIDE)
    return flag or form() is Form.WIDE


def _check_alone(name: str, *, flag: bool, fitting: Form) -> None:
    given = _form.get()
    if flag and given not in (None, fitting):
        raise typer.BadParameter(f"{name} is -o {fitting}, and -o {given} is given, too: give one of both")


AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json.", callback=_is_document)]
IsWide = Annotated[bool, typer.Option("--wide", help="The same as -o wide.", callback=_is_wide)]


def _with_form(
    _output: Annotated[
        Form | None,
        typer.Option(
            "--output",
            "-o",
            metavar="|".join(Form),
            show_default=False,
            # Before the flags whose values depend on it.
            is_eager=True,
            callback=_note_form,
            help="How to print it. `wide`: whole ids, each row on one line, and all that a table can show; "
            "`json` and `yaml`: all fields, for programs.",
        ),
    ] = None,
) -> None: ...


def add_forms(command: Any) -> None:
    """Give -o to each command that has --json: these are the commands that show things."""
    if any(option.name == "as_json" for option in command.params):
        alone = typer.Typer(add_completion=False)
        alone.command()(_with_form)
        (option,) = [each for each in typer.main.get_command(alone).params if each.name == "_output"]
        option.expose_value = False
        command.params.append(option)
    for part in getattr(command, "commands", {}).values():
        add_forms(part)
