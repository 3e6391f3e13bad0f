"""`moor boot`, `show`, `list` and `delete`: commands about instances, sent over the bus."""

import asyncio
import base64
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec
import typer
from msgspec import structs
from rich.live import Live

from bus.message import AggregateId, GroupId
from bus.messages.build import (
    AskInstances,
    BuildAccepted,
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    Flavor,
    Image,
    InstanceId,
    InstancesFound,
    InstanceState,
    JoinedGroup,
    NoValidHost,
    RebuildInstance,
    RequestId,
)
from bus.workers.asking import NoAnswer
from moor.client import (
    FOUND_AT_ONCE_MAX,
    Client,
    InstanceFollower,
    States,
    answer_of,
    ask_bus,
    client,
    hosts_of,
    pages_of,
)
from moor.instances.flavors import FlavorsFile, flavor_named
from moor.instances.request_ids import new_request_ids
from moor.instances.request_options import Disk, ExtraSpecs, FlavorName, Ram, Resources, Traits, Vcpus
from moor.options import (
    INTERRUPTED,
    NOT_DONE,
    NOT_IN_TIME,
    AsJson,
    BusUrl,
    Project,
    command_settings,
    err,
    fail,
    out,
    run,
    wrong_value,
)
from moor.settings import Settings
from moor.showing import (
    COLOURS,
    check_known,
    instances_table,
    plain,
    print_all,
    print_instance,
    print_json,
    print_no_valid_host,
    progress_of,
)
from moor.tables import print_table

T = TypeVar("T")

Ids = Annotated[
    list[UUID],
    typer.Argument(metavar="ID...", help="Ids of instances, or of a request for all of its instances."),
]
Timeout = Annotated[
    float,
    typer.Option(metavar="S", min=0.1, help="Seconds to wait for the end; after that the exit code is 3."),
]
GZIP = b"\x1f\x8b"
ENDED = ("active", "error", "deleted")


