"""`moor boot`, `show`, `list` and `delete`: what a person wants of instances, said and asked on the bus."""

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
from moor.client import Client, Following, States, client
from moor.flavors import FlavorsFile, flavor_named
from moor.options import (
    INTERRUPTED,
    NOT_DONE,
    NOT_IN_TIME,
    AsJson,
    BusUrl,
    Project,
    err,
    fail,
    out,
    run,
    settled,
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
    list[UUID], typer.Argument(metavar="ID...", help="Instances; or a request, for all instances of it.")
]
Timeout = Annotated[
    float, typer.Option(metavar="S", min=0.1, help="Seconds to wait for the end; then the exit code is 3.")
]
GZIP = b"\x1f\x8b"
ENDED = ("active", "error", "deleted")


def boot(
    bus: BusUrl = "",
    *,
    flavor: Annotated[
        str, typer.Option(metavar="NAME", help="A flavor of the file; what else is given goes before it.")
    ] = "",
    flavors: FlavorsFile = None,
    vcpus: Annotated[
        int | None, typer.Option(show_default=False, help="Processors of each instance.")
    ] = None,
    ram: Annotated[int | None, typer.Option(metavar="MB", show_default=False, help="Its memory.")] = None,
    disk: Annotated[int | None, typer.Option(metavar="GB", show_default=False, help="Its disk.")] = None,
    resources: Annotated[
        list[str] | None, typer.Option(metavar="CLASS=N", help="Any resource class; may be repeated.")
    ] = None,
    trait: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRAIT[=required|forbidden]",
            help="What its host must have, or must not; may be repeated.",
        ),
    ] = None,
    image_property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A trait that its image asks for: trait:NAME=required, or forbidden; may be repeated.",
        ),
    ] = None,
    image: Annotated[
        str,
        typer.Option(
            metavar="ID|URL",
            help="What is written onto a bare-metal node; only nodes read this and the next five.",
        ),
    ] = "",
    image_checksum: Annotated[
        str, typer.Option(metavar="SUM", help="Of an image that is fetched by its URL.")
    ] = "",
    image_kernel: Annotated[
        str, typer.Option(metavar="ID|URL", help="The kernel of an image of one partition.")
    ] = "",
    image_ramdisk: Annotated[
        str, typer.Option(metavar="ID|URL", help="The ramdisk of an image of one partition.")
    ] = "",
    config_drive: Annotated[
        str,
        typer.Option(metavar="URL|FILE", help="The config drive: a URL, or a file with a zipped ISO image."),
    ] = "",
    port: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="A network port that is attached to the node; may be repeated."),
    ] = None,
    az: Annotated[str, typer.Option("--az", help="Only in this availability zone.")] = "",
    host: Annotated[list[str] | None, typer.Option(help="Only on these hosts; may be repeated.")] = None,
    ignore_host: Annotated[
        list[str] | None, typer.Option(help="Not on these hosts; may be repeated.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many alike.")] = 1,
    name: Annotated[str, typer.Option(help="What to call it; several are numbered.")] = "",
    project: Project = "",
    deadline: Annotated[
        int | None,
        typer.Option(
            metavar="S",
            show_default=False,
            help="It has ended by then, one way or another. Left out: 600, or 7200 where a bare-metal node may be what it gets.",
        ),
    ] = None,
    request_id: Annotated[
        UUID | None,
        typer.Option(
            show_default=False,
            help="Your name for this request: said again with the same content, it is the same request.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow it to its end.")] = True,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Build an instance, or several alike, and follow them until they run."""
    settings = settled(bus=bus)
    sizes = {"vcpus": vcpus, "ram_mb": ram, "root_gb": disk}
    specs = {f"resources:{key}": value for key, value in _pairs("--resources", resources).items()}
    specs |= {f"trait:{key}": value or "required" for key, value in _pairs("--trait", trait, "").items()}
    known = flavor_named(flavor, flavors, settings) if flavor else Flavor()
    request = _sound(
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
    say_request(request.request_id)
    try:
        run(_boot(settings, request, timeout_s=timeout, wait=wait, for_programs=as_json))
    except KeyboardInterrupt:
        fail(f"the request stays, and is built: {_how_to_follow(request.request_id)}", INTERRUPTED)


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
                f"no scheduler has taken the request within {timeout_s:g} s. It stays on the bus, and is built once one "
                f"does: {_how_to_follow(request.request_id)}",
                NOT_IN_TIME,
            )
        if isinstance(answer, BuildRejected):
            if for_programs:
                print_json(
                    {"request_id": str(request.request_id), "rejected": plain(answer), "instances": []}
                )
            fail(f"rejected: {answer.field} is {answer.value!r}: {answer.reason}")
        assert isinstance(answer, BuildAccepted), f"a request was answered by {answer!r}"
        following = Following(asking, answer.instances, by_s, request.project)
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
        _tell(states)
    if not in_time:
        late = sum(each.state not in ENDED for each in states)
        fail(
            f"{late} of {len(states)} have not ended within {timeout_s:g} s, and go on: "
            f"{_how_to_follow(request.request_id)}",
            NOT_IN_TIME,
        )
    if wait and any(each.state != "active" for each in states):
        raise typer.Exit(NOT_DONE)


def say_request(request: RequestId | None) -> None:
    """Before anything else: whoever is cut off knows what to ask for."""
    err.print(f"request {request}", style="dim", highlight=False, soft_wrap=True)


def _how_to_follow(request: RequestId | None) -> str:
    return f"`moor show {request}` says what becomes of it, `moor delete {request}` deletes it"


def show(
    id_: Annotated[UUID, typer.Argument(metavar="ID", help="An instance, or a request.")],
    bus: BusUrl = "",
    *,
    project: Project = "",
    as_json: AsJson = False,
) -> None:
    """What has become of an instance, or of all instances of a request."""

    async def work() -> Sequence[InstanceState]:
        async with client(settled_) as asking:
            return [*(await _known(asking, [id_], project)).values()]

    settled_ = settled(bus=bus)
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
    cell: Annotated[str, typer.Option(help="Only those of this cell.")] = "",
    host: Annotated[str, typer.Option(help="Only those on this host.")] = "",
    project: Project = "",
    name: Annotated[str, typer.Option(help="Only those of this name.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="So many at most.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """The instances that there are or were, in the order of their ids."""
    settings = settled(bus=bus)
    if state and state not in COLOURS:
        raise typer.BadParameter(f"--state is {state!r}: there are {', '.join(COLOURS)}")
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
        err.print(f"there are more than {limit}: --limit shows more", style="yellow")


def delete(
    ids: Ids,
    bus: BusUrl = "",
    *,
    project: Project = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until they are gone.")] = False,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Delete instances, whatever state they are in; one that is gone already stays so."""
    run(
        _delete(
            settled(bus=bus),
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
        following = Following(asking, ids, by_s, project)
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
        fail(f"not all of them are gone within {timeout_s:.0f} s; they will be", NOT_IN_TIME)


async def _known(asking: Client, ids: Sequence[UUID], project: str) -> States:
    """These instances, and all instances of each of these that is a request; fails if one is neither."""
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
    # A delete that overtakes its request is obeyed: so a slip of the pen would keep some later request from being built.
    if unknown:
        fail(
            f"there is no instance and no request {', '.join(unknown)}: nothing was done; `moor list` shows what there is"
        )
    return known


async def _deleted(asking: Client, id_: InstanceId, project: str) -> Sequence[InstanceState]:
    answer = await asking.ask(DeleteInstance(instance=id_, project=project))
    assert isinstance(answer, InstancesFound), f"a delete was answered by {answer!r}"
    return answer.instances


async def followed_until(
    following: Following, is_over: Callable[[InstanceState], bool], *, quiet: bool
) -> bool:
    """Wait for them; in a terminal, with a picture of where they are."""
    if quiet or not out.is_terminal:
        return await following.until(is_over, lambda _: None)
    with Live(followed(following.states.values()), console=out, transient=True) as live:
        return await following.until(is_over, lambda states: live.update(followed(states.values())))


def _tell(states: Sequence[InstanceState]) -> None:
    """What became of them; and why nowhere, once for all that it befell alike."""
    print_table(instances_table(states))
    told: list[NoValidHost] = []
    for state in states:
        if state.no_valid_host is not None and state.no_valid_host not in told:
            told.append(state.no_valid_host)
            print_no_valid_host(state.name or str(state.id), state.no_valid_host)


def _pairs(flag: str, texts: Sequence[str] | None, default: str | None = None) -> dict[str, str]:
    """KEY=VALUE of a flag that may be repeated; without `=`, the value is the default, if there is one."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or (not equals and default is None):
            raise typer.BadParameter(f"{flag} is {text!r}: write {flag} KEY=VALUE")
        if key in pairs:
            raise typer.BadParameter(f"{flag} is {text!r}: {key} was given before, as {pairs[key]!r}")
        pairs[key] = value if equals else default or ""
    return pairs


def image_of(source: str, checksum: str, kernel: str, ramdisk: str) -> Image | None:
    others = {"--image-checksum": checksum, "--image-kernel": kernel, "--image-ramdisk": ramdisk}
    if source:
        return Image(source=source, checksum=checksum, kernel=kernel, ramdisk=ramdisk)
    for flag, value in others.items():
        if value:
            raise typer.BadParameter(f"{flag} is {value!r}, and no --image is given that it is of")
    return None


def config_drive_of(said: str) -> str:
    """A URL as it is; of a file, what Ironic takes: the base64 of a zipped image, or a text that is that already."""
    if not said or "://" in said:
        return said
    try:
        content = Path(said).read_bytes()
    except OSError as problem:
        raise typer.BadParameter(f"--config-drive is {said!r}: neither a URL nor a file: {problem}") from None
    if content.startswith(GZIP):
        return base64.b64encode(content).decode()
    try:
        base64.b64decode(text := content.decode("ascii").strip(), validate=True)
    except ValueError:
        raise typer.BadParameter(
            f"--config-drive is {said!r}: the file is neither a zipped image nor the base64 of one"
        ) from None
    return text


def _sound(request: BuildInstance) -> BuildInstance:
    """As it will be read at the other end: what cannot be read there would have no answer."""
    try:
        return msgspec.convert(msgspec.to_builtins(request), BuildInstance)
    except msgspec.ValidationError as wrong:
        raise typer.BadParameter(f"the request cannot be sent: {wrong}") from None
