"""`moor boot`, `plan` and `explain`: builds instances and follows them; what would fit where, and how hosts were chosen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import click
from msgspec import structs
from rich.markup import escape

from engine.refusals import PlannedCell, PlannedFlavor
from moor.client import (
    BuildInstance,
    Capability,
    Client,
    Explanation,
    Flavor,
    HostChoice,
    HostHaving,
    HostVerdict,
    InstanceState,
    NoValidHost,
    PlanFound,
    order_id,
    read_request,
)
from moor.flags import argument, option
from moor.instances.instances_command import Following, Timeout, ended, run_order, taken
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
)
from moor.options import (
    ID,
    NOT_DONE,
    NOT_IN_TIME,
    BusUrl,
    Output,
    Project,
    fail,
    out,
    pairs_of,
    wants_document,
    with_client,
    wrong_value,
)
from moor.resource_commands import complete_instances, completes
from moor.resources import IMAGE
from moor.showing import (
    INSTANCES,
    grid_of,
    plain,
    print_all,
    print_funnel,
    print_json,
    print_no_valid_host,
    print_one,
    print_passed_over,
    print_state,
    time_in_words,
)
from moor.tables import Columns, print_table


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
            completes=completes(IMAGE),
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
        int,
        option(
            show_default=False,
            help="Its rank, from -1000 to 1000: those with a higher one are moved first when hosts are emptied, and with --wait-for-room "
            "they get room first. Without it, that of the flavor (moor:priority).",
        ),
    ] = 0,
    request_id: OrderId = None,
    wait: Annotated[bool, option("--wait/--no-wait", help="Wait until the instances have ended.")] = True,
    timeout: Timeout = 120.0,
    _output: Output = None,
) -> None:
    """Build an instance, or several equal ones, and follow them until they run."""
    following = Following(bus, wait, timeout)
    flavor.check()
    request = order_id(request_id)
    fields: dict[str, Any] = {
        "request_id": request,
        "count": count,
        "all_or_nothing": all_or_nothing,
        "name": name,
        "image_properties": pairs_of("--image-property", image_property),
        "image_name": image_name_in(image),
        "config_drive": drive.read(),
        **attached.fields,
        **where.fields,
        **neighbours.fields,
        "deadline_s": deadline,
        "priority": priority,
    }
    if (given := of_image.read(image)) is not None:
        fields["image"] = given
    if wait_for_room is not None:
        fields["wait"] = wait_for_room
    how_to_follow = f"`moor show {request}` shows its state, `moor delete {request}` deletes it"

    async def work(moor: Client) -> None:
        size = await flavor.read(moor)
        check_size(size)
        others = await alternatives.read(moor, flavor)
        await _boot(moor, following, [size, *others], fields, how_to_follow)

    stays = f"the request stays, and will be built: {how_to_follow}"
    run_order(following, work, request, stays, project)


async def _boot(
    moor: Client, following: Following, flavors: Sequence[Flavor], fields: dict[str, Any], how_to_follow: str
) -> None:
    if fields["image_name"]:
        # A name that is not stored ends the command before anything is built.
        await moor.show_image(fields["image_name"])
    size, *others = flavors
    sent = await taken(
        moor.boot(size, **fields, alternatives=others),
        following,
        fields["request_id"],
        how_to_follow,
        built=True,
    )
    states, in_time = await ended(moor, sent, following)
    if wants_document():
        print_json({"request_id": str(sent.id), "instances": plain(states)})
    else:
        _print(states)
    if not in_time:
        unfinished = sum(not sent.is_over(each) for each in states)
        fail(
            f"{unfinished} of {len(states)} instances have not ended within {following.timeout:g} s, and go on: {how_to_follow}",
            NOT_IN_TIME,
        )
    if following.wait and any(map(sent.why_not_done, states)):
        raise click.exceptions.Exit(NOT_DONE)


def _print(states: Sequence[InstanceState]) -> None:
    """Print the states, and each distinct `no_valid_host` once."""
    print_all(states, INSTANCES)
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
            *((("ordered by", escape(explained.by)),) if explained.by and choice is explained else ()),
            ("chosen", escape(f"{chosen}, {among}" if among else chosen)),
            ("at", time_in_words(choice.chosen_at)),
            ("alternates", escape(", ".join(choice.alternates))),
            *(("refused", f"[yellow]{escape(f'{each.host}: {each.reason}')}[/yellow]") for each in refusals),
        ),
    )


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
            completes=completes(IMAGE),
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
    _output: Output = None,
) -> None:
    """Show how many instances would fit, on which hosts, and why not on the others. Nothing is built.

    Exit code 1 if none fits. `moor campaign plan drain HOST` says whether the instances of a host would fit elsewhere.
    """
    if step and not hosts:
        raise click.BadParameter(f"--step is {step!r}, but --hosts is not given: it selects hosts")
    known = _request_in(request) if request else BuildInstance()
    if request is None:
        flavor.check()
    changed = {**where.fields, "image_name": image, "project": project}

    async def asked(moor: Client) -> BuildInstance:
        size = await flavor.read(moor, known.flavor)
        if request is None:
            check_size(size)
        return structs.replace(
            known,
            flavor=size,
            alternatives=await alternatives.read(moor, flavor, known.alternatives),
            **{field: given for field, given in changed.items() if given},
        )

    async def verdicts(moor: Client) -> list[HostVerdict]:
        return [each async for each in moor.verdicts(await asked(moor), step=step)]

    async def planned(moor: Client) -> PlanFound:
        return await moor.plan(await asked(moor))

    if hosts:
        print_all(with_client(bus, verdicts, project=project), VERDICTS, "no hosts")
        return
    found = with_client(bus, planned, project=project)
    print_one(found, print_plan)
    is_allowed = found.quota is None or found.quota.fit > 0
    flavors: tuple[PlanFound | PlannedFlavor, ...] = (found, *found.alternatives)
    fits = is_allowed and any(each.fit or each.is_cut for each in flavors)
    raise click.exceptions.Exit(0 if fits else NOT_DONE)


def _request_in(file: Path) -> BuildInstance:
    with wrong_value(f"--request is {str(file)!r}: ", OSError):
        return read_request(file.read_bytes())


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
    found = with_client(bus, lambda moor: moor.explain(named, plan_now=now), project=project)
    explanations, plan = found.explanations, found.plan
    if wants_document():
        print_json({"explanations": explanations, **({"plan": plan} if now else {})})
        return
    for each in explanations:
        print_state(each.state)
        print_choice(each, of_boot=boot)
    if plan is not None:
        out.print("\nnow:")
        print_plan(plan)
    elif now:
        out.print("\nnow: not known, since the request came before schedulers kept its needs")