def boot(
    bus: BusUrl = "",
    *,
    flavor: FlavorName = "",
    flavors: FlavorsFile = None,
    vcpus: Vcpus = None,
    ram: Ram = None,
    disk: Disk = None,
    resources: Resources = None,
    trait: Traits = None,
    extra_spec: ExtraSpecs = None,
    image_property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A property of the image: trait:NAME=required, hw_cpu_policy=dedicated and the like; may be repeated.",
        ),
    ] = None,
    image: Annotated[
        str,
        typer.Option(
            metavar="ID|URL",
            help="The image for a bare-metal node; this and the next five options matter for nodes only.",
        ),
    ] = "",
    image_checksum: Annotated[
        str, typer.Option(metavar="SUM", help="The checksum of an image that is named by its URL.")
    ] = "",
    image_kernel: Annotated[
        str, typer.Option(metavar="ID|URL", help="The kernel of a partition image.")
    ] = "",
    image_ramdisk: Annotated[
        str, typer.Option(metavar="ID|URL", help="The ramdisk of a partition image.")
    ] = "",
    config_drive: Annotated[
        str,
        typer.Option(metavar="URL|FILE", help="The config drive: a URL, or a file with a gzipped ISO image."),
    ] = "",
    port: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="A network port to attach to the node; may be repeated."),
    ] = None,
    az: Annotated[str, typer.Option("--az", help="Only in this availability zone.")] = "",
    host: Annotated[list[str] | None, typer.Option(help="Only on these hosts; may be repeated.")] = None,
    ignore_host: Annotated[
        list[str] | None, typer.Option(help="Not on these hosts; may be repeated.")
    ] = None,
    group: Annotated[
        UUID | None,
        typer.Option(metavar="ID", show_default=False, help="The server group to join (`moor group`)."),
    ] = None,
    different_host: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Not on the host of this instance; may be repeated."),
    ] = None,
    same_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Only on the host of this instance, or of another such; may be repeated."
        ),
    ] = None,
    aggregate: Annotated[
        list[UUID] | None,
        typer.Option(metavar="ID", help="Only on hosts in this aggregate; repeated, in each of them."),
    ] = None,
    ignore_aggregate: Annotated[
        list[UUID] | None, typer.Option(metavar="ID", help="Not on hosts in this aggregate; may be repeated.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many equal instances.")] = 1,
    name: Annotated[str, typer.Option(help="The instance's name; several instances are numbered.")] = "",
    project: Project = "",
    deadline: Annotated[
        int | None,
        typer.Option(
            metavar="S",
            show_default=False,
            help="Seconds until an unfinished build ends in error. Default: 600, or 7200 if the instance may get a bare-metal "
            "node.",
        ),
    ] = None,
    request_id: Annotated[
        UUID | None,
        typer.Option(
            show_default=False,
            help="An id of your choice: repeated with the same content, it is the same request.",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the instances have ended.")
    ] = True,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Build an instance, or several equal ones, and follow them until they run."""
    settings = command_settings(bus=bus)
    sizes = {"vcpus": vcpus, "ram_mb": ram, "root_gb": disk}
    specs = {f"resources:{key}": value for key, value in pairs_of("--resources", resources).items()}
    specs |= {f"trait:{key}": value or "required" for key, value in pairs_of("--trait", trait, "").items()}
    specs |= pairs_of("--extra-spec", extra_spec)
    known = flavor_named(flavor, flavors, settings) if flavor else Flavor()
    request = validated(
        BuildInstance(
            request_id=RequestId(request_id) if request_id else new_request_ids(1)[0],
            flavor=structs.replace(
                known,
                **{field: size for field, size in sizes.items() if size is not None},
                extra_specs={**known.extra_specs, **specs},
            ),
            count=count,
            name=name,
            project=project,
            image_properties=pairs_of("--image-property", image_property),
            image=image_of(image, image_checksum, image_kernel, image_ramdisk),
            config_drive=config_drive_of(config_drive),
            ports=tuple(port or ()),
            availability_zone=az,
            group=None if group is None else JoinedGroup(id=GroupId(group)),
            hosts=tuple(host or ()),
            ignore_hosts=tuple(ignore_host or ()),
            different_host=instances_named("--different-host", different_host),
            same_host=instances_named("--same-host", same_host),
            member_of=tuple((AggregateId(each),) for each in aggregate or ()),
            forbidden_aggregates=tuple(AggregateId(each) for each in ignore_aggregate or ()),
            deadline_s=deadline,
        )
    )
    how_to_follow = (
        f"`moor show {request.request_id}` shows its state, `moor delete {request.request_id}` deletes it"
    )
    run_order(
        _boot(settings, request, how_to_follow, timeout_s=timeout, wait=wait, for_programs=as_json),
        request.request_id,
        f"the request stays, and will be built: {how_to_follow}",
    )


def instances_named(flag: str, ids: Sequence[str] | None) -> tuple[InstanceId, ...]:
    with wrong_value(f"{flag} is no instance's id: "):
        return tuple(InstanceId(UUID(id_)) for id_ in ids or ())


def run_order(work: Coroutine[Any, Any, None], request: RequestId | None, stays: str) -> None:
    """Print the request's id before anything else, so that a user whose command is cut off can find the request again."""
    err.print(f"request {request}", style="dim", highlight=False, soft_wrap=True)
    try:
        run(work)
    except KeyboardInterrupt:
        fail(stays, INTERRUPTED)


async def _boot(
    settings: Settings,
    request: BuildInstance,
    how_to_follow: str,
    *,
    timeout_s: float,
    wait: bool,
    for_programs: bool,
) -> None:
    by_s = asyncio.get_running_loop().time() + timeout_s
    async with client(settings, patience_s=timeout_s) as asking:
        shown = {"request_id": str(request.request_id), "instances": []} if for_programs else None
        answer = await taken(
            asking, request, BuildAccepted, timeout_s=timeout_s, how_to_follow=how_to_follow, shown=shown
        )
        ids = answer.instances
        states, in_time = await followed(
            asking,
            ids,
            await asking.instances(ids, request.project),
            has_ended if wait else None,
            by_s=by_s,
            project=request.project,
            quiet=for_programs,
        )
    if for_programs:
        print_json({"request_id": str(request.request_id), "instances": plain(states)})
    else:
        _print(states)
    if not in_time:
        unfinished = sum(not has_ended(each) for each in states)
        fail(
            f"{unfinished} of {len(states)} instances have not ended within {timeout_s:g} s, and go on: {how_to_follow}",
            NOT_IN_TIME,
        )
    if wait and any(each.state != "active" for each in states):
        raise typer.Exit(NOT_DONE)


async def taken(
    asking: Client,
    order: BuildInstance | RebuildInstance,
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


def has_ended(instance: InstanceState) -> bool:
    return instance.state in ENDED


def show(
    id_: Annotated[UUID, typer.Argument(metavar="ID", help="An instance, or a request.")],
    bus: BusUrl = "",
    *,
    project: Project = "",
    as_json: AsJson = False,
) -> None:
    """Show an instance, or all instances of a request."""
    states = [*ask_bus(bus, lambda asking: _known(asking, [id_], project), operates=False).values()]
    if as_json:
        print_json(states)
        return
    for state in states:
        print_instance(state)


def list_instances(
    bus: BusUrl = "",
    *,
    state: Annotated[
        str, typer.Option(help="accepted, placed, building, active, rebuilding, error, deleting or deleted.")
    ] = "",
    cell: Annotated[str, typer.Option(help="Only instances of this cell.")] = "",
    host: Annotated[str, typer.Option(help="Only instances on this host.")] = "",
    project: Project = "",
    name: Annotated[str, typer.Option(help="Only instances with this name.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """List the instances, deleted ones too, ordered by id."""
    if state and state not in COLOURS:
        raise typer.BadParameter(f"--state is {state!r}; the states are {', '.join(COLOURS)}")
    wanted = {"cell": cell, "host": host, "project": project, "name": name}

    async def work(asking: Client) -> list[InstanceState]:
        found: list[InstanceState] = []
        question = AskInstances(state=state, project=project, limit=FOUND_AT_ONCE_MAX)
        async for page in pages_of(asking, question, InstancesFound):
            found += [
                each
                for each in page.instances
                if all(getattr(each, field) == value for field, value in wanted.items() if value)
            ]
            if len(found) > limit:
                break
        if cell and not found:
            check_known("--cell", cell, (each.cell for each in await hosts_of(asking)))
        return found

    found = ask_bus(bus, work, operates=False)
    print_all(found[:limit], instances_table, "no instances", as_json=as_json)
    if len(found) > limit:
        err.print(f"there are more than {limit} instances: a higher --limit shows them", style="yellow")


def delete(
    ids: Ids,
    bus: BusUrl = "",
    *,
    project: Project = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until they are deleted.")] = False,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Delete instances in any state. A deleted one stays deleted."""
    run(
        _delete(
            command_settings(bus=bus),
            [*dict.fromkeys(ids)],
            project,
            timeout_s=timeout,
            wait=wait,
            for_programs=as_json,
        )
    )


async def _delete(
    settings: Settings,
    wanted: Sequence[UUID],
    project: str,
    *,
    timeout_s: float,
    wait: bool,
    for_programs: bool,
) -> None:
    by_s = asyncio.get_running_loop().time() + timeout_s
    async with client(settings, patience_s=timeout_s) as asking:
        known = await _known(asking, wanted, project)
        answers = [
            await answer_of(asking, DeleteInstance(instance=id_, project=project), InstancesFound)
            for id_ in known
        ]
        states, in_time = await followed(
            asking,
            [*known],
            [*known.values(), *(each for answer in answers for each in answer.instances)],
            (lambda each: each.state == "deleted") if wait else None,
            by_s=by_s,
            project=project,
            quiet=for_programs,
        )
    print_all(states, instances_table, as_json=for_programs)
    if not in_time:
        fail(
            f"not all instances are deleted within {timeout_s:.0f} s; the delete goes on: `moor show` shows its state",
            NOT_IN_TIME,
        )


async def _known(asking: Client, ids: Sequence[UUID], project: str) -> States:
    """The instances with these ids; for an id of a request, all its instances. Fail if an id is neither."""
    known = {each.id: each for each in await asking.instances([*map(InstanceId, ids)], project)}
    unknown = []
    for id_ in ids:
        if InstanceId(id_) in known:
            continue
        question = AskInstances(request_id=RequestId(id_), limit=FOUND_AT_ONCE_MAX, project=project)
        pages = pages_of(asking, question, InstancesFound)
        of_request = {each.id: each async for page in pages for each in page.instances}
        known |= of_request
        if not of_request:
            unknown.append(str(id_))
    # Schedulers obey a delete that arrives before its build request. So a mistyped id must not be sent: it would cancel a
    # later request with that id.
    if unknown:
        fail(
            f"there is no instance and no request {', '.join(unknown)}, so nothing was done; `moor list` shows all instances"
        )
    return known


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


def _print(states: Sequence[InstanceState]) -> None:
    """Print the states, and each distinct `no_valid_host` once."""
    print_table(instances_table(states))
    printed: list[NoValidHost] = []
    for state in states:
        if state.no_valid_host is not None and state.no_valid_host not in printed:
            printed.append(state.no_valid_host)
            print_no_valid_host(state.name or str(state.id), state.no_valid_host)


def pairs_of(flag: str, texts: Sequence[str] | None, default: str | None = None) -> dict[str, str]:
    """Parse KEY=VALUE of a repeatable flag. A text without `=` gets the default value, if there is one."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or (not equals and default is None):
            raise typer.BadParameter(f"{flag} is {text!r}: write {flag} KEY=VALUE")
        if key in pairs:
            raise typer.BadParameter(f"{flag} is {text!r}: {key} was already given, as {pairs[key]!r}")
        pairs[key] = value if equals else default or ""
    return pairs


def image_of(source: str, checksum: str, kernel: str, ramdisk: str) -> Image | None:
    others = {"--image-checksum": checksum, "--image-kernel": kernel, "--image-ramdisk": ramdisk}
    if source:
        return Image(source=source, checksum=checksum, kernel=kernel, ramdisk=ramdisk)
    for flag, value in others.items():
        if value:
            raise typer.BadParameter(f"{flag} is {value!r}, but --image is not given: it describes an image")
    return None


def config_drive_of(given: str) -> str:
    """The form that Ironic accepts: a URL unchanged, or the base64 of a gzipped image that a file contains."""
    if not given or "://" in given:
        return given
    try:
        content = Path(given).read_bytes()
    except OSError as problem:
        raise typer.BadParameter(
            f"--config-drive is {given!r}, which is neither a URL nor a file: {problem}"
        ) from None
    if content.startswith(GZIP):
        return base64.b64encode(content).decode()
    try:
        base64.b64decode(text := content.decode("ascii").strip(), validate=True)
    except ValueError:
        raise typer.BadParameter(
            f"--config-drive is {given!r}: the file is neither a gzipped image nor the base64 of one"
        ) from None
    return text


def validated(request: BuildInstance) -> BuildInstance:
    """Decode the request as the scheduler will. A message that cannot be decoded would get no answer there."""
    with wrong_value("the request cannot be sent: "):
        return msgspec.convert(msgspec.to_builtins(request), BuildInstance)
