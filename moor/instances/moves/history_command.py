"""`moor history`, and `moor migration list|show|abort`: the orders for instances, their senders, and their ends."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from bus.messages.moves import AskHistory, AskMoves, Change, HistoryFound, MovesFound
from moor.asking import CommandClient, ask_bus, hosts_of, pages_of
from moor.completing import complete_hosts, complete_instances
from moor.instances.following import Following
from moor.instances.moves.move_commands import end
from moor.message_commands import command_that_sends
from moor.naming import instance_id
from moor.option_structs import with_options
from moor.options import ID, BusUrl, Output, Project
from moor.showing import check_known, print_all, size_in_words, time_in_words
from moor.tables import Columns

PAGE = 200


app = typer.Typer(help="Moves of instances: those under way, and how others ended.", no_args_is_help=True)


def _changes(found: HistoryFound) -> Sequence[Change] | None:
    return None if found.instance is None else found.changes


def _moves(found: HistoryFound) -> Sequence[Change] | None:
    changes = _changes(found)
    return changes and [each for each in changes if each.what not in ("boot", "rebuild", "delete")]


def how_it_ended(change: Change) -> str:
    if not change.outcome:
        return "goes on"
    at = f" at {time_in_words(change.ended_at)}" if change.ended_at else ""
    by = f" by {change.ended_by}" if change.ended_by else ""
    why = f": {change.failure}" if change.failure else ""
    return f"{change.outcome}{at}{by}{why}"


HISTORY = Columns[Change](
    {
        "when": lambda each: time_in_words(each.asked_at),
        "what": lambda each: each.what,
        "by": lambda each: each.by,
        "from": lambda each: each.source,
        "to": lambda each: each.destination,
        "size": lambda each: size_in_words(each.size) if each.size else "",
        "how it ended": how_it_ended,
    },
    prose=("size", "how it ended"),
)
MOVES = Columns[Change](
    {
        "instance": lambda each: str(each.instance),
        "what": lambda each: each.what,
        "from": lambda each: each.source,
        "to": lambda each: each.destination,
        "how it ended": how_it_ended,
    },
    prose=("how it ended",),
    # The instance of a move that is over may be deleted.
    ids={"instance": lambda each: not each.outcome},
)
_about_an_instance = partial(
    command_that_sends,
    AskHistory,
    arguments={"instance": ID},
    named=instance_id,
    completes=complete_instances,
    answer=HistoryFound,
    missing="there is no instance {instance}; `moor list` shows all instances",
    show=HISTORY,
)
history = _about_an_instance(
    words="Show the orders for an instance: when each came, from which user, and how it ended.",
    items=_changes,
)


@app.command("list")
def list_moves(
    bus: BusUrl = "",
    *,
    host: Annotated[
        str, typer.Option(help="Only moves from this host, or to it.", autocompletion=complete_hosts)
    ] = "",
    ended: Annotated[bool, typer.Option("--all", help="Also moves that are over.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 1000,
    _output: Output = None,
) -> None:
    """List the moves of all instances, the newest first."""

    async def work(asking: CommandClient) -> list[Change]:
        found: list[Change] = []
        question = AskMoves(host=host, ended=ended, limit=min(limit, PAGE))
        async for page in pages_of(asking, question, MovesFound):
            found += page.moves
            if len(found) >= limit:
                break
        if host and not found:
            check_known("--host", host, (each.name for each in await hosts_of(asking)))
        return found[:limit]

    print_all(ask_bus(bus, work, operates=False), MOVES, "no moves")


app.command("show")(
    _about_an_instance(
        words="Show the moves of one instance, with who ended them.",
        items=_moves,
        nothing="it has never moved",
    )
)


@app.command("abort")
@with_options
def abort(
    named: Annotated[
        str, typer.Argument(metavar=ID, help="An instance that moves.", autocompletion=complete_instances)
    ],
    *,
    project: Project = "",
    following: Following,
) -> None:
    """Abort the move of an instance that has not arrived: it stays on its host, or comes back there."""
    end(following, named, "abort", project)
