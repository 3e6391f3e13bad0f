"""`moor host`, `moor cell`, `moor aggregate` and `moor evacuate`: hosts, the cells that they are in, groups of them, and how they are emptied."""

import csv
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, cast, get_args
from uuid import UUID

import click

from engine.places import why_no_place
from kit.clock import now
from kit.process import stopped_by_signals
from moor.client import (
    CampaignHost,
    Client,
    ClientError,
    Emptied,
    HostMode,
    HostPlace,
    HostState,
    NotFound,
    Rejected,
    Stayed,
    host_in_cell,
)
from moor.flags import argument, option
from moor.instances.boot_command import CAPABILITIES, HAVING
from moor.instances.move_commands import To, WaitForRoom
from moor.options import (
    NOT_DONE,
    BusUrl,
    Output,
    be_sure,
    check_alone,
    fail,
    out,
    pairs_of,
    tell,
    wants_document,
    why_unsure,
    with_client,
)
from moor.resource_commands import (
    ALL,
    Yes,
    check_not_both,
    chosen,
    commands_of,
    completes,
    first_of,
    print_thing,
    with_filters,
)
from moor.resources import AGGREGATE, CELL, HOST, HostShown
from moor.showing import print_all, print_one
from moor.tables import Columns, print_table

app = commands_of(HOST, "Hosts: list, capabilities, show, set, place, drain, delete.")
cell_app = commands_of(CELL, "Cells: list, show.")


@app.verb("list")
@with_filters(HOST)
def list_hosts(
    bus: BusUrl = "",
    *,
    having: Annotated[
        str,
        option(
            metavar="NAME[=VALUE]",
            help="Only hosts that have this trait, resource class or fact, with their values; `moor host capabilities` lists "
            "these.",
        ),
    ] = "",
    _output: Output = None,
    **filters: Any,
) -> None:
    """List all hosts, ordered by name, with what they use."""
    if having:
        check_alone(
            "--having", "that asks about all hosts", {f"--{name}": each for name, each in filters.items()}
        )
        name, _, value = having.partition("=")
        found = with_client(bus, lambda moor: moor.list_hosts_having(name, value))
        print_all(found, HAVING, f"no hosts with {name} {value}".rstrip())
        return

    hosts = with_client(bus, lambda moor: first_of(HOST, moor, ALL, **filters))
    print_all(hosts, HOST.columns, "no hosts")


@app.verb()
def capabilities(bus: BusUrl = "", *, _output: Output = None) -> None:
    """List the traits, resource classes and facts that hosts have: on how many hosts, with which values."""
    found = with_client(bus, lambda moor: moor.list_capabilities())
    print_all(found, CAPABILITIES, "no hosts")


Names = Annotated[
    list[str] | None,
    argument(
        metavar="NAME...",
        help="Hosts' names; CELL/NAME if several cells have one.",
        completes=completes(HOST),
    ),
]


@app.verb("set")
@with_filters(HOST)
def set_hosts(
    words: Annotated[
        list[str],
        argument(
            metavar="[NAME...] MODE",
            help="up: they may be used. draining: nothing new is built there; their instances stay. down: as if their heartbeats had "
            "stopped. dead: as down, and nobody waits for them to clean up any more: say so only if nothing runs there; not for "
            "bare-metal nodes.",
            completes=completes(HOST),
        ),
    ],
    bus: BusUrl = "",
    *,
    reason: Annotated[str, option(help="Why; the host's state and refused builds show it.")] = "",
    yes: Annotated[
        bool,
        option(
            "--yes",
            help="Do not ask: of all that the filters choose; with dead: nothing runs there, though it is heard.",
        ),
    ] = False,
    _output: Output = None,
    **filters: Any,
) -> None:
    """Set hosts up, draining, down or dead: those that are named, or all that the filters choose. They stay so until they are set again.

    `dead` says that nothing runs on the host, and that nothing will. So what the host still held for instances that have left it
    is released at once. If a dead host returns, it must be set to another mode before it may be used. Before that it destroys all
    attempts of instances that its cell no longer counts on. While the host is heard, `dead` wants a confirmation, or --yes.
    """
    *names, word = words
    if word not in get_args(HostMode):
        raise click.BadParameter(f"MODE is {word!r}: it is none of {', '.join(get_args(HostMode))}")
    mode = cast("HostMode", word)

    async def set_one(moor: Client, name: str) -> HostState:
        try:
            return await moor.set_host(name, mode, reason=reason)
        except Rejected as doubt:
            if doubt.field != "sure":
                raise
            if why := why_unsure(doubt.reason, f"Set {name} dead?", yes=yes):
                raise NotSure(f"host {name}: {why}") from None
            return await moor.set_host(name, mode, reason=reason, sure=True)

    _for_each(bus, names, filters, f"set {mode}", set_one, yes=yes)


