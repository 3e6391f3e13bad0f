"""The `moor` command. Each group of commands has its own module; this one puts them together."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from signal import SIGINT
from typing import Annotated

import click
from click.shell_completion import CompletionItem

from moor.flags import Commands, command, option, write_commands
from moor.options import NOT_DONE, WRONG, begin_command, defaults_of, fit_width, found, say
from moor.settings import GENERAL

INSTANCES, CLOUD, OPERATING = "Instances", "A cloud of your own", "Operating"

# Packages that have commands, too: each entry point of this group is a mapping as COMMANDS.
OTHERS = "moorage.commands"

# By the command's name: its panel in the help, its module and the function or group there, and the first sentence of its help.
COMMANDS: Mapping[str, tuple[str, str, str, str]] = {
    "instance": (
        INSTANCES,
        "moor.instances.instances_command",
        "instance_app",
        "Instances: list, show, delete. `moor list` is `moor instance list`, and so on.",
    ),
    "boot": (
        INSTANCES,
        "moor.instances.boot_command",
        "boot",
        "Build an instance, or several equal ones, and follow them until they run.",
    ),
    "show": (
        INSTANCES,
        "moor.instances.instances_command",
        "show",
        "Show an instance, or all instances of a request.",
    ),
    "list": (
        INSTANCES,
        "moor.instances.instances_command",
        "list_instances",
        "List the instances, deleted ones too: the newest ones, the newest last. Each is as its cell told it last.",
    ),
    "console": (
        INSTANCES,
        "moor.instances.instances_command",
        "console",
        "Show what the guest of an instance has written to its serial console.",
    ),
    "rebuild": (
        INSTANCES,
        "moor.instances.move_commands",
        "rebuild",
        "Build the instance anew on its host, from another image; what is on its disk is lost.",
    ),
    "migrate": (
        INSTANCES,
        "moor.instances.move_commands",
        "migrate",
        "Move instances to another host; they are stopped meanwhile. Then confirm the move of one, or revert it.",
    ),
    "live-migrate": (
        INSTANCES,
        "moor.instances.move_commands",
        "live_migrate",
        "Move an instance to another host while it runs.",
    ),
    "resize": (
        INSTANCES,
        "moor.instances.move_commands",
        "resize",
        "Give an instance another size, on another host; on its own one with --to. Then confirm it, or revert it.",
    ),
    "evacuate": (
        INSTANCES,
        "moor.instances.hosts_command",
        "evacuate",
        "Build all instances of a lost host anew on other hosts of its cell. They keep their ids.",
    ),
    "shelve": (
        INSTANCES,
        "moor.instances.move_commands",
        "shelve",
        "Stop an instance; it keeps its host and its share until it is unshelved, unless it is offloaded.",
    ),
    "unshelve": (
        INSTANCES,
        "moor.instances.move_commands",
        "unshelve",
        "Run a shelved instance again: on its host; or on any suitable one, if it was offloaded.",
    ),
    "stop": (
        INSTANCES,
        "moor.instances.move_commands",
        "stop",
        "Switch an instance off; it keeps its host and its share, also when it moves. Harmless if it is stopped.",
    ),
    "start": (
        INSTANCES,
        "moor.instances.move_commands",
        "start",
        "Run a stopped instance again, on its host. Harmless if it is active.",
    ),
    "reboot": (
        INSTANCES,
        "moor.instances.move_commands",
        "reboot",
        "Stop an active instance, and start it again.",
    ),
    "migration": (
        INSTANCES,
        "moor.instances.move_commands",
        "migration_app",
        "Moves of instances: those under way, how others ended, and how one ends.",
    ),
    "history": (
        INSTANCES,
        "moor.instances.move_commands",
        "history_app",
        "What was done with instances: the orders for one, or all arrivals as a trace for `moor replay`.",
    ),
    "delete": (
        INSTANCES,
        "moor.instances.instances_command",
        "delete",
        "Delete instances in any state: those that are named, or all that the filters choose. A deleted one stays deleted.",
    ),
    "explain": (
        INSTANCES,
        "moor.instances.boot_command",
        "explain",
        "Show how the host of each instance was chosen, what was refused, or why no host qualified.",
    ),
    "plan": (
        INSTANCES,
        "moor.instances.boot_command",
        "plan",
        "Show how many instances would fit, on which hosts, and why not on the others. Nothing is built.",
    ),
    "candidates": (
        INSTANCES,
        "moor.placement.quota_command",
        "candidates",
        "List the candidates that can provide all of this: VCPU=2 MEMORY_MB=4096 HW_CPU_X86_AVX2 no:CUSTOM_SLOW.",
    ),
    "events": (
        INSTANCES,
        "moor.broker.messages_command",
        "events",
        "Print the events that happen from now on.",
    ),
    "up": (
        CLOUD,
        "moor.clouds.up_command",
        "up",
        "Run a whole cloud in this process: bus, placement, schedulers, cells and simulated hosts. Its data survive a restart.",
    ),
    "flavor": (
        INSTANCES,
        "moor.instances.stored_commands",
        "flavor_app",
        "Flavors that are stored under names: `moor boot --flavor NAME`.",
    ),
    "image": (
        INSTANCES,
        "moor.instances.stored_commands",
        "image_app",
        "Images that are stored under names, with properties: `moor boot --image NAME`.",
    ),
    "device-profile": (
        INSTANCES,
        "moor.instances.stored_commands",
        "profile_app",
        "Device profiles that are stored under names: a flavor names one by `accel:device_profile`.",
    ),
    "group": (
        INSTANCES,
        "moor.instances.stored_commands",
        "group_app",
        "Server groups, whose instances are kept apart or together: create, list, show, delete.",
    ),
    "status": (
        OPERATING,
        "moor.overview.status_command",
        "status",
        "Show the whole cloud on one screen: what is wrong, cells, room, workers, queues. Exit code 1 if anything is wrong.",
    ),
    "capacity": (
        OPERATING,
        "moor.overview.status_command",
        "capacity",
        "Show how much room is left: of each resource class, and for each shape that is usually asked for.",
    ),
    "top": (
        OPERATING,
        "moor.overview.top_command",
        "top",
        "Watch the whole cloud: health, cells, rates, hosts, instances, what waits and why. Enter opens a row, q quits.",
    ),
    "host": (
        OPERATING,
        "moor.instances.hosts_command",
        "app",
        "Hosts: list, capabilities, show, set, place, drain, delete.",
    ),
    "cell": (
        OPERATING,
        "moor.instances.hosts_command",
        "cell_app",
        "Cells: list, show.",
    ),
    "aggregate": (
        OPERATING,
        "moor.instances.hosts_command",
        "aggregates_app",
        "Aggregates: groups of hosts and bare-metal nodes, with metadata.",
    ),
    "campaign": (
        OPERATING,
        "moor.instances.keeping_commands",
        "app",
        "Campaigns: drain, evacuate or restart many hosts, one after the other.",
    ),
    "question": (
        OPERATING,
        "moor.instances.keeping_commands",
        "questions_app",
        "Questions of keepers: what they must not decide alone.",
    ),
    "budget": (
        OPERATING,
        "moor.instances.keeping_commands",
        "budget_app",
        "Budgets: limits on what moves at once by campaigns.",
    ),
    "balance": (
        OPERATING,
        "moor.instances.balance_commands",
        "app",
        "Balance: have guests moved so that hosts are used alike, or so that some are empty.",
    ),
    "policy": (
        OPERATING,
        "moor.instances.policy_commands",
        "app",
        "Policies: what keepers do by themselves for lost hosts and dead guests.",
    ),
    "node": (
        OPERATING,
        "moor.bare_metal.node_command",
        "app",
        "Bare-metal nodes: show them, and send orders to Ironic.",
    ),
    "provider": (
        OPERATING,
        "moor.placement.providers_command",
        "app",
        "Resource providers: show their trees, inventories and holders; create, change and delete them.",
    ),
    "quota": (
        OPERATING,
        "moor.placement.quota_command",
        "app",
        "Quotas: how much a project may have of each resource class, and how many instances.",
    ),
    "audit": (
        OPERATING,
        "moor.overview.audit_command",
        "audit",
        "Compare the books of placement, the API level, the cells and their hosts; boots go on meanwhile.",
    ),
    "run": (
        OPERATING,
        "moor.clouds.run_command",
        "app",
        "Run one worker until SIGTERM, which drains it. Run any number of each kind, but only one compute per cell. Placement and schedulers also connect to the cells' own brokers (MOOR_CELL_BUS_URLS); a cell's workers connect only to their cell's broker.",
    ),
    "settings": (
        OPERATING,
        "moor.settings_command",
        "settings",
        "List all settings, with their values, where each was set (a variable, a file or the default), and what it is for.",
    ),
    "broker": (
        OPERATING,
        "moor.broker.broker_command",
        "app",
        "The broker's exchanges, queues, users and rights.",
    ),
    "application": (
        OPERATING,
        "moor.broker.broker_command",
        "applications",
        "Applications: programs with their own broker user, which may act only for their projects.",
    ),
    "dead": (
        OPERATING,
        "moor.broker.messages_command",
        "app",
        "Dead letters, messages that no worker could handle: list, show, replay or delete them.",
    ),
    "db": (
        OPERATING,
        "moor.clouds.db_command",
        "app",
        "The database's tables, and the roles of workers there.",
    ),
}


# What commands of release 0.1.0 are now.
Commands.MOVED |= {
    "confirm": "migration confirm",
    "revert": "migration revert",
    "ring": "node ring",
    "trait": "provider trait",
    "class": "provider class",
    "usage": "quota usage",
    "import": "nova import",
    "shadow": "nova shadow",
    "broker user": "application",
    "dead drop": "dead delete",
}


class AllCommands(Commands):
    """Imports a command's module only when that command runs, so that `moor list` does not import all workers."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return names()

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        return command_of(name) if is_known(name) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as wrong:
            raise click.NoSuchCommand(wrong.command_name, possibilities=names(), ctx=ctx) from None

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = every()
        for panel in dict.fromkeys(panel for panel, *_ in known.values()):
            helps = {name: text for name, (of, _, _, text) in known.items() if of == panel}
            write_commands(formatter, panel, helps)

    def shell_complete(self, _ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [
            CompletionItem(name, help=text)
            for name, (*_, text) in every().items()
            if name.startswith(incomplete)
        ]


@cache
def others() -> Mapping[str, tuple[str, str, str, str]]:
    """The commands of other packages. To find them takes as long as a short command, so only an unknown name and the list of all
    commands ask for them.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {name: each for point in entry_points(group=OTHERS) for name, each in point.load().items()}


def every() -> Mapping[str, tuple[str, str, str, str]]:
    return {**COMMANDS, **others()}


def names() -> list[str]:
    return [*every()]


def is_known(name: str) -> bool:
    return name in COMMANDS or name in others()


def command_of(name: str) -> click.Command:
    _, module, attribute, _ = COMMANDS.get(name) or others()[name]
    found = getattr(import_module(module), attribute)
    if not isinstance(found, click.Command):
        found = command(found)
    found.name = name
    return found


# How each shell is told at its start to ask `moor` for completions: in which file of the home directory, and by which line.
SHELLS = {
    "bash": (".bashrc", 'eval "$(_MOOR_COMPLETE=bash_source moor)"'),
    "zsh": (".zshrc", 'eval "$(_MOOR_COMPLETE=zsh_source moor)"'),
    "fish": (".config/fish/completions/moor.fish", "_MOOR_COMPLETE=fish_source moor | source"),
}


def _install_completion(_context: click.Context, wanted: bool) -> bool:  # noqa: FBT001 - as the parser calls it
    if wanted:
        shell = Path(os.environ.get("SHELL", "")).name
        if shell not in SHELLS:
            raise click.BadParameter(f"SHELL is {shell!r}, must be one of {', '.join(SHELLS)}")
        name, line = SHELLS[shell]
        file = Path.home() / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or line not in file.read_text():
            with file.open("a") as start:
                start.write(f"{line}\n")
        say(f"{file} has the line {line}: the next {shell} completes commands, flags, and what exists")
        raise click.exceptions.Exit
    return wanted


def _moor(
    config: Annotated[
        Path | None,
        option(
            metavar="FILE",
            show_default=False,
            help="Settings as TOML. [MOOR_CONFIG; else ./moorage.toml or ~/.config/moorage/config.toml]",
        ),
    ] = None,
    *,
    _completion: Annotated[
        bool,
        option(
            "--install-completion",
            help="Teach the shell to complete commands, and exit.",
            notes=_install_completion,
        ),
    ] = False,
) -> None:
    """Moorage decides where instances run, and makes it happen.

    Settings come from flags, then MOOR_* variables, then a file.

    Exit codes: 0 done, 1 not done, 2 a flag or setting is wrong, 3 not in time.
    """
    fit_width()
    begin_command(config, shown_by)
    context = click.get_current_context()
    name = context.invoked_subcommand
    context.obj = found().file
    if name is not None and (written := found().written.get(GENERAL.name)) and is_known(name):
        context.default_map = {name: defaults_of(command_of(name), written)}


def shown_by(word: str) -> str:
    """The command that lists what there is of what this word names; empty if there is none."""
    # Only a command that did not find something needs the tables.
    from moor.bare_metal.nodes import NODE  # noqa: PLC0415
    from moor.resources import RESOURCES  # noqa: PLC0415

    kinds = {each.word: each for each in (*RESOURCES, NODE)}
    found = kinds.get({"instance and no request": "instance", "request": "instance"}.get(word, word))
    if found is None:
        return ""
    return f"`moor {' '.join(filter(None, (found.command, 'list')))}` shows all {found.several}"


app = AllCommands("")
_alone = command(_moor)
app.help, app.callback, app.params = _alone.help, _alone.callback, _alone.params
click.version_option(package_name="moorage", prog_name="moor", message="%(prog)s %(version)s")(app)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A terminal whose encoding lacks a character shows a replacement instead of raising UnicodeEncodeError.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    _check_text(sys.argv[1:])
    try:
        # Also as `python -m moor`, so that the shell finds how to complete it.
        sys.exit(app.main(prog_name="moor", standalone_mode=False))
    except click.ClickException as wrong:
        wrong.show()
        sys.exit(wrong.exit_code)
    except click.Abort as ended:
        sys.exit(128 + SIGINT if isinstance(ended.__cause__, KeyboardInterrupt) else NOT_DONE)


def _check_text(words: Sequence[str]) -> None:
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            sys.stderr.write(f"moor: argument {word!a} is not valid UTF-8\n")
            sys.exit(WRONG)
