"""`moor dead`: what could not be handled, and what a person decides about it."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import typer
from rich.text import Text

from bus.broker import Connection
from bus.dead_letters import DeadLetter, Grave, opened
from moor.options import AsJson, BusUrl, fail, out, settled, with_connection
from moor.tables import print_table, table_of

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Messages that could not be handled: look, replay, or drop.",
)

Handles = Annotated[list[str] | None, typer.Argument(help="Which ones, as `moor dead list` names them.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
FromQueue = Annotated[str, typer.Option("--queue", help="Only those from this queue.")]
Limit = Annotated[int, typer.Option(help="Look at so many at most, oldest first.", min=1)]

BODY_SHOWN_MAX = 4000


@app.command("list")
def list_letters(
    bus: BusUrl = "", queue: FromQueue = "", limit: Limit = 1000, *, as_json: AsJson = False
) -> None:
    """Every dead letter: where it comes from, what it is, and why it is here."""
    letters = _look(bus, limit, lambda letter: queue in ("", letter.queue))
    if as_json:
        out.print_json(json.dumps([_as_json(letter) for letter in letters]))
        return
    if not letters:
        out.print("no dead letters")
        return
    table = table_of("handle", "queue", "type", "attempts", "reason", prose=("type", "reason"))
    for letter in letters:
        said = (letter.handle, letter.queue, letter.type, str(letter.attempts), letter.reason)
        table.add_row(*[Text(_printable(text)) for text in said])
    print_table(table)


@app.command()
def show(handle: str, bus: BusUrl = "", limit: Limit = 1000, *, as_json: AsJson = False) -> None:
    """One dead letter, whole."""
    letters = _look(bus, limit, lambda letter: letter.handle == handle)
    if not letters:
        fail(f"no dead letter {handle!r} among the oldest {limit}; `moor dead list` shows what is there")
    letter = letters[0]
    if as_json:
        out.print_json(json.dumps(_as_json(letter)))
        return
    for name, value in (
        ("handle", letter.handle),
        ("queue", letter.queue),
        ("type", letter.type),
        ("reason", letter.reason),
        ("attempts", letter.attempts),
        ("where", letter.where),
    ):
        out.print(Text.assemble((f"{name:9}", "bold"), " ", _printable(str(value))))
    body = letter.body.decode(errors="replace")
    out.print(Text(_printable(body[:BODY_SHOWN_MAX])))
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
) -> None:
    """Send them to the queues they came from, as if never tried."""

    async def work(connection: Connection, grave: Grave, tags: Sequence[int]) -> None:
        await grave.replay(connection, tags)

    count = _decide(bus, handles, queue, limit, every=every, work=work)
    out.print(f"[green]replayed[/green] {count}")


@app.command()
def drop(
    handles: Handles = None,
    bus: BusUrl = "",
    queue: FromQueue = "",
    limit: Limit = 1000,
    *,
    every: All = False,
) -> None:
    """Forget them for good."""

    async def work(_: Connection, grave: Grave, tags: Sequence[int]) -> None:
        await grave.drop(tags)

    count = _decide(bus, handles, queue, limit, every=every, work=work)
    out.print(f"[green]dropped[/green] {count}")


def _look(bus: str, limit: int, wanted: Callable[[DeadLetter], bool]) -> list[DeadLetter]:
    async def work(connection: Connection) -> list[DeadLetter]:
        async with opened(connection, limit) as grave:
            return [letter for letter in grave.letters.values() if wanted(letter)]

    return with_connection(settled(bus=bus).bus_url, work)


def _decide(
    bus: str,
    handles: Sequence[str] | None,
    queue: str,
    limit: int,
    *,
    every: bool,
    work: Callable[[Connection, Grave, Sequence[int]], Awaitable[None]],
) -> int:
    """Do it to those that were named, or to all, of one queue or of any; how many these were."""
    named = set(handles or ())
    if not named and not every:
        raise typer.BadParameter("name dead letters by their handles, or say --all")

    async def decided(connection: Connection) -> int:
        async with opened(connection, limit) as grave:
            among = {tag: letter for tag, letter in grave.letters.items() if queue in ("", letter.queue)}
            unknown = named - {letter.handle for letter in among.values()}
            if unknown:
                fail(f"no dead letter {', '.join(sorted(unknown))}: nothing was done")
            tags = [tag for tag, letter in among.items() if every or letter.handle in named]
            await work(connection, grave, tags)
            return len(tags)

    return with_connection(settled(bus=bus).bus_url, decided)


def _printable(text: str) -> str:
    """As it may be shown: what anybody sent must not move the cursor, nor be taken for markup."""
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def _as_json(letter: DeadLetter) -> dict[str, object]:
    return {
        "handle": letter.handle,
        "queue": letter.queue,
        "type": letter.type,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "where": letter.where,
        "body": letter.body.decode(errors="replace"),
    }
