"""`moor dead` and `moor events`: dead letters, which an operator replays or drops; and the events on the bus as they come."""

import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from datetime import datetime
from operator import itemgetter
from typing import Annotated, Any

import click
import msgspec
from rich.markup import escape
from rich.text import Text

from bus.broker import PREFETCH_MAX, Connection
from bus.message import Message, type_of
from bus.messages.build import BuildAccepted, BuildRejected, InstanceState
from bus.messages.hosts import HostChanged, HostsReported
from bus.messages.placement import ProvidersChanged
from bus.topology import FACTS
from bus.workers.dead_letters import DeadLetter, OpenedDeadLetters, open_dead_letters
from kit.errors import AccessRefused
from moor.asking import client
from moor.flags import Commands, argument, option
from moor.options import (
    BusUrl,
    Output,
    Project,
    command_settings,
    fail,
    out,
    run,
    tell,
    wants_document,
    with_connection,
)
from moor.showing import COLOURS, print_all, print_line, print_one
from moor.tables import Columns

app = Commands("Dead letters, messages that no worker could handle: show, replay or drop them.")

Handles = Annotated[list[str] | None, argument(help="Handles of dead letters, from `moor dead list`.")]
All = Annotated[bool, option("--all", help="All dead letters.")]
Like = Annotated[
    bool,
    option("--like", help="Also all that differ from these only by ids and numbers in their reasons."),
]
FromQueue = Annotated[str, option("--queue", help="Only dead letters from this queue.")]
Limit = Annotated[
    int, option(help="Read at most so many dead letters, oldest first.", min=1, max=PREFETCH_MAX)
]

BODY_SHOWN_MAX = 4000
_IDS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+")


@app.verb("list")
def list_letters(
    bus: BusUrl = "",
    queue: FromQueue = "",
    limit: Limit = 1000,
    *,
    each: Annotated[bool, option("--each", help="Each letter in a line of its own.")] = False,
    _output: Output = None,
) -> None:
    """List the dead letters: the queue each came from, its type, and why it is dead. Letters that differ only by ids and numbers are
    one line, with the handle of the oldest; --each and -o json list each one.
    """
    letters = _look(bus, limit, lambda letter: queue in ("", letter.queue))
    if each or wants_document():
        print_all(letters, LETTERS, "no dead letters")
    else:
        groups: dict[tuple[str, ...], dict[str, Any]] = {}
        for letter in letters:
            key = _group(letter["queue"], letter["type"], letter["reason"])
            groups.setdefault(key, {**letter, "letters": 0})["letters"] += 1
        print_all([*groups.values()], GROUPS, "no dead letters")


# Of documents of dead letters.
LETTERS = Columns[dict[str, Any]](
    {
        "handle": itemgetter("handle"),
        "queue": itemgetter("queue"),
        "type": itemgetter("type"),
        "attempts": lambda letter: str(letter["attempts"]),
        "reason": itemgetter("reason"),
    },
    prose=("type", "reason"),
)


# As LETTERS, of the oldest letter of each group.
GROUPS = Columns[dict[str, Any]](
    {"letters": lambda group: f"{group['letters']:,}", **LETTERS.cells}, prose=LETTERS.prose
)


def _group(queue: str, kind: str, reason: str) -> tuple[str, ...]:
    """Letters with an equal group have died of the same: their reasons differ by ids and numbers alone."""
    return queue, kind, _IDS.sub("*", reason)


@app.verb()
def show(handle: str, bus: BusUrl = "", limit: Limit = 1000, *, _output: Output = None) -> None:
    """Show one dead letter with its body."""
    letters = _look(bus, limit, lambda letter: letter.handle == handle)
    if not letters:
        fail(f"no dead letter {handle!r} among the oldest {limit}; `moor dead list` shows which exist")
    print_one(letters[0], print_letter)


def print_letter(letter: dict[str, Any]) -> None:
    body = letter.pop("body")
    for name, value in letter.items():
        if value is None:
            continue
        out.print(Text.assemble((f"{name:9}", "bold"), " ", str(value)))
    out.print(Text(body[:BODY_SHOWN_MAX]))
    if len(body) > BODY_SHOWN_MAX:
        out.print(f"[dim]... {len(body)} characters in all[/dim]")


@app.verb()
def replay(
    handles: Handles = None,
    bus: BusUrl = "",
    queue: FromQueue = "",
    limit: Limit = 1000,
    *,
    every: All = False,
    like: Like = False,
) -> None:
    """Send dead letters back to the queues they came from, with their attempts reset."""
    count = _decide(
        bus,
        handles,
        queue,
        limit,
        every=every,
        like=like,
        work=lambda connection, opened, tags: opened.replay(connection, tags),
    )
    out.print(f"[green]replayed[/green] {count}")


