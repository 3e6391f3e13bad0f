"""`moor dead` and `moor events`: dead letters, which an operator replays or deletes; and the events on the bus as they come."""

import re
from collections.abc import Awaitable, Callable, Sequence, Sized
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any

import click
import msgspec
from rich.markup import escape

from bus.broker import PREFETCH_MAX
from bus.topology import FACTS
from moor.client import (
    BuildAccepted,
    BuildRejected,
    Client,
    DeadLetter,
    HostChanged,
    HostsReported,
    InstanceState,
    Message,
    NotAllowed,
    ProvidersChanged,
    group_of,
    type_of,
)
from moor.client.dead_letters import LETTERS_MAX
from moor.flags import argument, option
from moor.options import BusUrl, Output, Project, fail, out, tell, wants_document, with_client
from moor.resource_commands import check_not_both, commands_of, with_filters
from moor.resources import DEAD_LETTER
from moor.showing import COLOURS, print_all, print_line
from moor.tables import Columns

app = commands_of(
    DEAD_LETTER, "Dead letters, messages that no worker could handle: list, show, replay or delete them."
)

Handles = Annotated[list[str] | None, argument(help="Handles of dead letters, from `moor dead list`.")]
All = Annotated[bool, option("--all", help="All dead letters.")]
Like = Annotated[
    bool,
    option("--like", help="Also all that differ from these only by ids and numbers in their reasons."),
]


@app.verb("list")
@with_filters(DEAD_LETTER)
def list_letters(
    bus: BusUrl = "",
    *,
    each: Annotated[bool, option("--each", help="Each letter in a line of its own.")] = False,
    _output: Output = None,
    **filters: Any,
) -> None:
    """List the dead letters: the queue each came from, its type, and why it is dead. Letters that differ only by ids and numbers are
    one line, with the handle of the oldest; --each and -o json list each one, and -o json all that there are.
    """

    async def work(moor: Client) -> tuple[Sequence[DeadLetter], int]:
        count = await moor.count_dead_letters()
        if wants_document() and filters["limit"] == LETTERS_MAX:
            # A program would take a part for all.
            filters["limit"] = min(max(count, LETTERS_MAX), PREFETCH_MAX)
        return await moor.list_dead_letters(**filters), count

    letters, count = with_client(bus, work, operates=True)
    if count > filters["limit"] <= len(letters):
        tell(f"the oldest {filters['limit']:,} of {count:,} were read; a higher --limit reads more", "yellow")
    if each or wants_document():
        print_all(letters, DEAD_LETTER.columns, DEAD_LETTER.nothing)
        return
    groups: dict[tuple[str, ...], list[DeadLetter]] = {}
    for letter in letters:
        groups.setdefault(group_of(letter), []).append(letter)
    print_all([*groups.values()], GROUPS, DEAD_LETTER.nothing)


# Letters that have died of the same: the oldest stands for all.
GROUPS = Columns[list[DeadLetter]](
    {
        "letters": lambda group: f"{len(group):,}",
        **DEAD_LETTER.columns.of(lambda group: group[0]).cells,
    },
    prose=DEAD_LETTER.columns.prose,
    numbers=("letters", *DEAD_LETTER.columns.numbers),
    name=lambda group: group[0].handle,
)


def _add_decision(verb: str, help_: str, done: str, decides: Callable[..., Awaitable[Sized]]) -> None:
    @app.verb(verb, help=help_)
    @with_filters(DEAD_LETTER)
    def command(
        handles: Handles = None,
        bus: BusUrl = "",
        *,
        every: All = False,
        like: Like = False,
        **filters: Any,
    ) -> None:
        if not (handles or every):
            raise click.BadParameter("no dead letters are named: give their handles, or --all")
        check_not_both(handles, all=every or None)
        named = handles or ()

        async def work(moor: Client) -> tuple[int, int]:
            decided = await decides(moor, *named, every=every, like=like, **filters)
            return len(decided), await moor.count_dead_letters() if every else 0

        count, left = with_client(bus, work, operates=True)
        out.print(f"[green]{done}[/green] {count}")
        if left:
            tell(f"{left:,} dead letters are left; a higher --limit reads more at once", "yellow")


_add_decision(
    "replay",
    "Send dead letters back to the queues they came from, with their attempts reset.",
    "replayed",
    Client.replay_dead_letters,
)
_add_decision("delete", "Delete dead letters for good.", "deleted", Client.delete_dead_letters)


# `moor events`: prints the events on the bus as they come.