@app.verb("place")
def place_hosts(
    words: Annotated[
        list[str] | None,
        argument(
            metavar="[HOST... PLACE]",
            help="Hosts, and the domains that they are in, the largest first: dc1/hall2/row7/rack3. An empty place stands for what the "
            "host's compute or Ironic reports.",
            completes=completes(HOST),
        ),
    ] = None,
    bus: BusUrl = "",
    *,
    file: Annotated[
        Path | None,
        option(metavar="FILE", show_default=False, help="A CSV file with a line HOST,PLACE for each host."),
    ] = None,
    _output: Output = None,
) -> None:
    """Say where hosts are: all of them, or, if one is wrong, none. It counts before what their computes or Ironic report."""
    *hosts, place = words or [""]
    if not (hosts if file is None else not words):
        raise click.BadParameter("give either HOST... PLACE, the place last, or --file FILE")
    # Each with the words by which an error names it.
    named = [(host, place, host) for host in hosts] if file is None else _placed_by(file)
    for _, where, at in named:
        if why := why_no_place(where):
            raise click.BadParameter(f"{at}: place is {where!r}: {why}")

    async def work(moor: Client) -> list[HostPlace]:
        try:
            return await moor.place_hosts([(host, where) for host, where, _ in named])
        except Rejected as wrong:
            entry = re.match(r"hosts\[(\d+)\]", wrong.field)
            fail(f"{named[int(entry[1])][2] if entry else wrong.field}: {wrong.reason}; nothing was changed")

    print_all(with_client(bus, work, operates=True), _PLACED, "nothing was changed")


_PLACED = Columns[HostPlace]({"host": lambda each: each.host, "place": lambda each: each.place})


def _placed_by(file: Path) -> list[tuple[str, str, str]]:
    """The hosts and places in the lines of a file, each with the line's number. Empty lines and comments do not count."""
    try:
        lines = [*csv.reader(file.read_text(encoding="utf-8").splitlines())]
    except (OSError, ValueError, csv.Error) as problem:
        raise click.BadParameter(f"--file is '{file}': {problem}") from None
    found: list[tuple[str, str, str]] = []
    for number, row in enumerate(lines, 1):
        cells = [each.strip() for each in row]
        if not any(cells) or cells[0].startswith("#") or (number == 1 and cells == ["host", "place"]):
            continue
        if len(cells) != 2 or not cells[0]:  # noqa: PLR2004 - HOST,PLACE
            raise click.BadParameter(f"{file} line {number}: it must be HOST,PLACE, and is {','.join(row)!r}")
        found.append((cells[0], cells[1], f"{file} line {number}: host {cells[0]!r}"))
    if not found:
        raise click.BadParameter(f"--file is '{file}', which names no host")
    return found


@app.verb("delete")
@with_filters(HOST)
def delete_hosts(
    names: Names = None, bus: BusUrl = "", *, yes: Yes = False, _output: Output = None, **filters: Any
) -> None:
    """Forget hosts that are gone for good, with what placement has of them. Refused while a host is heard, has instances, or anybody holds
    something of it. One that comes back is a new host.
    """
    _for_each(bus, names, filters, "delete", lambda moor, name: moor.delete_host(name), yes=yes)


class NotSure(ClientError):  # noqa: N818 - named for what happened
    """Nobody has said that nothing runs on the host."""


