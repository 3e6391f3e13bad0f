"""`moor instance list`, `show`, `delete` and `console`; and how commands send an order to a scheduler and follow its instances."""

import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

import click
from msgspec import Struct
from rich.live import Live

from moor.client import (
    CONSOLE_BYTES_MAX,
    Client,
    InstancesFound,
    InstanceState,
    Listing,
    NotInTime,
    Rejected,
    RequestId,
    SentRequest,
)
from moor.flags import Commands, argument, option
from moor.options import (
    ID,
    INTERRUPTED,
    NOT_IN_TIME,
    BusUrl,
    Form,
    Output,
    Project,
    fail,
    form,
    out,
    tell,
    wants_document,
    with_client,
)
from moor.resource_commands import Yes, check_named, check_not_both, chosen, complete_instances, with_filters
from moor.resources import INSTANCE
from moor.showing import (
    BRIEF,
    INSTANCES,
    WIDE,
    InstanceShown,
    print_all,
    print_instances,
    print_json,
    print_last_heard,
    print_one,
    progress_of,
    rows_in,
)

Timeout = Annotated[
    float,
    option(metavar="S", min=0.1, help="Seconds to wait for the end; after that the exit code is 3."),
]
# An order that a client sends; it returns when a scheduler has taken it.
Sends = Callable[[Client], Awaitable[SentRequest]]


class Following(Struct, frozen=True):
    """The options of commands that send an order: whether and how long to wait for its end, and how to print it."""

    bus: BusUrl = ""
    wait: Annotated[bool, option("--wait/--no-wait", help="Wait until the order is done, or has failed.")] = (
        True
    )
    timeout: Timeout = 120.0
    _output: Output = None


def run_order(
    following: Following,
    work: Callable[[Client], Awaitable[None]],
    request: RequestId | None,
    stays: str,
    project: str,
) -> None:
    """Run the work of a command that sends an order; if Ctrl-C ends it, print the text `stays`.

    The request's id is printed before anything else, so that a user whose command is cut off can find the request again.
    """
    if request is not None:
        tell(f"request {request}", "dim")
    try:
        with_client(following.bus, work, project=project, patience_s=following.timeout)
    except KeyboardInterrupt:
        fail(stays, INTERRUPTED)


async def taken(
    sending: Awaitable[SentRequest],
    following: Following,
    request: RequestId | None,
    how_to_follow: str,
    *,
    built: bool = False,
) -> SentRequest:
    """Send the order to the schedulers.

    End the command if they do not take the order in time, or reject it. A program then still gets a document: the id of the request,
    and the rejection.
    """
    what, done = ("request", "built") if built else ("order", "done")
    shown: dict[str, Any] = {"request_id": str(request)} if request else {}
    shown |= {"instances": []} if built else {}
    try:
        return await sending
    except NotInTime:
        if wants_document():
            print_json(shown)
        fail(
            f"no scheduler has taken the {what} within {following.timeout:g} s. It stays on the bus, and is {done} when a scheduler "
            f"takes it: {how_to_follow}",
            NOT_IN_TIME,
        )
    except Rejected as refused:
        if wants_document():
            rejected = {
                "request_id": refused.request_id,
                "field": refused.field,
                "value": refused.value,
                "reason": refused.reason,
            }
            print_json({**shown, "rejected": rejected})
        raise


async def ended(
    moor: Client, sent: SentRequest, following: Following
) -> tuple[Sequence[InstanceState], bool]:
    """The states of the instances of an order, and whether it has ended in time. If the command waits, follow them to the end; in a
    terminal, show their states meanwhile.
    """
    if not following.wait:
        known = {each.id for each in sent.states}
        if missing := [each for each in sent.instances if each not in known]:
            return [*sent.states, *(await moor.look(*missing)).instances], True
        return sent.states, True
    try:
        return await _followed(sent, following.timeout), True
    except NotInTime as late:
        return late.states, False


async def _followed(sent: SentRequest, timeout_s: float) -> Sequence[InstanceState]:
    if wants_document() or not out.is_terminal:
        return await sent.until_ended(timeout_s)
    with Live(progress_of(sent.states), console=out, transient=True) as live:
        return await sent.until_ended(timeout_s, lambda states: live.update(progress_of(states)))


def follow_order(
    following: Following,
    named: Sequence[str],
    send: Sends,
    *,
    what: str,
    request: RequestId | None,
    project: str,
) -> None:
    """Send the order for the instances that are named, and follow these, and those that move together with them.

    `request` is printed first: None of an order that belongs to an earlier request. `what` names the order for the user.
    """
    others = f", and so for {len(named) - 1} others" if named[1:] else ""
    how_to_follow = f"`moor show {shlex.quote(named[0])}` shows its state{others}"

    async def work(moor: Client) -> None:
        sent = await taken(send(moor), following, request, how_to_follow)
        states, in_time = await ended(moor, sent, following)
        if len(states) == 1:
            print_one(states[0], INSTANCES)
        else:
            print_all(states, INSTANCES)
        if not in_time:
            why = f"{what} has not ended within {following.timeout:g} s, and goes on: {how_to_follow}"
            fail(why, NOT_IN_TIME)
        reasons = [why for each in states if (why := sent.why_not_done(each))]
        if following.wait and reasons:
            fail("; ".join(dict.fromkeys(reasons)))

    run_order(following, work, request, f"the order stays, and will be done: {how_to_follow}", project)


