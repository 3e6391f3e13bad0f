"""`moor boot`, `plan` and `explain`: builds instances and follows them; what would fit where, and how hosts were chosen."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
from msgspec import structs
from rich.markup import escape

from bus.codec import CODEC
from bus.message import Envelope
from bus.messages.build import BuildAccepted, BuildInstance, InstanceState
from bus.messages.planning import (
    AskDrain,
    AskPlan,
    AskReasons,
    Capability,
    DrainedInstance,
    DrainFound,
    Explanation,
    ExplanationsFound,
    HostChoice,
    HostHaving,
    PlanFound,
    ReasonsFound,
)
from bus.unreadable import Unreadable
from engine.refusals import HostVerdict, PlannedCell, PlannedFlavor
from moor.asking import CommandClient, answer_of, ask_bus, asked, asked_for_all, client
from moor.client.bus_client import has_ended, why_not_built
from moor.client.instances import explained
from moor.client.requests import order_id
from moor.completing import complete_images, complete_instances
from moor.flags import argument, option
from moor.instances.instances_command import Following, Timeout, followed, run_order, taken
from moor.instances.requests import (
    AttachedOptions,
    DriveOptions,
    ElseOptions,
    FlavorOptions,
    HostOptions,
    ImageOptions,
    NeighbourOptions,
    OrderId,
    check_size,
    image_name_in,
    pairs_of,
    stored_image,
    wait_of,
)
from moor.naming import fail_unknown, hints_for, id_in, instance_or_request_id
from moor.options import (
    ID,
    NOT_DONE,
    NOT_IN_TIME,
    BusUrl,
    Output,
    Project,
    check_alone,
    command_settings,
    fail,
    flag_of,
    out,
    tell,
    wants_document,
    wrong_value,
)
from moor.showing import (
    INSTANCES,
    grid_of,
    plain,
    print_all,
    print_funnel,
    print_instance,
    print_json,
    print_no_valid_host,
    print_one,
    print_passed_over,
    time_in_words,
)
from moor.tables import Columns, print_table

if TYPE_CHECKING:
    from engine.refusals import NoValidHost


def boot(
    bus: BusUrl = "",
    *,
    flavor: FlavorOptions,
    alternatives: ElseOptions,
    image_property: Annotated[
        list[str] | None,
        option(
            metavar="KEY=VALUE",
            help="A property of the image: trait:NAME=required, hw_cpu_policy=dedicated and the like; may be repeated.",
        ),
    ] = None,
    image: Annotated[
        str,
        option(
            metavar="NAME|ID|URL",
            help="The image of the instance: the name of a stored one (`moor image`), or its own id, a uuid, or its URL. "
            "The options from here to --ssh-key matter for bare-metal nodes only.",
            completes=complete_images,
        ),
    ] = "",
    of_image: ImageOptions,
    drive: DriveOptions,
    attached: AttachedOptions,
    where: HostOptions,
    neighbours: NeighbourOptions,
    count: Annotated[int, option(help="How many equal instances.")] = 1,
    all_or_nothing: Annotated[
        bool,
        option("--all-or-nothing", help="Build all of them or none, and say how many would fit."),
    ] = False,
    name: Annotated[str, option(help="The instance's name; several instances are numbered.")] = "",
    project: Project = "",
    deadline: Annotated[
        int | None,
        option(
            metavar="S",
            show_default=False,
            help="Seconds until an unfinished build ends in error. Default: 600, or 7200 if the instance may get a bare-metal "
            "node.",
        ),
    ] = None,
    wait_for_room: Annotated[
        int | None,
        option(
            metavar="S",
            show_default=False,
            help="If no host has room, wait for it, at most so many seconds (2592000). Without it, the instance ends in error at "
            "once.",
        ),
    ] = None,
    priority: Annotated[
        int | None,
        option(
            show_default=False,
            help="With --wait-for-room: room that becomes free goes to the highest priority first (0 to 100; 0 if not given).",
        ),
    ] = None,
    request_id: OrderId = None,
    wait: Annotated[bool, option("--wait/--no-wait", help="Wait until the instances have ended.")] = True,
    timeout: Timeout = 120.0,
    _output: Output = None,
) -> None:
    """Build an instance, or several equal ones, and follow them until they run."""
    following = Following(bus, wait, timeout)
    size = flavor.read(following.settings, project=project)
    check_size(size)
    request = BuildInstance(
        request_id=order_id(request_id),
        flavor=size,
        alternatives=alternatives.read(flavor, following.settings, project=project),
        count=count,
        all_or_nothing=all_or_nothing,
        name=name,
        project=project,
        image_properties=pairs_of("--image-property", image_property),
        image=of_image.read(image),
        image_name=image_name_in(image),
        config_drive=drive.read(),
        **attached.fields,
        **where.fields,
        deadline_s=deadline,
        wait=wait_of(wait_for_room, priority),
    )
    how_to_follow = (
        f"`moor show {request.request_id}` shows its state, `moor delete {request.request_id}` deletes it"
    )
    run_order(
        _boot(following, request, neighbours, how_to_follow),
        request.request_id,
        f"the request stays, and will be built: {how_to_follow}",
    )


async def _boot(
    following: Following, request: BuildInstance, neighbours: NeighbourOptions, how_to_follow: str
) -> None:
    by_s = asyncio.get_running_loop().time() + following.timeout
    async with client(following.settings, patience_s=following.timeout) as asking:
        if request.image_name:
            # A name that is not stored ends the command before anything is built.
            await stored_image(asking, request.image_name, request.project)
        request = structs.replace(request, **await neighbours.find(asking, request.project))
        ids = (await taken(asking, request, BuildAccepted, following, how_to_follow)).instances
        known = await asking.instances(ids, request.project)
        states, in_time = await followed(
            asking, ids, known, has_ended, following, by_s=by_s, project=request.project
        )
        refused = any(each.no_valid_host is not None for each in states)
        hints = await hints_for(asking, request) if refused else []
    if wants_document():
        print_json({"request_id": str(request.request_id), "instances": plain(states)})
    else:
        _print(states)
    for hint in hints:
        tell(hint, "yellow")
    if not in_time:
        unfinished = sum(not has_ended(each) for each in states)
        fail(
            f"{unfinished} of {len(states)} instances have not ended within {following.timeout:g} s, and go on: {how_to_follow}",
            NOT_IN_TIME,
        )
    if following.wait and any(why_not_built(each) for each in states):
        raise click.exceptions.Exit(NOT_DONE)


def _print(states: Sequence[InstanceState]) -> None:
    """Print the states, and each distinct `no_valid_host` once."""
    print_table(states, INSTANCES)
    printed: list[NoValidHost] = []
    for state in states:
        if state.no_valid_host is not None and state.no_valid_host not in printed:
            printed.append(state.no_valid_host)
            print_passed_over(state)
            print_no_valid_host(state.name or str(state.id), state.no_valid_host)


# `moor plan` and `moor explain`: what would fit where, how hosts were chosen, and why not others. Nothing is built.

# Prints plans, verdicts on hosts, and capabilities in a terminal.

CELLS = Columns[PlannedCell](
    {
        "cell": lambda each: each.cell,
        "hosts": lambda each: str(each.hosts),
        "fit": lambda each: str(each.fit),
    }
)
DRAINED = Columns[DrainedInstance](
    {
        "id": lambda each: str(each.id),
        "name": lambda each: each.name,
        "project": lambda each: each.project,
        "to": lambda each: each.to,
        "cell": lambda each: each.cell,
        "reason": lambda each: each.reason,
    },
    prose=("reason",),
    ids={"id": lambda _: True},
)
VERDICTS = Columns[HostVerdict](
    {
        "host": lambda each: each.host,
        "cell": lambda each: each.cell,
        "fit": lambda each: str(each.fit),
        "flavor": lambda each: each.flavor,
        "step": lambda each: each.step,
        "reason": lambda each: each.reason,
    },
    prose=("reason",),
)
CAPABILITIES = Columns[Capability](
    {
        "name": lambda each: each.name,
        "kind": lambda each: each.kind,
        "hosts": lambda each: str(each.hosts),
        "value": lambda each: each.value,
        "values": lambda each: str(each.values),
    }
)
HAVING = Columns[HostHaving](
    {
        "host": lambda each: each.host,
        "cell": lambda each: each.cell,
        "value": lambda each: each.value,
        "free": lambda each: "" if each.free is None else str(max(each.free, 0)),
    }
)


def print_plan(plan: PlanFound) -> None:
    if plan.alternatives:
        planned: tuple[PlanFound | PlannedFlavor, ...] = (plan, *plan.alternatives)
        gets = next((each.flavor for each in planned if each.fit), "")
        out.print(f"the next instance gets: [bold]{escape(gets) or 'no host'}[/bold]")
        for each in planned:
            out.print(f"\n[bold]{escape(each.flavor)}[/bold]")
            _print_planned(each)
    else:
        _print_planned(plan)


def _print_planned(plan: PlanFound | PlannedFlavor) -> None:
    at_least = "at least " if plan.is_cut else ""
    colour = "green" if plan.fit else "red"
    out.print(
        f"[bold {colour}]{at_least}{plan.fit} more fit[/bold {colour}] on {plan.qualify} of {plan.funnel.hosts} hosts",
    )
    if plan.quota is not None:
        colour = "cyan" if plan.quota.fit else "red"
        limits = "; ".join(
            f"{each.name} limit {each.limit}, used {each.used}, asked {each.asked}"
            for each in plan.quota.limits
        )
        out.print(f"[{colour}]the project's quota allows {plan.quota.fit} more[/{colour}]: {limits}")
    if plan.cells:
        print_table(plan.cells, CELLS)
    if plan.funnel.steps or plan.funnel.nearest:
        out.print()
        print_funnel(plan.funnel)
    for pool in plan.pools:
        out.print(
            f"[yellow]pool {escape(pool.pool)} ran out:[/yellow] {pool.resource} asked {pool.asked}, free "
            f"{max(pool.free, 0)} of {pool.capacity}; {pool.hosts} hosts take it from there",
        )
    if plan.relaxations:
        out.print("more hosts would qualify:")
        for each in plan.relaxations:
            out.print(f"  {each.hosts} {escape(each.change)}")


def print_choice(explained: Explanation, *, of_boot: bool) -> None:
    """How the host of an instance was chosen: the last time, or with `of_boot` for its boot."""
    choice: HostChoice = explained.boot if of_boot and explained.boot is not None else explained
    chosen = choice.chosen
    among = f"the best of {choice.qualified} that qualified, of {choice.hosts}" if choice.hosts else ""
    refusals = explained.state.refusals if choice.what == "boot" else ()
    out.print(
        grid_of(
            (
                "choice for",
                escape(
                    f"{choice.what}, by request {choice.request_id or explained.state.request_id}"
                    if chosen
                    else ""
                ),
            ),
            ("chosen", escape(f"{chosen}, {among}" if among else chosen)),
            ("at", time_in_words(choice.chosen_at)),
            ("alternates", escape(", ".join(choice.alternates))),
            *(("refused", f"[yellow]{escape(f'{each.host}: {each.reason}')}[/yellow]") for each in refusals),
        ),
    )


def print_drain(drain: DrainFound) -> None:
    of = f"{'the first ' if drain.more else ''}{len(drain.instances)}"
    out.print(
        f"[bold]{drain.fit} of {of}[/bold] instances on {escape(drain.host)} would fit on other hosts of their cell",
    )
    if drain.instances:
        print_table(drain.instances, DRAINED)


VERDICTS_PAGE = 200


def plan(
    bus: BusUrl = "",
    *,
    flavor: FlavorOptions,
    alternatives: ElseOptions,
    where: HostOptions,
    image: Annotated[
        str,
        option(
            metavar="NAME",
            help="A stored image (`moor image`): its properties count.",
            completes=complete_images,
        ),
    ] = "",
    request: Annotated[
        Path | None,
        option(
            metavar="FILE",
            show_default=False,
            help="The whole request: a build.request as JSON. Other options override its fields.",
        ),
    ] = None,
    project: Project = "",
    hosts: Annotated[
        bool, option("--hosts", help="Show the verdict on each host: the first step that removes it.")
    ] = False,
    step: Annotated[
        str,
        option(
            metavar="NAME",
            help="With --hosts: only hosts that this step removes. `qualify`: only hosts that no step removes.",
        ),
    ] = "",
    drain: Annotated[
        str,
        option(
            metavar="HOST",
            help="Instead: would the instances of this host fit on other hosts, all together?",
        ),
    ] = "",
    _output: Output = None,
) -> None:
    """Show how many instances would fit, on which hosts, and why not on the others. Nothing is built."""
    if drain:
        needs = {
            **structs.asdict(flavor),
            "else": alternatives.else_,
            "image": image,
            **structs.asdict(where),
        }
        others = {
            **{flag_of(field): given for field, given in needs.items()},
            "--request": request and str(request),
            "--hosts": hosts,
            "--step": step,
        }
        check_alone("--drain", "that asks about the instances that the host has", others)
        drained = asked(bus, AskDrain(host=drain), DrainFound, operates=False)
        print_one(drained, print_drain)
        return
    if step and not hosts:
        raise click.BadParameter(f"--step is {step!r}, but --hosts is not given: it selects hosts")
    known = _request_in(request) if request else BuildInstance()
    changed = {**where.fields, "image_name": image, "project": project}
    settings = command_settings(bus=bus)
    size = flavor.read(settings, known.flavor, project=project)
    if request is None:
        check_size(size)
    build = structs.replace(
        known,
        flavor=size,
        alternatives=alternatives.read(flavor, settings, known.alternatives, project=project),
        **{field: given for field, given in changed.items() if given},
    )
    if hosts:
        reasons = AskReasons(request=build, step=step, limit=VERDICTS_PAGE)
        verdicts = asked_for_all(bus, reasons, ReasonsFound, lambda page: page.hosts, operates=False)
        print_all(verdicts, VERDICTS, "no hosts")
        return

    async def work(asking: CommandClient) -> tuple[PlanFound, list[str]]:
        planned = await answer_of(asking, AskPlan(request=build, project=project), PlanFound)
        return planned, [] if planned.fit else await hints_for(asking, build)

    planned, hints = ask_bus(bus, work, operates=False)
    print_one(planned, print_plan)
    for hint in hints:
        tell(hint, "yellow")


def _request_in(file: Path) -> BuildInstance:
    with wrong_value(f"--request is {str(file)!r}: "):
        try:
            content = file.read_bytes()
        except OSError as problem:
            raise ValueError(problem) from None
        # As a scheduler reads it: an unknown key is an error.
        read = CODEC.decode(b'{"message": %b}' % content)
        if isinstance(read, Envelope) and isinstance(read.message, BuildInstance):
            return read.message
        raise ValueError(read.reason if isinstance(read, Unreadable) else "the file has no build.request")


# `moor explain`: how the hosts of a request were chosen, or why there was none.


def explain(
    named: Annotated[
        str, argument(metavar=ID, help="A request, or an instance.", completes=complete_instances)
    ],
    bus: BusUrl = "",
    *,
    now: Annotated[bool, option("--now", help="Also plan the same needs as of now.")] = False,
    boot: Annotated[
        bool, option("--boot", help="Show the choice for the boot, not that of the last move.")
    ] = False,
    project: Project = "",
    _output: Output = None,
) -> None:
    """Show how the host of each instance was chosen, what was refused, or why no host qualified.

    After a move it is the choice for that move; --boot shows the first one.
    """

    async def work(asking: CommandClient) -> ExplanationsFound:
        id_ = id_in(named) or await instance_or_request_id(asking, named, project)
        return await explained(asking, id_, project, plan_now=now)

    found = ask_bus(bus, work, operates=False)
    if not found.explanations:
        fail_unknown("instance and no request", (named,), "`moor list` shows all instances")
    explanations, plan = found.explanations, found.plan
    if wants_document():
        print_json({"explanations": explanations, **({"plan": plan} if now else {})})
        return
    for each in explanations:
        print_instance(each.state)
        print_choice(each, of_boot=boot)
    if plan is not None:
        out.print("\nnow:")
        print_plan(plan)
    elif now:
        out.print("\nnow: not known, since the request came before schedulers kept its needs")
