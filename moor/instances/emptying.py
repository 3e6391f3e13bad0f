"""Moves all instances away from one host, so many at once, and says what could not move and why."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from msgspec import Struct

from bus.messages.build import (
    AskInstances,
    BuildRejected,
    InstanceId,
    InstancesFound,
    InstanceState,
    MoveKind,
)
from bus.messages.moves import MoveInstance
from moor.client import FOUND_AT_ONCE_MAX, Client, InstanceFollower, pages_of
from moor.instances.move_commands import rests
from moor.instances.request_ids import new_request_ids
from moor.options import NOT_DONE, err, fail, out
from moor.showing import print_json
from moor.tables import Rows, print_table, table_of

EmptyingTimeout = Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds to wait for the end.")]
AtOnce = Annotated[int, typer.Option(min=1, help="How many instances move at the same time.")]


class Stayed(Struct, frozen=True):
    instance: InstanceId
    name: str
    reason: str


class Emptied(Struct, frozen=True):
    """What became of the instances of a host."""

    host: str
    moved: tuple[InstanceState, ...]
    stayed: tuple[Stayed, ...]
    seconds: float


async def instances_on(asking: Client, host: str) -> list[InstanceState]:
    """The instances that are there; one in error only if it keeps its host."""
    question = AskInstances(host=host, limit=FOUND_AT_ONCE_MAX)
    pages = pages_of(asking, question, InstancesFound)
    return [
        each async for page in pages for each in page.instances if each.state != "error" or each.keeps_share
    ]


async def empty(
    asking: Client,
    host: str,
    kinds: Sequence[MoveKind],
    *,
    hosts: Sequence[str] = (),
    at_once: int,
    timeout_s: float,
    quiet: bool,
) -> Emptied:
    """Order the first kind of move for each instance, and the next kind for those that did not move by it."""
    begun = time.monotonic()
    loop = asyncio.get_running_loop()
    by_s = loop.time() + timeout_s
    moved: dict[InstanceId, InstanceState] = {}
    waiting = await instances_on(asking, host)
    stayed = {each.id: Stayed(each.id, each.name, "its turn did not come in time") for each in waiting}
    for kind in kinds:
        for start in range(0, len(waiting), at_once):
            if loop.time() >= by_s:
                break
            some = waiting[start : start + at_once]
            for state, reason in await _move(asking, some, kind, hosts, by_s):
                if reason:
                    stayed[state.id] = Stayed(state.id, state.name, reason)
                else:
                    moved[state.id] = state
                    del stayed[state.id]
            if not quiet:
                err.print(f"{len(moved)} moved, {len(stayed)} not yet", style="dim", highlight=False)
        waiting = [each for each in waiting if each.id in stayed]
    return Emptied(host, tuple(moved.values()), tuple(stayed.values()), time.monotonic() - begun)


async def _move(
    asking: Client, states: Sequence[InstanceState], kind: MoveKind, hosts: Sequence[str], by_s: float
) -> list[tuple[InstanceState, str]]:
    """Each instance as it is then, and why it did not move; empty if it did."""
    ids = new_request_ids(len(states))
    orders = [
        MoveInstance(request_id=id_, instance=state.id, kind=kind, hosts=tuple(hosts), confirm_s=0)
        for id_, state in zip(ids, states, strict=True)
    ]
    answers = await asking.ask_all(orders)
    outcomes: list[tuple[InstanceState, str]] = []
    under_way: dict[InstanceId, MoveInstance] = {}
    known: list[InstanceState] = []
    for order, state, answer in zip(orders, states, answers, strict=True):
        if isinstance(answer, InstancesFound):
            under_way[state.id] = order
            known += answer.instances
        else:
            why = answer.reason if isinstance(answer, BuildRejected) else "no scheduler answered"
            outcomes.append((state, why))
    following = InstanceFollower(asking, under_way, by_s)
    following.take(known)
    in_time = await following.until(_is_over(under_way), lambda _: None) if under_way else True
    late = "" if in_time else "its move goes on"
    for id_, order in under_way.items():
        state = following.states[id_]
        outcomes.append((state, _why_not(state, order) or ("" if _is_over(under_way)(state) else late)))
    return outcomes


def _is_over(orders: dict[InstanceId, MoveInstance]) -> Callable[[InstanceState], bool]:
    return lambda state: rests(state, orders[state.id].request_id)


def _why_not(state: InstanceState, order: MoveInstance) -> str:
    move = state.move
    if state.state in ("deleting", "deleted"):
        return ""
    if move is None or move.request_id != order.request_id:
        return "another move came first"
    if move.outcome in ("failed", "aborted", "reverted"):
        return "; ".join(
            [move.failure or move.outcome, *(f"{each.host}: {each.reason}" for each in state.failures)]
        )
    return ""


def show_emptied(done: Emptied, *, as_json: bool) -> None:
    """Print what became of the instances; end the command with an error if some stayed."""
    count = len(done.moved) + len(done.stayed)
    if as_json:
        print_json(done)
    else:
        each = f", {done.seconds / count * 1000:.0f} ms each" if count else ""
        out.print(
            f"{len(done.moved)} of {count} instances have left {done.host} in {done.seconds:.1f} s{each}",
            highlight=False,
        )
        if done.stayed:
            print_table(_stayed_table(done.stayed))
    if done.stayed:
        fail(f"{len(done.stayed)} instances are still on {done.host}", NOT_DONE)


def _stayed_table(stayed: Sequence[Stayed]) -> Rows:
    table = table_of("id", "name", "why it stays", prose=("why it stays",))
    for each in stayed:
        table.add_row(str(each.instance), each.name, each.reason)
    return table