instance_app = Commands("Instances: list, show, delete. `moor list` is `moor instance list`, and so on.")


@instance_app.verb()
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
    rows = rows_in(with_client(bus, lambda moor: moor.look(named), project=project))
    print_all(rows, print_instances, columns=BRIEF)


Sort = Literal["age", "name", "host"]


async def _rows(
    listing: Listing[InstanceState, InstancesFound], limit: int
) -> tuple[list[InstanceShown], str]:
    """The first instances, and how many more there are, in words."""
    pages = await listing.beginning(limit + 1)
    rows = [row for page in pages for row in rows_in(page)]
    count, at_least = pages[0].count or 0, "at least " if pages[0].more_than else ""
    left = max(count - limit, len(rows) > limit)
    return rows[:limit], f"{at_least}{left:,}" if left else ""


@instance_app.verb("list")
@with_filters(INSTANCE)
def list_instances(
    bus: BusUrl = "",
    *,
    project: Project = "",
    living: Annotated[bool, option("--living", help="Without deleted instances.")] = False,
    sort: Annotated[
        Sort,
        option(
            help="By age, the newest last; by name, web-2 before web-10; or by host, which only living ones have."
        ),
    ] = "age",
    limit: Annotated[int, option(min=1, help="How many at most: the newest, or the first.")] = 1000,
    _output: Output = None,
    **filters: Any,
) -> None:
    """List the instances, deleted ones too: the newest ones, the newest last. Each is as its cell told it last.

    With -o wide also the size, the flavor and the times of each.
    """
    if sort == "host" and filters["state"] == "deleted":
        raise click.BadParameter("--sort is 'host', and --state is 'deleted': a deleted instance has no host")

    async def work(moor: Client) -> tuple[list[InstanceShown], str]:
        # The newest page is the first one backwards.
        listing = moor.list_instances(
            **filters, living=living, order=sort, backwards=sort == "age", counted=True
        )
        rows, more = await _rows(listing, limit)
        if not rows:
            await check_named(moor, filters)
        return rows, more

    rows, more = with_client(bus, work, project=project)
    if sort == "age":
        rows.reverse()
    print_all(rows, WIDE if form() is Form.WIDE else BRIEF, "no instances")
    if form() in (Form.TABLE, Form.WIDE):
        print_last_heard(rows)
    if more:
        where = "older than these" if sort == "age" else "after these"
        tell(f"{where}: {more}; a higher --limit shows them", "yellow")


@instance_app.verb()
@with_filters(INSTANCE)
def delete(
    named: Annotated[
        list[str] | None,
        argument(
            metavar=f"{ID}...",
            help="Instances; or ids of requests, for all of their instances.",
            completes=complete_instances,
        ),
    ] = None,
    bus: BusUrl = "",
    *,
    project: Project = "",
    yes: Yes = False,
    wait: Annotated[bool, option("--wait/--no-wait", help="Wait until they are deleted.")] = False,
    timeout: Timeout = 120.0,
    _output: Output = None,
    **filters: Any,
) -> None:
    """Delete instances in any state: those that are named, or all that the filters choose. A deleted one stays deleted."""
    check_not_both(named, **filters)
    following = Following(bus, wait, timeout)

    async def work(moor: Client) -> None:
        ids: Sequence[Any] = named or ()
        if not ids:
            found = await chosen(INSTANCE, moor, filters, "delete", yes=yes, living=True)
            ids = [each.id for each in found]
        sent = await moor.delete(*ids)
        states, in_time = await ended(moor, sent, following)
        print_all(states, INSTANCES)
        if not in_time:
            fail(
                f"not all instances are deleted within {timeout:.0f} s; the delete goes on: `moor show` shows its state",
                NOT_IN_TIME,
            )

    with_client(bus, work, project=project, patience_s=timeout)


@instance_app.verb()
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

    async def work(moor: Client) -> None:
        instance = (await moor.show(named)).id
        told = ""
        async with aclosing(moor.console_parts(instance, start=-last, follow=follow)) as parts:
            async for part in parts:
                if part.none and not follow:
                    fail(part.none)
                if part.none and part.none != told:
                    click.echo(part.none, err=True)
                told = part.none
                sys.stdout.write(part.text)
                sys.stdout.flush()

    with_client(bus, work, project=project, patience_s=patience)