def _for_each(
    bus: str,
    names: Sequence[str] | None,
    filters: Mapping[str, Any],
    verb: str,
    do: Callable[[Client, str], Awaitable[HostState]],
    *,
    yes: bool,
) -> None:
    """Do this with each host that is named, or that the filters choose. If one is refused, go on with the next, and say so at the end.
    If the bus is away, say what was done before.
    """
    check_not_both(names, **filters)

    async def work(moor: Client) -> tuple[list[HostShown], list[str]]:
        hosts = names or [
            host_in_cell(each.host.cell, each.host.name)
            for each in await chosen(HOST, moor, filters, verb, yes=yes)
        ]
        done, refused = [], []
        left = [*dict.fromkeys(hosts)]
        is_alone = len(left) == 1
        while left:
            name = left.pop(0)
            try:
                done.append(HostShown(await do(moor, name)))
            except (NotFound, Rejected, NotSure) as problem:
                if is_alone:
                    raise
                refused.append(str(problem))
            except ClientError as problem:
                if not done:
                    raise
                refused.append(f"host {name}: {problem}")
                refused += [f"not tried: {', '.join(left)}"] if left else []
                break
        return done, refused

    done, refused = with_client(bus, work, operates=True)
    if names and len(names) == 1:
        print_thing(HOST, done[0])
    else:
        print_all(done, HOST.columns, "nothing was done")
    if refused:
        fail("\n".join(refused))


# `moor aggregate`: groups of hosts and bare-metal nodes with metadata, such as their zone, their tenants and their limits.

aggregates_app = commands_of(AGGREGATE, "Aggregates: groups of hosts and bare-metal nodes, with metadata.")

AggregateName = Annotated[
    str,
    argument(metavar="AGGREGATE", help="The aggregate's name or id.", completes=completes(AGGREGATE)),
]
NewName = Annotated[str, argument(metavar="NAME", help="A name that no other aggregate has.")]
Pairs = Annotated[
    list[str] | None,
    argument(
        metavar="KEY=VALUE...",
        help="Metadata, such as availability_zone=north. An empty value removes the key.",
    ),
]
Hosts = Annotated[
    list[str],
    argument(
        metavar="HOST...",
        help="Names of hosts or bare-metal nodes, from `moor host list`, or their ids.",
        completes=completes(HOST),
    ),
]


@aggregates_app.verb()
def create(
    name: NewName,
    pairs: Pairs = None,
    bus: BusUrl = "",
    *,
    id_: Annotated[
        UUID | None,
        option(
            "--id",
            show_default=False,
            help="The id that providers name. Without it, one follows from the name.",
        ),
    ] = None,
    _output: Output = None,
) -> None:
    """Create an aggregate, with metadata. Repeating the command is harmless."""
    metadata = pairs_of("metadata", pairs)
    print_thing(
        AGGREGATE,
        with_client(bus, lambda moor: moor.create_aggregate(name, id_=id_, metadata=metadata)),
    )


@aggregates_app.verb("set")
def set_metadata(
    name: AggregateName, pairs: Pairs = None, bus: BusUrl = "", *, _output: Output = None
) -> None:
    """Set and remove keys of an aggregate's metadata; other keys stay."""
    if not pairs:
        raise click.BadParameter("KEY=VALUE is missing: name at least one key")
    # An empty value removes the key.
    metadata = {key: value or None for key, value in pairs_of("metadata", pairs).items()}
    print_thing(AGGREGATE, with_client(bus, lambda moor: moor.set_aggregate(name, metadata=metadata)))


