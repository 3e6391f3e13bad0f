"""Empties one host for a command, until its time is up or a signal comes, and shows which instances stayed and why."""

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from bus.messages.build import MoveKind
from bus.messages.moves import MoveWait
from bus.process import stopped_by_signals
from moor.asking import CommandClient
from moor.client.emptying import Emptied, HostMoves, Stayed, instances_on
from moor.options import NOT_DONE, fail, out, tell
from moor.showing import print_one
from moor.tables import Columns, print_table

EmptyingTimeout = Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds to wait for the end.")]
AtOnce = Annotated[int, typer.Option(min=1, help="How many instances move at the same time.")]


async def empty(
    asking: CommandClient,
    host: str,
    kinds: Sequence[MoveKind],
    *,
    hosts: Sequence[str] = (),
    wait: MoveWait | None = None,
    at_once: int,
    timeout_s: float,
    quiet: bool,
) -> Emptied:
    """Order the first kind of move for each instance, and the next kind for those that did not move by it. When the time is up,
    or a signal comes, nothing more is ordered: what moves then goes on.
    """
    begun = time.monotonic()
    there = await instances_on(asking, host)
    moves = HostMoves(asking, there, kinds, hosts, wait=wait, tell=None if quiet else _tell)
    with stopped_by_signals() as told:
        working = asyncio.create_task(moves.make(at_once))
        stopping = asyncio.create_task(told.wait())
        try:
            await asyncio.wait((working, stopping), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.wait((working, stopping))
    return Emptied(host, tuple(moves.moved), moves.still_there(), time.monotonic() - begun)


def _tell(progress: str) -> None:
    tell(progress, "dim")


def show_emptied(done: Emptied) -> None:
    """Print what became of the instances; end the command with an error if some stayed."""
    print_one(done, _print_emptied)
    if done.stayed:
        fail(f"{len(done.stayed)} instances are still on {done.host}", NOT_DONE)


def _print_emptied(done: Emptied) -> None:
    count = len(done.moved) + len(done.stayed)
    each = f", {done.seconds / count * 1000:.0f} ms each" if count else ""
    out.print(f"{len(done.moved)} of {count} instances have left {done.host} in {done.seconds:.1f} s{each}")
    if done.stayed:
        print_table(done.stayed, STAYED)


STAYED = Columns[Stayed](
    {
        "id": lambda each: str(each.instance),
        "name": lambda each: each.name,
        "why it stays": lambda each: each.reason,
    },
    prose=("why it stays",),
    ids={"id": lambda _: True},
)
