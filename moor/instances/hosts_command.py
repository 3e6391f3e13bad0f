"""`moor host`, `moor cell`, `moor aggregate` and `moor evacuate`: hosts, the cells that they are in, groups of them, and how they are emptied."""

import shlex
import subprocess
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any
from uuid import UUID, uuid5

import click
from msgspec import structs
from rich.markup import escape

from bus.messages.build import MoveKind
from bus.messages.cloud import AskCells, CellsFound, CellState
from bus.messages.hosts import (
    AggregateDeleted,
    AggregateSet,
    AggregatesFound,
    AggregateState,
    AskAggregates,
    DeleteAggregate,
    HostSet,
    SetAggregate,
    SetHost,
)
from bus.messages.planning import AskCapabilities, CapabilitiesFound
from engine.hosts import HostMode, cell_and_name, host_in_cell
from engine.inventories import AggregateId
from kit.process import stopped_by_signals
from kit.times import now
from moor.asking import PAGE, CommandClient, answer_of, ask_bus, asked, asked_for_all, hosts_of, items_of
from moor.client.errors import Rejected
from moor.client.hosts import DRAINING, EVACUATING, Emptied, Stayed, empty, instances_on
from moor.completing import complete_aggregates, complete_cells, complete_hosts
from moor.flags import Commands, argument, option
from moor.instances.boot_command import CAPABILITIES, HAVING
from moor.instances.move_commands import To, WaitForRoom
from moor.instances.requests import move_wait_of, pairs_of
from moor.message_commands import command_that_sends, command_with
from moor.naming import aggregate_ids, fail_unknown
from moor.options import (
    NOT_DONE,
    BusUrl,
    Output,
    be_sure,
    check_alone,
    fail,
    out,
    tell,
    wants_document,
)
from moor.showing import (
    HOSTS,
    cell_life,
    check_known,
    check_one_cell,
    grid_of,
    print_all,
    print_host,
    print_one,
    time_in_words,
)
from moor.tables import Columns, print_table, styled

app = Commands("Hosts: list, capabilities, show, set.")

Name = Annotated[
    str,
    argument(
        metavar="NAME",
        help="A host's name, from `moor host list`; CELL/NAME if several cells have it.",
        completes=complete_hosts,
    ),
]


@app.verb("list")
def list_hosts(
    bus: BusUrl = "",
    *,
    cell: Annotated[str, option(help="Only hosts of this cell.", completes=complete_cells)] = "",
    down: Annotated[
        bool, option("--down", help="Only hosts that are down: set so, or without heartbeats.")
    ] = False,
    mode: Annotated[HostMode | None, option("--mode", help="Only hosts that are set so.")] = None,
    having: Annotated[
        str,
        option(
            metavar="NAME[=VALUE]",
            help="Only hosts that have this trait, resource class or fact, with their values; `moor host capabilities` lists "
            "these.",
        ),
    ] = "",
    _output: Output = None,
) -> None:
    """List all hosts, ordered by name."""
    if having:
        _list_having(bus, having, {"--cell": cell, "--down": down, "--mode": mode})
        return
    known = ask_bus(bus, hosts_of, operates=False)
    check_known("--cell", cell, (each.cell for each in known))
    hosts = [
        host
        for host in known
        if cell in ("", host.cell) and not (down and host.up) and mode in (None, host.setting.mode)
    ]
    print_all(hosts, HOSTS, "no hosts")


app.verb("capabilities")(
    command_that_sends(
        AskCapabilities,
        fixed=("having", "value"),
        words="List the traits, resource classes and facts that hosts have: on how many hosts, with which values.",
        answer=CapabilitiesFound,
        items=lambda found: found.capabilities,
        show=CAPABILITIES,
        nothing="no hosts",
    )
)


