"""`moor show`, `list`, `delete` and `console`; and how commands send an order to a scheduler and follow its instances."""

import asyncio
import shlex
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

import click
from msgspec import Struct
from rich.live import Live

from bus.messages.build import (
    AskInstances,
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    InstancesFound,
    InstanceState,
    RebuildInstance,
)
from bus.messages.cell import CONSOLE_BYTES_MAX, AskConsole
from bus.messages.moves import EndMove, MoveInstance
from bus.workers.station import NoAnswer
from engine.flavors import InstanceId, RequestId
from engine.hosts import cell_and_name
from moor.asking import (
    FOUND_AT_ONCE_MAX,
    CommandClient,
    InstanceFollower,
    answers_of,
    ask_bus,
    client,
    granted,
    hosts_of,
)
from moor.client.instances import last_of_console, parts_of_console
from moor.completing import complete_cells, complete_hosts, complete_instances, complete_states
from moor.flags import argument, option
from moor.naming import instance_ids, instances_or_requests
from moor.options import (
    ID,
    INTERRUPTED,
    NOT_IN_TIME,
    BusUrl,
    Form,
    Output,
    Project,
    command_settings,
    fail,
    form,
    out,
    run,
    tell,
    wants_document,
)
from moor.settings import Settings
from moor.showing import (
    COLOURS,
    INSTANCES,
    as_document,
    check_known,
    last_heard,
    plain,
    print_all,
    print_instance,
    print_json,
    print_last_heard,
    print_one,
    progress_of,
    wide,
)

T = TypeVar("T")
Order = TypeVar("Order", bound=RebuildInstance | MoveInstance | EndMove)
Timeout = Annotated[
    float,
    option(metavar="S", min=0.1, help="Seconds to wait for the end; after that the exit code is 3."),
]


class Following(Struct, frozen=True):
    """The options of commands that send an order: whether and how long to wait for its end, and how to print it."""

    bus: BusUrl = ""
    wait: Annotated[bool, option("--wait/--no-wait", help="Wait until the order is done, or has failed.")] = (
        True
    )
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
    known = [follower.states[id_] for id_ in ids if id_ in follower.states]
    if following.wait and in_time:
        await asking.until_known(known, project)
    return known, in_time


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


Names = Annotated[
    list[str],
    argument(
        metavar=f"{ID}...",
        help="Instances; or ids of requests, for all of their instances.",
        completes=complete_instances,
    ),
]


def show(
    named: Annotated[
        str, argument(metavar=ID, help="An instance, or a request.", completes=complete_instances)
    ],
    bus: BusUrl = "",
    *,
    project: Project = "",
    _output: Output = None,
) -> None:
    """Show an instance, or all instances of a request."""

    async def work(asking: CommandClient) -> tuple[list[InstanceState], CommandClient]:
        return [*(await instances_or_requests(asking, [named], project)).values()], asking

    states, asked = ask_bus(bus, work, operates=False)
    if wants_document():
        print_json([as_document(each, asked.cells, asked.details) for each in states])
        return
    for state in states:
        print_instance(state, last_heard(state.cell, asked.cells), asked.details.get(state.id))


def list_instances(
    bus: BusUrl = "",
    *,
    state: Annotated[
        str,
        option(
            help="accepted, waiting, placed, building, active, rebuilding, moving, moved, stopped, shelved, offloaded, error, deleting or deleted.",
            completes=complete_states,
        ),
    ] = "",
    cell: Annotated[str, option(help="Only instances of this cell.", completes=complete_cells)] = "",
    host: Annotated[str, option(help="Only instances on this host.", completes=complete_hosts)] = "",
    project: Project = "",
    name: Annotated[str, option(help="Only instances with this name.", completes=complete_instances)] = "",
    limit: Annotated[int, option(min=1, help="How many at most.")] = 1000,
    _output: Output = None,
) -> None:
    """List the instances, deleted ones too, ordered by id: each as its cell told it last.

    With -o wide also the size, the flavor and the times of each.
    """
    if state and state not in COLOURS:
        raise click.BadParameter(f"--state is {state!r}; the states are {', '.join(COLOURS)}")
    of_host, host = cell_and_name(host)
    if of_host and cell not in ("", of_host):
        raise click.BadParameter(f"--cell is {cell!r}, and --host names a host of cell {of_host!r}")
    cell = of_host or cell
    wanted = {"cell": cell, "host": host, "project": project, "name": name, "state": state}

    async def work(asking: CommandClient) -> tuple[list[InstanceState], CommandClient]:
        found = await _found(asking, wanted, limit)
        if (cell or host) and not found:
            hosts = await hosts_of(asking)
            check_known("--cell", cell, (each.cell for each in hosts))
            check_known("--host", host, (each.name for each in hosts))
        return found, asking

    found, asked = ask_bus(bus, work, operates=False)
    shown = found[:limit]
    if wants_document():
        print_json([as_document(each, asked.cells, asked.details) for each in shown])
    else:
        columns = wide(asked.details) if form() is Form.WIDE else INSTANCES
        print_all(shown, columns, "no instances")
        print_last_heard(shown, asked.cells)
    if len(found) > limit:
        tell(f"there are more than {limit} instances: a higher --limit shows them", "yellow")


