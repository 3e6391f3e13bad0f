"""`moor aggregate`: groups of hosts and bare-metal nodes with metadata, such as their zone, their tenants and their limits."""

from collections.abc import Awaitable, Sequence
from typing import Annotated
from uuid import UUID, uuid5

import typer
from msgspec import structs
from rich.markup import escape

from bus.messages.hosts import (
    AggregateDeleted,
    AggregateSet,
    AggregatesFound,
    AggregateState,
    AskAggregates,
    DeleteAggregate,
    SetAggregate,
)
from engine.inventories import AggregateId
from moor.asking import CommandClient, ask_bus, asked, items_of
from moor.completing import complete_aggregates, complete_hosts
from moor.instances.requests import pairs_of
from moor.message_commands import command_that_sends
from moor.naming import aggregate_ids, fail_unknown
from moor.options import BusUrl, Output, out, read_uuid
from moor.showing import grid_of, print_one
from moor.tables import Columns

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Aggregates: groups of hosts and bare-metal nodes, with metadata.",
)

# An aggregate's id follows from its name, so that the same `create` makes the same aggregate again.
NAMES = UUID("0a5c6a34-4a7e-4b8e-9d43-6f2f6a1c7d11")
PAGE = 500

Name = Annotated[
    str,
    typer.Argument(
        metavar="AGGREGATE", help="The aggregate's name or id.", autocompletion=complete_aggregates
    ),
]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="A name that no other aggregate has.")]
Pairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE...",
        help="Metadata, such as availability_zone=north. An empty value removes the key.",
    ),
]
Hosts = Annotated[
    list[str],
    typer.Argument(
        metavar="HOST...",
        help="Names of hosts or bare-metal nodes, from `moor host list`, or their ids.",
        autocompletion=complete_hosts,
    ),
]


@app.command()
def create(
    name: NewName,
    pairs: Pairs = None,
    bus: BusUrl = "",
    *,
    id_: Annotated[
        UUID | None,
        typer.Option(
            "--id",
            parser=read_uuid,
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


@app.command("set")
def set_metadata(name: Name, pairs: Pairs = None, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Set and remove keys of an aggregate's metadata; other keys stay."""
    if not pairs:
        raise typer.BadParameter("KEY=VALUE is missing: name at least one key")
    _order(bus, SetAggregate(aggregate=_one(bus, name).id, metadata=_metadata(pairs)))


@app.command()
def add(name: Name, hosts: Hosts, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Add hosts or bare-metal nodes to an aggregate."""
    _order(bus, SetAggregate(aggregate=_one(bus, name).id, add_hosts=tuple(hosts)))


@app.command()
def remove(name: Name, hosts: Hosts, bus: BusUrl = "", *, _output: Output = None) -> None:
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
app.command("list")(
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


@app.command()
def show(name: Name, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show one aggregate, with its hosts."""
    print_one(_one(bus, name), _print)


@app.command()
def delete(name: Name, bus: BusUrl = "", *, _output: Output = None) -> None:
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
        raise typer.BadParameter("AGGREGATE is empty: give the aggregate's name or id")

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