@aggregates_app.verb()
def add(name: AggregateName, hosts: Hosts, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Add hosts or bare-metal nodes to an aggregate."""
    print_thing(AGGREGATE, with_client(bus, lambda moor: moor.set_aggregate(name, add_hosts=hosts)))


@aggregates_app.verb()
def remove(name: AggregateName, hosts: Hosts, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Remove hosts or bare-metal nodes from an aggregate."""
    print_thing(AGGREGATE, with_client(bus, lambda moor: moor.set_aggregate(name, remove_hosts=hosts)))


# `moor host drain` and `moor evacuate`: campaigns of one host, until they end, the time is up or a signal comes.

EmptyingTimeout = Annotated[float, option(metavar="S", min=0.1, help="Seconds to wait for the end.")]
AtOnce = Annotated[int, option(min=1, help="How many instances move at the same time.")]

# As long as a host counts as heard, unless `host_down_s` says otherwise.
HEARD = timedelta(seconds=60)


@app.verb()
def drain(
    host: Annotated[str, argument(metavar="HOST", help="The host's name.", completes=completes(HOST))],
    bus: BusUrl = "",
    *,
    to: To = None,
    reason: Annotated[str, option(help="Why: `moor host` and refused builds show it.")] = "",
    wait_for_room: WaitForRoom = None,
    at_once: AtOnce = 10,
    timeout: EmptyingTimeout = 3600.0,
    _output: Output = None,
) -> None:
    """Set a host draining, and move its instances to other hosts of its cell: live, or else stopped meanwhile.

    It is a campaign of this host alone (`moor campaign`). Ctrl-C cancels it, and shows which instances are still there: what moves
    already goes on, and the host stays draining until `moor host set HOST up`.
    """
    how = {"hosts": to or (), "at_once": at_once, "timeout_s": timeout, "wait": wait_for_room or 0}
    _show_emptied(
        with_client(bus, lambda moor: _stopped(moor.drain, host, reason=reason, **how), operates=True)
    )


def evacuate(
    host: Annotated[str, argument(metavar="HOST", help="A host that is down.", completes=completes(HOST))],
    bus: BusUrl = "",
    *,
    to: To = None,
    fence: Annotated[
        str,
        option(
            metavar="NAME",
            help="The program in the keepers' folder of hooks that makes sure that the host is off, such as one that cuts its power. If it "
            "fails, a person is asked (`moor question`).",
        ),
    ] = "",
    yes: Annotated[
        bool,
        option("--yes", help="Without --fence: nothing runs on the host, though it was heard just now."),
    ] = False,
    wait_for_room: Annotated[
        int | None,
        option(
            metavar="S",
            show_default=False,
            help="Seconds that instances wait for room, if no host has it; 0: they stay. Default: 86400. They go before builds that "
            "wait, and stay if the host is up again before.",
        ),
    ] = None,
    at_once: AtOnce = 50,
    timeout: EmptyingTimeout = 3600.0,
    _output: Output = None,
) -> None:
    """Build all instances of a lost host anew on other hosts of its cell. They keep their ids.

    Their shares on the lost host stay held until it returns and cleans up, or is set dead. Instances for which no host has room
    wait for it, and are still evacuated when the command has ended. It is a campaign of this host alone (`moor campaign`), which Ctrl-C
    cancels: those whose turn has not come stay.
    """

    async def work(moor: Client) -> Emptied:
        there = await _down(moor, host)
        name = host if there is None else host_in_cell(there.cell, there.name)
        heard_at = there and not there.silent_since and there.heard_at
        if not fence and heard_at and (unheard := now() - heard_at) < HEARD:
            doubt = f"{name} is set down, and was heard {max(unheard.total_seconds(), 0):.0f} s ago: if its instances still run, second copies run beside them"
            be_sure(doubt, f"Evacuate {name}?", yes=yes)
        how = {"hosts": to or (), "at_once": at_once, "timeout_s": timeout, "fence": fence}
        waits = {} if wait_for_room is None else {"wait": wait_for_room}
        return await _stopped(moor.evacuate_host, name, **how, **waits)

    _show_emptied(with_client(bus, work, operates=True))


async def _down(moor: Client, host: str) -> HostState | None:
    """The host, unless schedulers have forgotten it. Ends the command if it is up, or if nobody knows it."""
    try:
        found = await moor.show_host(host)
    except NotFound:
        if not await moor.instances_on(host):
            raise
        return None
    if found.up:
        fail(f"{host} is up, so nothing was evacuated: `moor host set {host} down` first", NOT_DONE)
    return found


async def _stopped(empty: Callable[..., Awaitable[Emptied]], host: str, **how: Any) -> Emptied:
    """Until the time is up, or a signal comes."""
    with stopped_by_signals() as told:
        return await empty(host, **how, tell=_tell_progress, stop=told)


def _tell_progress(host: CampaignHost) -> None:
    if wants_document():
        return
    if host.stage == "asked":
        tell(f"{host.reason}. A person must decide: `moor question list`", "yellow")
    else:
        tell(f"{host.moved:,} moved, {host.left + host.stay:,} not yet", "dim")


def _show_emptied(done: Emptied) -> None:
    """Print what became of the instances; end the command with an error if some stayed."""
    print_one(done, _print_emptied)
    if done.stayed:
        fail(f"{len(done.stayed)} instances are still on {done.host}", NOT_DONE)


def _print_emptied(done: Emptied) -> None:
    count = len(done.moved) + len(done.stayed)
    each = f", {done.seconds / count * 1000:.0f} ms each" if count else ""
    out.print(f"{len(done.moved)} of {count} instances have left {done.host} in {done.seconds:.1f} s{each}")
    if done.stayed:
        print_table(done.stayed, STAYED)


STAYED = Columns[Stayed](
    {
        "id": lambda each: str(each.instance),
        "name": lambda each: each.name,
        "why it stays": lambda each: each.reason,
    },
    prose=("why it stays",),
    ids={"id": lambda _: True},
)