# Builds, instances, host states and what daemons order for nodes. Heartbeats and changes of placement's books are left out: there are too many.
DEFAULT_PATTERNS = (
    "build.#",
    "instance.#",
    "host.state.*",
    "host.changed.*",
    "node.#",
    "inventory.refused.*",
)
FIRST_WORDS = ("*", "#", *(fact.partition(".")[0] for fact in FACTS))
PATTERN = re.compile(r"(\*|#|[a-z0-9_-]+)(\.(\*|#|[a-z0-9_-]+))*")


def events(
    patterns: Annotated[
        list[str] | None,
        argument(
            metavar="PATTERN...",
            show_default=False,
            help="Routing keys, with the wildcards of AMQP: instance.error.*, instance.*.harbour, providers.changed, host.#. "
            r"[default: builds, instances, hosts, nodes]",
        ),
    ] = None,
    bus: BusUrl = "",
    *,
    project: Project = "",
    count: Annotated[int, option(metavar="N", min=0, help="Stop after N events; 0: go on until Ctrl-C.")] = 0,
    _output: Output = None,
) -> None:
    """Print the events that happen from now on.

    With -o json one object a line, as on the bus; with -o yaml one document after the other.
    """
    wanted = tuple(patterns or DEFAULT_PATTERNS)
    _check_patterns(wanted)

    async def work(moor: Client) -> None:
        printed = 0
        async with aclosing(moor.event_batches(*wanted)) as heard:
            async for batch in heard:
                if not batch:
                    # Printed again after a reconnect: events that came meanwhile are missing from the output.
                    tell(f"listening for {', '.join(wanted)}", "dim")
                for message in batch:
                    _print(message)
                    printed += 1
                    if printed == count:
                        return

    async def hearing(moor: Client) -> None:
        try:
            await work(moor)
        except NotAllowed as refused:
            fail(
                f"{refused}; operators may receive {', '.join(FACTS)}, an application only events of its projects: give --project NAME"
            )

    try:
        with_client(bus, hearing, operates=True, project=project)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(0) from None


def _check_patterns(patterns: Sequence[str]) -> None:
    for pattern in patterns:
        if not PATTERN.fullmatch(pattern):
            raise click.BadParameter(f"PATTERN is {pattern!r}: it must be words, * and #, separated by dots")
        if pattern.partition(".")[0] not in FIRST_WORDS:
            raise click.BadParameter(
                f"PATTERN is {pattern!r}: no event has such a key; events are {', '.join(FACTS)}"
            )


def _print(message: Message) -> None:
    if wants_document():
        print_line(message)
        return
    now = datetime.now().astimezone()
    out.print(f"[dim]{now:%H:%M:%S}[/dim] {line_of(message)}", soft_wrap=True)


def line_of(message: Message) -> str:
    kind = f"{type_of(message):18}"
    instance = getattr(message, "instance", None)
    if isinstance(instance, InstanceState):
        return f"[{COLOURS.get(instance.state, 'white')}]{kind}[/] {_of_instance(instance, kind.strip())}"
    match message:
        case BuildAccepted():
            return (
                f"[cyan]{kind}[/] request {message.request_id}: {_some(len(message.instances), 'instance')}"
            )
        case BuildRejected():
            why = escape(f"{message.field} is {message.value!r}: {message.reason}")
            return f"[red]{kind}[/] request {message.request_id}: {why}"
        case HostsReported() | HostChanged():
            return f"{kind} {escape(_of_hosts(message))}"
        case ProvidersChanged():
            return f"{kind} {_some(len(message.providers) + len(message.usage), 'provider')}"
        case _:
            return f"{kind} {escape(msgspec.json.encode(message).decode())}"


def _of_instance(instance: InstanceState, kind: str) -> str:
    # `instance.moved` also tells that an instance is stopped, shelved or offloaded.
    state = "" if kind == f"instance.{instance.state}" else f" is {instance.state}"
    where = f" on {instance.host}" if instance.host else ""
    why = f": {instance.reason}" if instance.reason else ""
    return escape(f"{instance.name or instance.id}{state}{where}{why}")


def _of_hosts(message: HostsReported | HostChanged) -> str:
    if isinstance(message, HostsReported):
        more = f" and {len(message.hosts) - 1} more" if len(message.hosts) > 1 else ""
        return f"{message.hosts[0].name}{more}" if message.hosts else ""
    host, setting = message.host, message.host.setting
    by = f" by {setting.by}" if setting.by else ""
    cleaning = ", and must clean up" if host.must_clean else ""
    return f"{host.name} is set {setting.mode}{by}{cleaning}{f': {setting.reason}' if setting.reason else ''}"


def _some(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
