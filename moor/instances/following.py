"""The steps that commands about instances share: a scheduler takes the order, and the command follows the instances."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any, Generic, TypeVar

import typer
from msgspec import Struct
from rich.live import Live

from bus.messages.build import BuildInstance, BuildRejected, InstancesFound, InstanceState, RebuildInstance
from bus.messages.moves import EndMove, MoveInstance
from bus.workers.station import NoAnswer
from engine.flavors import InstanceId, RequestId
from moor.asking import CommandClient, InstanceFollower, client, granted
from moor.naming import instance_ids
from moor.options import (
    INTERRUPTED,
    NOT_IN_TIME,
    BusUrl,
    Output,
    command_settings,
    fail,
    out,
    run,
    tell,
    wants_document,
)
from moor.settings import Settings
from moor.showing import INSTANCES, plain, print_all, print_json, print_one, progress_of

T = TypeVar("T")
Order = TypeVar("Order", bound=RebuildInstance | MoveInstance | EndMove)
Timeout = Annotated[
    float,
    typer.Option(metavar="S", min=0.1, help="Seconds to wait for the end; after that the exit code is 3."),
]


class Following(Struct, frozen=True):
    """The options of commands that send an order: whether and how long to wait for its end, and how to print it."""

    bus: BusUrl = ""
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the order is done, or has failed.")
    ] = True
    timeout: Timeout = 120.0
    _output: Output = None

    @property
    def settings(self) -> Settings:
        return command_settings(bus=self.bus)


class End(Struct, Generic[Order], frozen=True):
    """How a command sees that what an order began in an instance has ended. `what` names it for the user: "the
    rebuild".

    Both functions get the instance's state and the order. `is_over` tells whether the order has ended, and
    `why_not_done` why it failed; empty if it did not fail.
    """

    what: str
    is_over: Callable[[InstanceState, Order], bool]
    why_not_done: Callable[[InstanceState, Order], str]


def run_order(work: Coroutine[Any, Any, None], request: RequestId | None, stays: str) -> None:
    """Run the work of a command that sends an order; if Ctrl-C ends it, print the text `stays`.

    The request's id is printed before anything else, so that a user whose command is cut off can find the request again.
    """
    if request is not None:
        tell(f"request {request}", "dim")
    try:
        run(work)
    except KeyboardInterrupt:
        fail(stays, INTERRUPTED)


async def taken(
    asking: CommandClient,
    order: BuildInstance | RebuildInstance | MoveInstance | EndMove,
    kind: type[T],
    following: Following,
    how_to_follow: str,
) -> T:
    """Send the order to the schedulers and return their answer, of type `kind`.

    End the command if they do not take the order in time, or reject it. A program then still gets JSON: the id of the
    request, and the rejection.
    """
    is_build = isinstance(order, BuildInstance)
    what, done = ("request", "built") if is_build else ("order", "done")
    shown = {"request_id": str(order.request_id), **({"instances": []} if is_build else {})}
    try:
        answer = await asking.ask(order)
    except NoAnswer:
        if wants_document():
            print_json(shown)
        fail(
            f"no scheduler has taken the {what} within {following.timeout:g} s. It stays on the bus, and is {done} when a scheduler "
            f"takes it: {how_to_follow}",
            NOT_IN_TIME,
        )
    if isinstance(answer, BuildRejected) and wants_document():
        print_json({**shown, "rejected": plain(answer)})
    return granted(order, answer, kind)


async def followed(
    asking: CommandClient,
    ids: Sequence[InstanceId],
    states: Iterable[InstanceState],
    is_over: Callable[[InstanceState], bool],
    following: Following,
    *,
    by_s: float,
    project: str,
) -> tuple[list[InstanceState], bool]:
    """Wait until `is_over` holds for all instances, if the command waits; in a terminal, show their states meanwhile.

    Return the states, and whether all were over by `by_s`.
    """
    follower = InstanceFollower(asking, frozenset(ids), project)
    follower.take(states)
    in_time = True
    if following.wait and (wants_document() or not out.is_terminal):
        in_time = await follower.until(is_over, lambda _: None, by_s)
    elif following.wait:
        with Live(progress_of(follower.states.values()), console=out, transient=True) as live:
            in_time = await follower.until(
                is_over, lambda states: live.update(progress_of(states.values())), by_s
            )
    return [follower.states[id_] for id_ in ids if id_ in follower.states], in_time


# Makes the order for the instances that are named. It may look up what else it needs.
OrderFor = Callable[[CommandClient, Sequence[InstanceId]], Awaitable[Order]]


def follow_order(
    following: Following,
    named: Sequence[str],
    order_for: OrderFor[Order],
    end: End[Order],
    *,
    request: RequestId | None,
    project: str,
) -> None:
    """Send the order for the instances that are named, and follow these, and those that move together with them.

    `request` is printed first: None of an order that belongs to an earlier request.
    """
    others = f", and so for {len(named) - 1} others" if named[1:] else ""
    how_to_follow = f"`moor show {shlex.quote(named[0])}` shows its state{others}"
    stays = f"the order stays, and will be done: {how_to_follow}"
    work = _followed_order(following, named, order_for, end, how_to_follow, project=project)
    run_order(work, request, stays)


async def _followed_order(
    following: Following,
    named: Sequence[str],
    order_for: OrderFor[Order],
    end: End[Order],
    how_to_follow: str,
    *,
    project: str,
) -> None:
    by_s = asyncio.get_running_loop().time() + following.timeout
    async with client(following.settings, patience_s=following.timeout) as asking:
        order = await order_for(asking, await instance_ids(asking, named, project))
        answer = await taken(asking, order, InstancesFound, following, how_to_follow)
        states, in_time = await followed(
            asking,
            [each.id for each in answer.instances],
            answer.instances,
            lambda each: end.is_over(each, order),
            following,
            by_s=by_s,
            project=order.project,
        )
    if len(states) == 1:
        print_one(states[0], INSTANCES)
    else:
        print_all(states, INSTANCES)
    if not in_time:
        fail(
            f"{end.what} has not ended within {following.timeout:g} s, and goes on: {how_to_follow}",
            NOT_IN_TIME,
        )
    reasons = [why for each in states if (why := end.why_not_done(each, order))]
    if following.wait and reasons:
        fail("; ".join(dict.fromkeys(reasons)))
