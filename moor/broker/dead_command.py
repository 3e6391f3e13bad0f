"""`moor dead`: shows dead letters, and replays or drops them as an operator decides."""

import re
from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter
from typing import Annotated, Any

import typer
from rich.text import Text

from bus.broker import Connection
from bus.workers.dead_letters import DeadLetter, OpenedDeadLetters, open_dead_letters
from moor.options import BusUrl, Output, command_settings, fail, out, wants_document, with_connection
from moor.showing import print_all, print_one
from moor.tables import Columns

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Dead letters, messages that no worker could handle: show, replay or drop them.",
)

Handles = Annotated[list[str] | None, typer.Argument(help="Handles of dead letters, from `moor dead list`.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]
Like = Annotated[
    bool,
    typer.Option("--like", help="Also all that differ from these only by ids and numbers in their reasons."),
]
FromQueue = Annotated[str, typer.Option("--queue", help="Only dead letters from this queue.")]
Limit = Annotated[int, typer.Option(help="Read at most so many dead letters, oldest first.", min=1)]

BODY_SHOWN_MAX = 4000
_IDS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+")


@app.command("list")
def list_letters(
    bus: BusUrl = "",
    queue: FromQueue = "",
    limit: Limit = 1000,
    *,
    each: Annotated[bool, typer.Option("--each", help="Each letter in a line of its own.")] = False,
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


@app.command()
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


@app.command()
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


@app.command()
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
        raise typer.BadParameter("no dead letters are named: give their handles, or --all")

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