@app.verb()
def drop(
    handles: Handles = None,
    bus: BusUrl = "",
    queue: FromQueue = "",
    limit: Limit = 1000,
    *,
    every: All = False,
    like: Like = False,
) -> None:
    """Delete dead letters for good."""
    count = _decide(
        bus, handles, queue, limit, every=every, like=like, work=lambda _, opened, tags: opened.drop(tags)
    )
    out.print(f"[green]dropped[/green] {count}")


def _look(bus: str, limit: int, wanted: Callable[[DeadLetter], bool]) -> list[dict[str, Any]]:
    """The documents of these dead letters."""

    async def work(connection: Connection) -> list[dict[str, Any]]:
        async with open_dead_letters(connection, limit) as opened:
            return [document_of(letter) for letter in opened.letters.values() if wanted(letter)]

    return with_connection(command_settings(bus=bus).bus_url, work)


def _decide(
    bus: str,
    handles: Sequence[str] | None,
    queue: str,
    limit: int,
    *,
    every: bool,
    like: bool,
    work: Callable[[Connection, OpenedDeadLetters, Sequence[int]], Awaitable[None]],
) -> int:
    """Run `work` on the dead letters with these handles, with `like` also on those of their groups, or on all of them; return their
    number.

    If `queue` is given, only letters that came from that queue count.
    """
    named = set(handles or ())
    if not named and not every:
        raise click.BadParameter("no dead letters are named: give their handles, or --all")

    async def decided(connection: Connection) -> int:
        async with open_dead_letters(connection, limit) as opened:
            among = {tag: letter for tag, letter in opened.letters.items() if queue in ("", letter.queue)}
            unknown = named - {letter.handle for letter in among.values()}
            if unknown:
                fail(f"no dead letter {', '.join(sorted(unknown))}: nothing was done")
            groups = {_group_of(letter) for letter in among.values() if like and letter.handle in named}
            tags = [
                tag
                for tag, letter in among.items()
                if every or letter.handle in named or _group_of(letter) in groups
            ]
            await work(connection, opened, tags)
            return len(tags)

    return with_connection(command_settings(bus=bus).bus_url, decided)


def _group_of(letter: DeadLetter) -> tuple[str, ...]:
    return _group(letter.queue, letter.type, letter.reason)


def document_of(letter: DeadLetter) -> dict[str, Any]:
    return {
        "handle": letter.handle,
        "queue": letter.queue,
        "type": letter.type,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "where": letter.where,
        "sender": letter.origin.sender,
        "sent_at": letter.sent_at,
        "buried_at": letter.buried_at,
        "bytes": len(letter.parcel.body),
        "body": letter.parcel.body.decode(errors="replace"),
    }


# `moor events`: prints the events on the bus as they come.

# Builds, instances and host states. Heartbeats and changes of placement's books are left out: there are too many.
DEFAULT_PATTERNS = ("build.#", "instance.#", "host.state.*", "host.changed.*", "inventory.refused.*")
FIRST_WORDS = ("*", "#", *(fact.partition(".")[0] for fact in FACTS))
PATTERN = re.compile(r"(\*|#|[a-z0-9_-]+)(\.(\*|#|[a-z0-9_-]+))*")


def events(
    patterns: Annotated[
        list[str] | None,
        argument(
            metavar="PATTERN...",
            show_default=False,
            help="Routing keys, with the wildcards of AMQP: instance.error.*, instance.*.harbour, providers.changed, host.#. "
            r"[default: builds, instances, hosts]",
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
    for pattern in wanted:
        if not PATTERN.fullmatch(pattern):
            raise click.BadParameter(f"PATTERN is {pattern!r}: it must be words, * and #, separated by dots")
        if pattern.partition(".")[0] not in FIRST_WORDS:
            raise click.BadParameter(
                f"PATTERN is {pattern!r}: no event has such a key; events are {', '.join(FACTS)}"
            )
    settings = command_settings(bus=bus)

    async def work() -> None:
        printed = 0
        async with (
            client(settings, operates=True) as asking,
            aclosing(asking.listen(*wanted, project=project)) as heard,
        ):
            async for batch in heard:
                if not batch:
                    # Printed again after a reconnect: events that came meanwhile are missing from the output.
                    tell(f"listening for {', '.join(wanted)}", "dim")
                for message in batch:
                    _print(message)
                    printed += 1
                    if printed == count:
                        return

    try:
        run(_refused_with_hint(work()))
    except KeyboardInterrupt:
        raise click.exceptions.Exit(0) from None


async def _refused_with_hint(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except AccessRefused as refused:
        fail(
            f"the broker refused: {refused}; operators may receive {', '.join(FACTS)}, an application only events of its "
            "projects: give --project NAME"
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
