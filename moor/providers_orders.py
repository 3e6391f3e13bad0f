"""`moor provider create`, `set` and the like: an operator's word on what placement keeps books of."""

from collections.abc import Callable
from typing import Annotated, TypeVar
from uuid import UUID, uuid4

import msgspec
import typer

from bus.message import AggregateId, ProviderId
from bus.messages.administration import (
    CreateProvider,
    DeleteProvider,
    SetAggregates,
    SetInventories,
    SetTraits,
    UpdateProvider,
    Write,
)
from bus.messages.placement import ProviderState
from moor.client import client
from moor.options import AsJson, BusUrl, fail, out, run, settled
from moor.providers import Which, amounts_from, found_in, providers_of, write
from moor.providers_showing import providers_table
from moor.showing import plain, print_json
from moor.tables import print_table

app = typer.Typer(add_completion=False)

M = TypeVar("M", bound=msgspec.Struct)

Parent = Annotated[str, typer.Option(metavar="PROVIDER", help="Below which it stands.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.")],
    bus: BusUrl = "",
    *,
    parent: Parent = "",
    id_: Annotated[
        UUID | None, typer.Option("--id", show_default=False, help="Its id, if you choose it.")
    ] = None,
    cell: Annotated[str, typer.Option(help="Whose it is, if it is a cell's.")] = "",
    as_json: AsJson = False,
) -> None:
    """A new provider, without anything yet."""
    new = ProviderId(id_ or uuid4())

    def order(everything: list[ProviderState]) -> Write:
        below = found_in(everything, parent).id if parent else None
        return CreateProvider(id=new, name=name, parent=below, of_cell=cell)

    _write(bus, order, str(new), as_json=as_json)


@app.command()
def delete(which: Which, bus: BusUrl = "") -> None:
    """Take it out of the books; refused while it has children, or somebody holds something of it."""
    _write(bus, lambda everything: DeleteProvider(id=found_in(everything, which).id))


@app.command()
def rename(
    which: Which, name: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")], bus: BusUrl = ""
) -> None:
    """Give it another name."""
    _write(bus, lambda everything: UpdateProvider(id=found_in(everything, which).id, name=name), name)


@app.command()
def move(
    which: Which,
    bus: BusUrl = "",
    *,
    parent: Parent = "",
    alone: Annotated[bool, typer.Option("--alone", help="At the root of a tree of its own.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put it, and all below it, into another place: --parent, or --alone."""
    if bool(parent) == alone:
        raise typer.BadParameter("either --parent or --alone says where to")

    def order(everything: list[ProviderState]) -> Write:
        moved = found_in(everything, which)
        below = found_in(everything, parent).id if parent else None
        return UpdateProvider(id=moved.id, name=moved.name, parent=below)

    _write(bus, order, which, as_json=as_json)


set_app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="What it has: inventory, traits or aggregates, whole."
)
app.add_typer(set_app, name="set")


@set_app.command("inventory")
def set_inventory(
    which: Which,
    stocks: Annotated[
        list[str],
        typer.Argument(
            metavar="CLASS=TOTAL[,reserved=N][,ratio=F][,min=N][,max=N][,step=N]",
            help="These classes, and no others.",
        ),
    ],
    bus: BusUrl = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Its inventory becomes this. What somebody holds cannot be taken away."""
    wanted = amounts_from(stocks)

    def order(everything: list[ProviderState]) -> Write:
        provider = found_in(everything, which)
        return _sound(
            SetInventories(provider=provider.id, generation=provider.generation, inventories=wanted)
        )

    _write(bus, order, which, as_json=as_json)


@set_app.command("traits")
def set_traits(
    which: Which,
    traits: Annotated[
        list[str] | None, typer.Argument(metavar="TRAIT...", help="These, and no others.")
    ] = None,
    bus: BusUrl = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Its traits become these."""

    def order(everything: list[ProviderState]) -> Write:
        provider = found_in(everything, which)
        return _sound(
            SetTraits(provider=provider.id, generation=provider.generation, traits=tuple(traits or ()))
        )

    _write(bus, order, which, as_json=as_json)


@set_app.command("aggregates")
def set_aggregates(
    which: Which,
    aggregates: Annotated[
        list[UUID] | None, typer.Argument(metavar="ID...", help="These, and no others.")
    ] = None,
    bus: BusUrl = "",
    *,
    as_json: AsJson = False,
) -> None:
    """It is a member of these aggregates, and of no others."""

    def order(everything: list[ProviderState]) -> Write:
        provider = found_in(everything, which)
        return SetAggregates(
            provider=provider.id,
            generation=provider.generation,
            aggregates=tuple(map(AggregateId, aggregates or ())),
        )

    _write(bus, order, which, as_json=as_json)


def _write(
    bus: str,
    order: Callable[[list[ProviderState]], Write],
    which: str = "",
    *,
    as_json: bool = False,
) -> None:
    """Make the order out of what there is, have it done, and show what became of whom it was about."""

    async def work() -> ProviderState | None:
        async with client(settled(bus=bus), operates=True) as asking:
            await write(asking, order(await providers_of(asking)))
            return found_in(await providers_of(asking), which) if which else None

    provider = run(work())
    if provider is None:
        out.print("done")
    elif as_json:
        print_json(plain(provider))
    else:
        print_table(providers_table([provider]))


def _sound(message: M) -> M:
    """As it will arrive; what could not be read there is said here."""
    try:
        return msgspec.convert(msgspec.to_builtins(message), type(message))
    except msgspec.ValidationError as wrong:
        fail(str(wrong), 2)