@app.verb()
def show(name: Name, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show one host, as the schedulers know it."""
    found = ask_bus(bus, lambda asking: hosts_of(asking, name), operates=False)
    if not found:
        fail(f"there is no host {name!r}, so nothing was done; `moor host list` shows all hosts")
    check_one_cell("NAME", name, found)
    print_one(found[0], print_host)


def _set(
    message: SetHost,
    bus: BusUrl = "",
    *,
    yes: Annotated[
        bool, option("--yes", help="With dead: nothing runs on the host, though it is heard.")
    ] = False,
    _output: Output = None,
) -> None:
    """Set a host up, draining, down or dead. It stays so until it is set again.

    `dead` says that nothing runs on the host, and that nothing will. So what the host still held for instances that have left it
    is released at once. If a dead host returns, it must be set to another mode before it may be used. Before that it destroys all
    attempts of instances that its cell no longer counts on. While the host is heard, `dead` wants a confirmation, or --yes.
    """
    done = ask_bus(bus, lambda asking: _set_or_doubted(asking, message))
    if isinstance(done, Rejected):
        be_sure(done.reason, f"Set {message.host} dead?", yes=yes)
        sure = structs.replace(message, sure=True)
        done = ask_bus(bus, lambda asking: answer_of(asking, sure, HostSet))
    print_one(done.host, print_host)


async def _set_or_doubted(asking: CommandClient, order: SetHost) -> HostSet | Rejected:
    """Set the host, or return why a scheduler first wants to know whether the operator is sure."""
    try:
        return await answer_of(asking, order, HostSet)
    except Rejected as doubt:
        if doubt.field != "sure":
            raise
        return doubt


app.verb("set")(
    command_with(_set, {"host": "NAME", "mode": "MODE"}, ("for_user", "sure"), completes=complete_hosts)
)


def _list_having(bus: str, having: str, others: Mapping[str, object]) -> None:
    check_alone("--having", "that asks about all hosts", others)
    name, _, value = having.partition("=")
    question = AskCapabilities(having=name, value=value, limit=PAGE)
    hosts = asked_for_all(bus, question, CapabilitiesFound, lambda page: page.hosts, operates=False)
    print_all(hosts, HAVING, f"no hosts with {name} {value}".rstrip())


cell_app = Commands("Cells: list, show.")


@cell_app.verb("list")
def list_cells(
    bus: BusUrl = "",
    *,
    down: Annotated[bool, option("--down", help="Only cells that are down.")] = False,
    _output: Output = None,
) -> None:
    """List all cells: whether each is up, when it was last heard, and what it has."""
    cells = asked(bus, AskCells(), CellsFound, operates=False).cells
    print_all([each for each in cells if not down or each.life == "down"], CELLS, "no cells")


CELLS = Columns[CellState](
    {
        "cell": lambda each: each.cell,
        "state": lambda each: styled(cell_life(each.life)),
        "last heard": lambda each: time_in_words(each.heard_at),
        "conductors": lambda each: (
            f"{sum(one.life == 'up' for one in each.conductors)} of {len(each.conductors)} up"
        ),
        "hosts": lambda each: f"{each.hosts_up} of {each.hosts} up",
        "instances": lambda each: str(each.instances),
        "waiting": lambda each: str(each.waiting),
        "reason": lambda each: each.reason,
    },
    prose=("reason",),
)


def _print_cell(cell: CellState) -> None:
    grid = grid_of(
        ("cell", cell.cell),
        ("state", cell_life(cell.life)),
        ("heard", time_in_words(cell.heard_at)),
        ("reason", escape(cell.reason)),
        ("hosts", f"{cell.hosts_up} of {cell.hosts} up"),
        ("instances", str(cell.instances)),
        ("waiting", f"{cell.waiting} have an order that the cell has not answered"),
    )
    for each in cell.conductors:
        trouble = f": [red]{escape(each.trouble)}[/red]" if each.trouble else ""
        told = f"{escape(each.name)} {cell_life(each.life)}, heard {time_in_words(each.heard_at)}{trouble}"
        grid.add_row("conductor", told)
    out.print(grid)


cell_app.verb("show")(
    command_that_sends(
        AskCells,
        arguments={"name": "NAME"},
        completes=complete_cells,
        words="Show one cell, with its conductors.",
        answer=CellsFound,
        items=lambda found: found.cells,
        missing="there is no cell {name!r}; `moor cell list` shows all cells",
        is_about_one=True,
        show=_print_cell,
    )
)

# `moor aggregate`: groups of hosts and bare-metal nodes with metadata, such as their zone, their tenants and their limits.

aggregates_app = Commands("Aggregates: groups of hosts and bare-metal nodes, with metadata.")

# An aggregate's id follows from its name, so that the same `create` makes the same aggregate again.
NAMES = UUID("0a5c6a34-4a7e-4b8e-9d43-6f2f6a1c7d11")

AggregateName = Annotated[
    str,
    argument(metavar="AGGREGATE", help="The aggregate's name or id.", completes=complete_aggregates),
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
        completes=complete_hosts,
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
    aggregate = AggregateId(id_ or uuid5(NAMES, name))
    metadata = _metadata(pairs or ())
    _order(bus, SetAggregate(aggregate=aggregate, name=name, metadata=metadata))


@aggregates_app.verb("set")
def set_metadata(
    name: AggregateName, pairs: Pairs = None, bus: BusUrl = "", *, _output: Output = None
) -> None:
    """Set and remove keys of an aggregate's metadata; other keys stay."""
    if not pairs:
        raise click.BadParameter("KEY=VALUE is missing: name at least one key")
    _order(bus, SetAggregate(aggregate=_one(bus, name).id, metadata=_metadata(pairs)))


@aggregates_app.verb()
def add(name: AggregateName, hosts: Hosts, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Add hosts or bare-metal nodes to an aggregate."""
    _order(bus, SetAggregate(aggregate=_one(bus, name).id, add_hosts=tuple(hosts)))


@aggregates_app.verb()
def remove(name: AggregateName, hosts: Hosts, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Remove hosts or bare-metal nodes from an aggregate."""
    _order(bus, SetAggregate(aggregate=_one(bus, name).id, remove_hosts=tuple(hosts)))


AGGREGATES = Columns[AggregateState](
    {
        "aggregate": lambda each: each.name,
        "id": lambda each: str(each.id),
        "hosts": lambda each: str(each.hosts_count),
        "metadata": lambda each: ", ".join(f"{key}={value}" for key, value in each.metadata.items()),
    },
    prose=("metadata",),
    ids={"id": lambda _: True},
)
aggregates_app.verb("list")(
    command_that_sends(
        AskAggregates,
        fixed=("name",),
        words="List all aggregates, ordered by name.",
        answer=AggregatesFound,
        items=lambda found: found.aggregates,
        show=AGGREGATES,
        nothing="no aggregates",
    )
)


@aggregates_app.verb("show")
def show_aggregate(name: AggregateName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show one aggregate, with its hosts."""
    print_one(_one(bus, name), _print)


@aggregates_app.verb()
def delete(name: AggregateName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Delete an aggregate that has no hosts."""
    known = _one(bus, name)
    asked(bus, DeleteAggregate(aggregate=known.id), AggregateDeleted, operates=False)
    print_one(known, lambda each: out.print(f"{escape(each.name)} is deleted"))


def _metadata(pairs: Sequence[str]) -> dict[str, str | None]:
    """Parse KEY=VALUE pairs of metadata. An empty value becomes None, which removes the key."""
    return {key: value or None for key, value in pairs_of("metadata", pairs).items()}


def _order(bus: str, order: SetAggregate) -> None:
    written = asked(bus, order, AggregateSet, operates=False)
    print_one(_one(bus, str(written.aggregate.id)), _print)


def _one(bus: str, name: str) -> AggregateState:
    if not name:
        raise click.BadParameter("AGGREGATE is empty: give the aggregate's name or id")

    async def work(asking: CommandClient) -> list[AggregateState]:
        def pages_of(name: str) -> Awaitable[list[AggregateState]]:
            question = AskAggregates(name=name, limit=PAGE)
            return items_of(asking, question, AggregatesFound, lambda page: page.aggregates)

        if not (pages := await pages_of(name)):
            (id_,) = await aggregate_ids(asking, [name])
            pages = await pages_of(str(id_))
        return pages

    pages = ask_bus(bus, work, operates=False)
    if not pages:
        fail_unknown("aggregate", (repr(name),), "`moor aggregate list` shows all aggregates")
    hosts = tuple(host for page in pages for host in page.hosts)
    return structs.replace(pages[0], hosts_count=len(hosts), hosts=hosts)


def _print(aggregate: AggregateState) -> None:
    out.print(
        grid_of(
            ("aggregate", escape(aggregate.name)),
            ("id", str(aggregate.id)),
            *((escape(key), escape(value)) for key, value in aggregate.metadata.items()),
            ("hosts", escape(", ".join(aggregate.hosts)) or "none"),
        ),
    )


# `moor host drain` and `moor evacuate`: all instances of a host move away, or are built anew elsewhere, until the time is up or a signal comes.

EmptyingTimeout = Annotated[float, option(metavar="S", min=0.1, help="Seconds to wait for the end.")]
AtOnce = Annotated[int, option(min=1, help="How many instances move at the same time.")]

FENCE_S = 300.0
# As long as a host counts as heard, unless `host_down_s` says otherwise.
HEARD = timedelta(seconds=60)


@app.verb()
def drain(
    host: Annotated[str, argument(metavar="HOST", help="The host's name.", completes=complete_hosts)],
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

    With --wait-for-room, an instance waits for a host to which it can move live. A stopped one would need the same room.

    Ctrl-C ends the orders, and shows which instances are still there: what moves already goes on, and the host stays draining until
    `moor host set HOST up`.
    """
    how = {
        "hosts": to or (),
        "wait": move_wait_of(wait_for_room, None),
        "at_once": at_once,
        "timeout_s": timeout,
    }

    async def work(asking: CommandClient) -> Emptied:
        answer = await answer_of(asking, SetHost(host=host, mode="draining", reason=reason), HostSet)
        there = host_in_cell(answer.host.cell, answer.host.name)
        return await _emptied(asking, there, DRAINING, **how)

    _show_emptied(ask_bus(bus, work))


def evacuate(
    host: Annotated[str, argument(metavar="HOST", help="A host that is down.", completes=complete_hosts)],
    bus: BusUrl = "",
    *,
    to: To = None,
    fence: Annotated[
        str,
        option(
            metavar="COMMAND",
            help="A command that makes sure that the host is off, such as one that cuts its power. It gets the host's name as "
            "its last argument. If it fails, nothing is evacuated.",
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
    wait for it, and are still evacuated when the command has ended.
    """
    there, heard_at = ask_bus(bus, lambda asking: _check_down(asking, host), operates=False)
    if fence:
        _fence(fence, cell_and_name(there)[1])
    elif heard_at is not None and (unheard := now() - heard_at) < HEARD:
        doubt = f"{there} is set down, and was heard {max(unheard.total_seconds(), 0):.0f} s ago: if its instances still run, second copies run beside them"
        be_sure(doubt, f"Evacuate {there}?", yes=yes)

    how = {
        "hosts": to or (),
        "wait": move_wait_of(wait_for_room, None),
        "at_once": at_once,
        "timeout_s": timeout,
    }
    _show_emptied(ask_bus(bus, lambda asking: _emptied(asking, there, EVACUATING, **how), operates=False))


async def _check_down(asking: CommandClient, host: str) -> tuple[str, datetime | None]:
    """End the command if the host is unknown or up, or if hosts of several cells have its name: fencing would switch off a
    healthy host after a wrong name. Returns the name with its cell, if the host is known; and when it was heard, unless it is silent.
    """
    found = await hosts_of(asking, host)
    check_one_cell("HOST", host, found)
    if not found and not await instances_on(asking, host):
        check_known("HOST", host, (each.name for each in await hosts_of(asking)))
    if any(each.up for each in found):
        fail(f"{host} is up, so nothing was evacuated: `moor host set {host} down` first", NOT_DONE)
    if not found:
        return host, None
    (known,) = found
    return host_in_cell(known.cell, known.name), None if known.silent_since else known.heard_at


def _fence(command: str, host: str) -> None:
    words = [*shlex.split(command), host]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=FENCE_S, check=False)  # noqa: S603 - it is the operator's own command
    except (OSError, subprocess.TimeoutExpired) as problem:
        fail(f"--fence: {problem}: nothing was evacuated", NOT_DONE)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        fail(
            f"--fence: {command!r} ended with code {done.returncode}: {said}: nothing was evacuated", NOT_DONE
        )


async def _emptied(asking: CommandClient, host: str, kinds: Sequence[MoveKind], **how: Any) -> Emptied:
    """Until the time is up, or a signal comes."""
    with stopped_by_signals() as told:
        tells = None if wants_document() else partial(tell, style="dim")
        return await empty(asking, host, kinds, **how, tell=tells, stop=told)


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
