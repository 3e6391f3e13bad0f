"""`moor history`, and `moor migration list|show|abort`: the orders for instances, their senders, and their ends."""

from typing import Annotated
from uuid import UUID

import typer
from msgspec import structs

from bus.messages.moves import AskHistory, AskMoves, Change, HistoryFound, MovesFound
from moor.client import Client, ask_bus, asked_for_all, hosts_of, pages_of
from moor.instances.following import Following
from moor.instances.moves.move_commands import end
from moor.option_structs import with_arguments, with_options
from moor.options import AsJson, BusUrl, Project, fail, read_uuid
from moor.showing import check_known, moment, print_all, size_in_words
from moor.tables import Columns

PAGE = 200


app = typer.Typer(help="Moves of instances: those under way, and how others ended.", no_args_is_help=True)


@with_arguments(instance="ID")
def history(question: AskHistory, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """Show the orders for an instance: when each came, from which user, and how it ended."""
    print_all(_history(bus, question), HISTORY, as_json=as_json)


@app.command("list")
def list_moves(
    bus: BusUrl = "",
    *,
    host: Annotated[str, typer.Option(help="Only moves from this host, or to it.")] = "",
    ended: Annotated[bool, typer.Option("--all", help="Also moves that are over.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """List the moves of all instances, the newest first."""

    async def work(asking: Client) -> list[Change]:
        found: list[Change] = []
        question = AskMoves(host=host, ended=ended, limit=min(limit, PAGE))
        async for page in pages_of(asking, question, MovesFound):
            found += page.moves
            if len(found) >= limit:
                break
        if host and not found:
            check_known("--host", host, (each.name for each in await hosts_of(asking)))
        return found[:limit]

    print_all(ask_bus(bus, work, operates=False), MOVES, "no moves", as_json=as_json)


@app.command("show")
@with_arguments(instance="ID")
def show_moves(question: AskHistory, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """Show the moves of one instance, with who ended them."""
    moves = [each for each in _history(bus, question) if each.what not in ("boot", "rebuild", "delete")]
    print_all(moves, HISTORY, "it has never moved", as_json=as_json)


@app.command("abort")
@with_options
def abort(
    id_: Annotated[UUID, typer.Argument(parser=read_uuid, metavar="ID", help="An instance that moves.")],
    *,
    project: Project = "",
    following: Following,
) -> None:
    """Abort the move of an instance that has not arrived: it stays on its host, or comes back there."""
    end(following, id_, "abort", project)


def _history(bus: str, question: AskHistory) -> list[Change]:
    def changes_of(page: HistoryFound) -> tuple[Change, ...]:
        if page.instance is None:
            fail(f"there is no instance {question.instance}; `moor list` shows all instances")
        return page.changes

    return asked_for_all(bus, structs.replace(question, limit=PAGE), HistoryFound, changes_of, operates=False)


def _end(change: Change) -> str:
    if not change.outcome:
        return "goes on"
    at = f" at {moment(change.ended_at)}" if change.ended_at else ""
    by = f" by {change.ended_by}" if change.ended_by else ""
    why = f": {change.failure}" if change.failure else ""
    return f"{change.outcome}{at}{by}{why}"


HISTORY = Columns[Change](
    {
        "when": lambda each: moment(each.asked_at),
        "what": lambda each: each.what,
        "by": lambda each: each.by,
        "from": lambda each: each.source,
        "to": lambda each: each.destination,
        "size": lambda each: size_in_words(each.size) if each.size else "",
        "how it ended": _end,
    },
    prose=("size", "how it ended"),
)
MOVES = Columns[Change](
    {
        "instance": lambda each: str(each.instance),
        "what": lambda each: each.what,
        "from": lambda each: each.source,
        "to": lambda each: each.destination,
        "how it ended": _end,
    },
    prose=("how it ended",),
)