async def _found(asking: CommandClient, wanted: Mapping[str, str], limit: int) -> list[InstanceState]:
    """The first instances whose fields are as `wanted`: `limit` of them, and more if there are more."""
    question = AskInstances(
        project=wanted["project"], state=wanted["state"], name=wanted["name"], limit=FOUND_AT_ONCE_MAX
    )
    found: list[InstanceState] = []
    async for page in asking.pages_of_instances(question):
        found += [
            each
            for each in page.instances
            if all(getattr(each, field) == value for field, value in wanted.items() if value)
        ]
        if len(found) > limit:
            break
    return found


def delete(
    named: Names,
    bus: BusUrl = "",
    *,
    project: Project = "",
    wait: Annotated[bool, option("--wait/--no-wait", help="Wait until they are deleted.")] = False,
    timeout: Timeout = 120.0,
    _output: Output = None,
) -> None:
    """Delete instances in any state. A deleted one stays deleted."""
    run(_delete(Following(bus, wait, timeout), named, project))


async def _delete(following: Following, named: Sequence[str], project: str) -> None:
    by_s = asyncio.get_running_loop().time() + following.timeout
    async with client(following.settings, patience_s=following.timeout) as asking:
        known = await instances_or_requests(asking, named, project)
        deletes = [DeleteInstance(instance=id_, project=project) for id_ in known]
        answers = await answers_of(asking, deletes, InstancesFound)
        states, in_time = await followed(
            asking,
            [*known],
            [*known.values(), *(each for answer in answers for each in answer.instances)],
            lambda each: each.state == "deleted",
            following,
            by_s=by_s,
            project=project,
        )
    print_all(states, INSTANCES)
    if not in_time:
        fail(
            f"not all instances are deleted within {following.timeout:.0f} s; the delete goes on: `moor show` shows its state",
            NOT_IN_TIME,
        )


# `moor console`: what the guest of an instance has written to its serial console.


def console(
    named: Annotated[str, argument(metavar=ID, help="An instance.", completes=complete_instances)],
    bus: BusUrl = "",
    *,
    project: Project = "",
    last: Annotated[
        int,
        option("--bytes", min=1, max=CONSOLE_BYTES_MAX, help="How many of the last bytes to show."),
    ] = 4096,
    follow: Annotated[
        bool,
        option("--follow", help="Go on until the instance is deleted, and show what is written."),
    ] = False,
    patience: Annotated[
        float, option(min=0.1, metavar="SECONDS", help="How long to wait for each answer.")
    ] = 30.0,
) -> None:
    """Show what the guest of an instance has written to its serial console.

    Its host keeps the console until the instance is destroyed there. A simulated guest writes a line when it starts.
    """
    settings = command_settings(bus=bus)

    async def work() -> None:
        async with client(settings, patience_s=patience) as asking:
            found = await instances_or_requests(asking, [named], project)
            if len(found) != 1:
                fail(f"{named} names {len(found)} instances: name one of them")
            (instance,) = found
            question = AskConsole(instance=instance, project=project, start=-last, limit=last)
            told = ""
            async for part in (parts_of_console if follow else last_of_console)(asking, question):
                if part.none and not follow:
                    fail(part.none)
                if part.none and part.none != told:
                    click.echo(part.none, err=True)
                told = part.none
                sys.stdout.write(part.text)
                sys.stdout.flush()

    run(work())
