"""What commands about instances share: their order is taken by a scheduler, and the instances are followed to an end state."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typer
from rich.live import Live

from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    InstanceId,
    InstanceState,
    RebuildInstance,
    RequestId,
)
from bus.messages.moves import MoveInstance
from bus.workers.asking import NoAnswer
from moor.client import Client, InstanceFollower
from moor.options import INTERRUPTED, NOT_IN_TIME, err, fail, out, run
from moor.showing import plain, print_json, progress_of

T = TypeVar("T")
Timeout = Annotated[
    float,
    typer.Option(metavar="S", min=0.1, help="Seconds to wait for the end; after that the exit code is 3."),
]
ENDED = ("active", "error", "deleted")


def run_order(work: Coroutine[Any, Any, None], request: RequestId | None, stays: str) -> None:
    """Print the request's id before anything else, so that a user whose command is cut off can find the request again."""
    if request is not None:
        err.print(f"request {request}", style="dim", highlight=False, soft_wrap=True)
    try:
        run(work)
    except KeyboardInterrupt:
        fail(stays, INTERRUPTED)


async def taken(
    asking: Client,
    order: BuildInstance | RebuildInstance | MoveInstance,
    kind: type[T],
    *,
    timeout_s: float,
    how_to_follow: str,
    shown: Mapping[str, object] | None,
) -> T:
    """The schedulers' answer to the order. End the command if they do not take it in time or reject it; then `shown` is
    printed as JSON, with the rejection.
    """
    what, done = ("request", "built") if isinstance(order, BuildInstance) else ("order", "done")
    try:
        answer = await asking.ask(order)
    except NoAnswer:
        if shown:
            print_json(shown)
        fail(
            f"no scheduler has taken the {what} within {timeout_s:g} s. It stays on the bus, and is {done} when a scheduler "
            f"takes it: {how_to_follow}",
            NOT_IN_TIME,
        )
    if isinstance(answer, BuildRejected):
        if shown:
            print_json({**shown, "rejected": plain(answer)})
        fail(f"rejected: {answer.field} is {answer.value!r}: {answer.reason}")
    assert isinstance(answer, kind), f"{order!r} was answered by {answer!r}"
    return answer


async def followed(
    asking: Client,
    ids: Sequence[InstanceId],
    states: Iterable[InstanceState],
    is_over: Callable[[InstanceState], bool] | None,
    *,
    by_s: float,
    project: str,
    quiet: bool,
) -> tuple[list[InstanceState], bool]:
    """Wait until `is_over` holds for all instances; in a terminal, show their states meanwhile. Return the states, and
    whether they came in time.
    """
    following = InstanceFollower(asking, ids, by_s, project)
    following.take(states)
    in_time = True
    if is_over and (quiet or not out.is_terminal):
        in_time = await following.until(is_over, lambda _: None)
    elif is_over:
        with Live(progress_of(following.states.values()), console=out, transient=True) as live:
            in_time = await following.until(is_over, lambda states: live.update(progress_of(states.values())))
    return [following.states[id_] for id_ in ids if id_ in following.states], in_time


def has_ended(instance: InstanceState) -> bool:
    return instance.state in ENDED
