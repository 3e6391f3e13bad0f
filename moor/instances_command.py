"""`moor boot`, `show`, `list` and `delete`: commands about instances, sent over the bus."""

import asyncio
import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated
from uuid import UUID

import msgspec
import typer
from msgspec import structs
from rich.live import Live

from bus.asking import NoAnswer
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
    NoValidHost,
    RequestId,
)
from bus.messages.hosts import AskHosts
from moor.client import Client, InstanceFollower, States, client
from moor.flavors import FlavorsFile, flavor_named
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
)
from moor.request_ids import new_request_ids
from moor.settings import Settings
from moor.showing import (
    COLOURS,
    check_known,
    followed,
    instances_table,
    plain,
    print_instance,
    print_json,
    print_no_valid_host,
)
from moor.tables import print_table

PAGE = 200
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
    flavor: Annotated[
        str, typer.Option(metavar="NAME", help="A flavor of the file; other options override its values.")
    ] = "",
    flavors: FlavorsFile = None,
    vcpus: Annotated[
        int | None, typer.Option(show_default=False, help="Processors of each instance.")
    ] = None,
    ram: Annotated[int | None, typer.Option(metavar="MB", show_default=False, help="Its memory.")] = None,
    disk: Annotated[int | None, typer.Option(metavar="GB", show_default=False, help="Its disk.")] = None,
    resources: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=N", help="An amount of any resource class; may be repeated."),
    ] = None,
    trait: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRAIT[=required|forbidden]",
            help="A trait that the host must have, or must not have; may be repeated.",
        ),
    ] = None,
    image_property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A trait that the image requires: trait:NAME=required, or =forbidden; may be repeated.",
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
    specs = {f"resources:{key}": value for key, value in _pairs("--resources", resources).items()}
    specs |= {f"trait:{key}": value or "required" for key, value in _pairs("--trait", trait, "").items()}
    known = flavor_named(flavor, flavors, settings) if flavor else Flavor()
    request = _validated(
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
            image_properties=_pairs("--image-property", image_property),
            image=image_of(image, image_checksum, image_kernel, image_ramdisk),
            config_drive=config_drive_of(config_drive),
            ports=tuple(port or ()),
            availability_zone=az,
            hosts=tuple(host or ()),
            ignore_hosts=tuple(ignore_host or ()),
            deadline_s=deadline,
        )
    )
    print_request_id(request.request_id)
    try:
        run(_boot(settings, request, timeout_s=timeout, wait=wait, for_programs=as_json))
    except KeyboardInterrupt:
        fail(f"the request stays, and will be built: {_how_to_follow(request.request_id)}", INTERRUPTED)


async def _boot(
    settings: Settings, request: BuildInstance, *, timeout_s: float, wait: bool, for_programs: bool
) -> None:
    by_s = asyncio.get_running_loop().time() + timeout_s
    async with client(settings, patience_s=timeout_s) as asking:
        try:
            answer = await asking.ask(request)
        except NoAnswer:
            if for_programs:
                print_json({"request_id": str(request.request_id), "instances": []})
            fail(
                f"no scheduler has taken the request within {timeout_s:g} s. It stays on the bus, and is built when a "
                f"scheduler takes it: {_how_to_follow(request.request_id)}",
                NOT_IN_TIME,
            )
        if isinstance(answer, BuildRejected):
            if for_programs:
                print_json(
                    {"request_id": str(request.request_id), "rejected": plain(answer), "instances": []}
                )
            fail(f"rejected: {answer.field} is {answer.value!r}: {answer.reason}")
        assert isinstance(answer, BuildAccepted), f"a request was answered by {answer!r}"
        following = InstanceFollower(asking, answer.instances, by_s, request.project)
        following.take(
            await asking.instances(
                AskInstances(instances=answer.instances, limit=PAGE, project=request.project)
            )
        )
        in_time = not wait or await followed_until(
            following, lambda each: each.state in ENDED, quiet=for_programs
        )
    states = [following.states[id_] for id_ in answer.instances if id_ in following.states]
    if for_programs:
        print_json({"request_id": str(request.request_id), "instances": [plain(each) for each in states]})
    else:
        _print(states)
    if not in_time:
        unfinished = sum(each.state not in ENDED for each in states)
        fail(
            f"{unfinished} of {len(states)} instances have not ended within {timeout_s:g} s, and go on: "
            f"{_how_to_follow(request.request_id)}",
            NOT_IN_TIME,
        )
    if wait and any(each.state != "active" for each in states):
        raise typer.Exit(NOT_DONE)


def print_request_id(request: RequestId | None) -> None:
    """Called before anything else, so that a user whose command is cut off can find the request again."""
    err.print(f"request {request}", style="dim", highlight=False, soft_wrap=True)


