"""The `moor` command. Each group of commands has its own module; this one puts them together."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from io import TextIOWrapper
from math import isnan
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from moor.command_helps import HELPS
from moor.options import WRONG, command_settings, defaults_of, fit_width, found, use_config
from moor.settings import GENERAL

INSTANCES, CLOUD, OPERATING = "Instances", "A cloud of your own", "Operating"

HELP = ["-h", "--help"]

# Packages that have commands, too: each entry point of this group is a mapping as COMMANDS, whose modules are named whole and whose entries
# end with the first sentence of the help.
OTHERS = "moorage.commands"

# By the command's name: its panel in the help, its module, and the function or group there.
COMMANDS = {
    "boot": (INSTANCES, "instances.boot_command", "boot"),
    "show": (INSTANCES, "instances.instances_command", "show"),
    "list": (INSTANCES, "instances.instances_command", "list_instances"),
    "console": (INSTANCES, "instances.instances_command", "console"),
    "rebuild": (INSTANCES, "instances.move_commands", "rebuild"),
    "migrate": (INSTANCES, "instances.move_commands", "migrate"),
    "live-migrate": (INSTANCES, "instances.move_commands", "live_migrate"),
    "resize": (INSTANCES, "instances.move_commands", "resize"),
    "confirm": (INSTANCES, "instances.move_commands", "confirm"),
    "revert": (INSTANCES, "instances.move_commands", "revert"),
    "evacuate": (INSTANCES, "instances.hosts_command", "evacuate"),
    "shelve": (INSTANCES, "instances.move_commands", "shelve"),
    "unshelve": (INSTANCES, "instances.move_commands", "unshelve"),
    "stop": (INSTANCES, "instances.move_commands", "stop"),
    "start": (INSTANCES, "instances.move_commands", "start"),
    "reboot": (INSTANCES, "instances.move_commands", "reboot"),
    "migration": (INSTANCES, "instances.move_commands", "migration_app"),
    "history": (INSTANCES, "instances.move_commands", "history"),
    "delete": (INSTANCES, "instances.instances_command", "delete"),
    "explain": (INSTANCES, "instances.boot_command", "explain"),
    "plan": (INSTANCES, "instances.boot_command", "plan"),
    "events": (INSTANCES, "broker.messages_command", "events"),
    "up": (CLOUD, "clouds.up_command", "up"),
    "flavor": (INSTANCES, "instances.stored_commands", "flavor_app"),
    "image": (INSTANCES, "instances.stored_commands", "image_app"),
    "device-profile": (INSTANCES, "instances.stored_commands", "profile_app"),
    "group": (INSTANCES, "instances.stored_commands", "group_app"),
    "status": (OPERATING, "overview.status_command", "status"),
    "top": (OPERATING, "overview.status_command", "top"),
    "host": (OPERATING, "instances.hosts_command", "app"),
    "cell": (OPERATING, "instances.hosts_command", "cell_app"),
    "aggregate": (OPERATING, "instances.hosts_command", "aggregates_app"),
    "node": (OPERATING, "bare_metal.node_command", "app"),
    "provider": (OPERATING, "placement.providers_command", "app"),
    "trait": (OPERATING, "placement.quota_command", "trait"),
    "class": (OPERATING, "placement.quota_command", "class_"),
    "candidates": (OPERATING, "placement.quota_command", "candidates"),
    "quota": (OPERATING, "placement.quota_command", "app"),
    "usage": (OPERATING, "placement.quota_command", "usage"),
    "audit": (OPERATING, "books.audit_command", "audit"),
    "ring": (OPERATING, "bare_metal.ring_command", "app"),
    "run": (OPERATING, "clouds.run_command", "app"),
    "settings": (OPERATING, "settings_command", "settings"),
    "broker": (OPERATING, "broker.broker_command", "app"),
    "dead": (OPERATING, "broker.messages_command", "app"),
    "db": (OPERATING, "clouds.db_command", "app"),
}


class Commands(TyperGroup):
    """Imports a command's module only when that command runs, so that `moor list` does not import all workers."""

    def list_commands(self, _ctx: Any) -> list[str]:
        return names()

    def get_command(self, _ctx: Any, name: str) -> Any:
        """The name, the panel and the help of a command, as the list of commands shows them."""
        if name in HELPS:
            return TyperCommand(name, help=HELPS[name], rich_help_panel=COMMANDS[name][0])
        if name in COMMANDS:
            return command_of(name)
        if name not in others():
            return None
        panel, _, _, help_ = others()[name]
        return TyperCommand(name, help=help_, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that runs."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command_of(name) if name is not None and is_known(name) else command, rest


@cache
def others() -> Mapping[str, tuple[str, str, str, str]]:
    """The commands of other packages. To find them takes as long as a short command, so only an unknown name and the list of all
    commands ask for them.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {name: each for point in entry_points(group=OTHERS) for name, each in point.load().items()}


def names() -> list[str]:
    return [*COMMANDS, *others()]


def is_known(name: str) -> bool:
    return name in COMMANDS or name in others()


def command_of(name: str) -> Any:
    if name in COMMANDS:
        panel, module, attribute = COMMANDS[name]
        module = f"moor.{module}"
    else:
        panel, module, attribute, _ = others()[name]
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(name)(found)
        found = alone
    command: Any = typer.main.get_command(found)
    command.name = name
    command.rich_help_panel = panel
    _hide_values_of_switches(command)
    _name_wrong_values(command)
    return command


def _hide_values_of_switches(command: Any) -> None:
    """In the help, show the type of value only for options that take one; a switch such as --admin takes none."""
    help_ = command.get_help_option(typer.Context(command, help_option_names=HELP))
    for option in (*command.params, help_):
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""
    for part in getattr(command, "commands", {}).values():
        _hide_values_of_switches(part)


def _name_wrong_values(command: Any) -> None:
    """Let errors about an option name its value, and the settings file if the value is from there. typer's own often do not. And
    let no option be NaN.
    """
    for option in command.params:
        option.process_value = partial(_processed, option.process_value, option.name)
    for part in getattr(command, "commands", {}).values():
        _name_wrong_values(part)


def _processed(process: Callable[[Any, Any], Any], name: str, context: Any, value: Any) -> Any:
    try:
        return _unless_nan(process(context, value))
    except typer.BadParameter as wrong:
        values = value if isinstance(value, list | tuple) else (value,)
        # A switch has no value of its own.
        if (
            value is not None
            and not isinstance(value, bool)
            and not any(repr(each) in wrong.message for each in values)
        ):
            wrong.message = f"{', '.join(map(repr, values))}: {wrong.message}"
        if context.get_parameter_source(name).name == "DEFAULT_MAP":
            wrong.message += f" ({command_settings().file})"
        raise


def _unless_nan(value: Any) -> Any:
    # For typer it is within all limits.
    if isinstance(value, float) and isnan(value):
        raise typer.BadParameter(f"{value} is not a number.")
    return value


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": HELP},
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer passes it by position
    if wanted:
        # It takes as long to load as the rest of a short command.
        from importlib import metadata  # noqa: PLC0415

        typer.echo(f"moor {metadata.version('moorage')}")
        raise typer.Exit


@app.callback()
def moor(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help=r"Settings as TOML. [dim]\[MOOR_CONFIG; else ./moorage.toml or ~/.config/moorage/config.toml][/dim]",
        ),
    ] = None,
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, metavar="", help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Moorage decides where instances run, and makes it happen.

    Settings come from flags, then MOOR_* variables, then a file.
    Exit codes: 0 done, 1 not done, 2 a flag or setting is wrong, 3 not in time.
    """
    fit_width()
    use_config(config)
    name = context.invoked_subcommand
    if name is not None and (written := found().written.get(GENERAL.name)) and is_known(name):
        context.default_map = {name: defaults_of(command_of(name), written)}


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A terminal whose encoding lacks a character shows a replacement instead of raising UnicodeEncodeError.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    _check_text(sys.argv[1:])
    command: Any = typer.main.get_command(app)
    _hide_values_of_switches(command)
    # Also as `python -m moor`, so that the shell finds how to complete it.
    command(prog_name="moor")


def _check_text(words: Sequence[str]) -> None:
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            sys.stderr.write(f"moor: argument {word!a} is not valid UTF-8\n")
            sys.exit(WRONG)
