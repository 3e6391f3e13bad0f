"""The steps that commands about instances share: a scheduler takes the order, and the command follows the instances."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any, Generic, TypeVar

import typer
from msgspec import Struct
from rich.live import Live

from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    InstanceId,
    InstancesFound,
    InstanceState,
    RebuildInstance,
    RequestId,
)
from bus.messages.moves import EndMove, MoveInstance
from bus.workers.asking import NoAnswer
from moor.asking import Client, InstanceFollower, client, granted
from moor.options import INTERRUPTED, NOT_IN_TIME, AsJson, BusUrl, command_settings, fail, out, run, tell
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
    as_json: AsJson = False

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
    asking: Client,
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
        if following.as_json:
            print_json(shown)
        fail(
            f"no scheduler has taken the {what} within {following.timeout:g} s. It stays on the bus, and is {done} when a scheduler "
            f"takes it: {how_to_follow}",
            NOT_IN_TIME,
        )
    if isinstance(answer, BuildRejected) and following.as_json:
        print_json({**shown, "rejected": plain(answer)})
    return granted(order, answer, kind)


async def followed(
    asking: Client,
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
    if following.wait and (following.as_json or not out.is_terminal):
        in_time = await follower.until(is_over, lambda _: None, by_s)
    elif following.wait:
        with Live(progress_of(follower.states.values()), console=out, transient=True) as live:
            in_time = await follower.until(
                is_over, lambda states: live.update(progress_of(states.values())), by_s
            )
    return [follower.states[id_] for id_ in ids if id_ in follower.states], in_time


def follow_order(
    following: Following, order: Order, end: End[Order], *, together: Sequence[InstanceId] = ()
) -> None:
    """Send the order, and follow its instance, and those that move together with it."""
    others = f", and so for {len(together)} others" if together else ""
    how_to_follow = f"`moor show {order.instance}` shows its state{others}"
    stays = f"the order stays, and will be done: {how_to_follow}"
    # The end of a move is an order of the move's own request.
    request = None if isinstance(order, EndMove) else order.request_id
    run_order(_followed_order(following, order, end, how_to_follow), request, stays)


async def _followed_order(following: Following, order: Order, end: End[Order], how_to_follow: str) -> None:
    by_s = asyncio.get_running_loop().time() + following.timeout
    async with client(following.settings, patience_s=following.timeout) as asking:
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
        print_one(states[0], INSTANCES, as_json=following.as_json)
    else:
        print_all(states, INSTANCES, as_json=following.as_json)
    if not in_time:
        fail(
            f"{end.what} has not ended within {following.timeout:g} s, and goes on: {how_to_follow}",
            NOT_IN_TIME,
        )
    reasons = [why for each in states if (why := end.why_not_done(each, order))]
    if following.wait and reasons:
        fail("; ".join(dict.fromkeys(reasons)))