def _how_to_follow(request: RequestId | None) -> str:
    return f"`moor show {request}` shows its state, `moor delete {request}` deletes it"


def show(
    id_: Annotated[UUID, typer.Argument(metavar="ID", help="An instance, or a request.")],
    bus: BusUrl = "",
    *,
    project: Project = "",
    as_json: AsJson = False,
) -> None:
    """Show an instance, or all instances of a request."""

    async def work() -> Sequence[InstanceState]:
        async with client(settings) as asking:
            return [*(await _known(asking, [id_], project)).values()]

    settings = command_settings(bus=bus)
    states = run(work())
    if as_json:
        print_json([plain(each) for each in states])
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
    settings = command_settings(bus=bus)
    if state and state not in COLOURS:
        raise typer.BadParameter(f"--state is {state!r}; the states are {', '.join(COLOURS)}")
    wanted = {"cell": cell, "host": host, "project": project, "name": name}

    async def work() -> list[InstanceState]:
        found: list[InstanceState] = []
        async with client(settings) as asking:
            async for page in asking.pages(AskInstances(state=state, project=project, limit=PAGE)):
                found += [
                    each
                    for each in page
                    if all(getattr(each, field) == value for field, value in wanted.items() if value)
                ]
                if len(found) > limit:
                    break
            if cell and not found:
                hosts = [each async for page in asking.hosts(AskHosts()) for each in page]
                check_known("--cell", cell, (each.cell for each in hosts))
        return found

    found = run(work())
    if as_json:
        print_json([plain(each) for each in found[:limit]])
    elif found:
        print_table(instances_table(found[:limit]))
    else:
        out.print("no instances")
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
        ids = [*known]
        following = InstanceFollower(asking, ids, by_s, project)
        following.take(known.values())
        for id_ in ids:
            following.take(await _deleted(asking, id_, project))
        in_time = not wait or await followed_until(
            following, lambda each: each.state == "deleted", quiet=for_programs
        )
    states = [following.states[id_] for id_ in ids]
    if for_programs:
        print_json([plain(each) for each in states])
    else:
        print_table(instances_table(states))
    if not in_time:
        fail(
            f"not all instances are deleted within {timeout_s:.0f} s; the delete goes on: `moor show` shows its state",
            NOT_IN_TIME,
        )


async def _known(asking: Client, ids: Sequence[UUID], project: str) -> States:
    """The instances with these ids; for an id of a request, all its instances. Fail if an id is neither."""
    known: States = {}
    for start in range(0, len(ids), PAGE):
        some = tuple(map(InstanceId, ids[start : start + PAGE]))
        found = await asking.instances(AskInstances(instances=some, limit=PAGE, project=project))
        known |= {each.id: each for each in found}
    unknown = []
    for id_ in ids:
        if InstanceId(id_) in known:
            continue
        question = AskInstances(request_id=RequestId(id_), limit=PAGE, project=project)
        of_request = {each.id: each async for page in asking.pages(question) for each in page}
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


async def _deleted(asking: Client, id_: InstanceId, project: str) -> Sequence[InstanceState]:
    answer = await asking.ask(DeleteInstance(instance=id_, project=project))
    assert isinstance(answer, InstancesFound), f"a delete was answered by {answer!r}"
    return answer.instances


async def followed_until(
    following: InstanceFollower, is_over: Callable[[InstanceState], bool], *, quiet: bool
) -> bool:
    """Wait until `is_over` holds for all instances; in a terminal, show their states meanwhile."""
    if quiet or not out.is_terminal:
        return await following.until(is_over, lambda _: None)
    with Live(followed(following.states.values()), console=out, transient=True) as live:
        return await following.until(is_over, lambda states: live.update(followed(states.values())))


def _print(states: Sequence[InstanceState]) -> None:
    """Print the states, and each distinct `no_valid_host` once."""
    print_table(instances_table(states))
    printed: list[NoValidHost] = []
    for state in states:
        if state.no_valid_host is not None and state.no_valid_host not in printed:
            printed.append(state.no_valid_host)
            print_no_valid_host(state.name or str(state.id), state.no_valid_host)


def _pairs(flag: str, texts: Sequence[str] | None, default: str | None = None) -> dict[str, str]:
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


def _validated(request: BuildInstance) -> BuildInstance:
    """Decode the request as the scheduler will. A message that cannot be decoded would get no answer there."""
    try:
        return msgspec.convert(msgspec.to_builtins(request), BuildInstance)
    except msgspec.ValidationError as wrong:
        raise typer.BadParameter(f"the request cannot be sent: {wrong}") from None
