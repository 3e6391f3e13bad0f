"""`moor provider create`, `delete`, `rename`, `move` and `set`: an operator's writes to placement."""

from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID, uuid4

import typer

from bus.messages.administration import (
    CreateProvider,
    DeleteProvider,
    SetAggregates,
    SetInventories,
    SetTraits,
    UpdateProvider,
    Write,
)
from engine.inventories import ProviderId, ProviderState, ReportedInventory
from moor.asking import CommandClient, ask_bus, providers_of
from moor.naming import aggregate_ids
from moor.options import ID, BusUrl, Output, out, put_once, read_uuid
from moor.placement.providers import ProviderName, amount_from, found_in, write
from moor.placement.providers_showing import PROVIDERS
from moor.showing import print_one

app = typer.Typer(add_completion=False)

Parent = Annotated[str, typer.Option(metavar="PROVIDER", help="The parent provider.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new provider's name.")],
    bus: BusUrl = "",
    *,
    parent: Parent = "",
    id_: Annotated[
        UUID | None,
        typer.Option(
            "--id", parser=read_uuid, show_default=False, help="The new provider's id. Default: a random one."
        ),
    ] = None,
    cell: Annotated[str, typer.Option(help="The cell that it belongs to, if any.")] = "",
    _output: Output = None,
) -> None:
    """Create a provider without inventory, traits and aggregates."""
    new = ProviderId(id_ or uuid4())

    def order(everything: list[ProviderState]) -> Write:
        below = found_in(everything, parent).id if parent else None
        return CreateProvider(id=new, name=name, parent=below, of_cell=cell)

    _write(bus, order, str(new))


@app.command()
def delete(which: ProviderName, bus: BusUrl = "") -> None:
    """Delete a provider. Refused while it has children or a consumer holds something of it."""
    _write(bus, lambda everything: DeleteProvider(id=found_in(everything, which).id))


@app.command()
def rename(
    which: ProviderName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
    bus: BusUrl = "",
) -> None:
    """Rename a provider."""
    _write(bus, lambda everything: UpdateProvider(id=found_in(everything, which).id, name=name), name)


@app.command()
def move(
    which: ProviderName,
    bus: BusUrl = "",
    *,
    parent: Parent = "",
    alone: Annotated[bool, typer.Option("--alone", help="Make it the root of its own tree.")] = False,
    _output: Output = None,
) -> None:
    """Move a provider and its children: below --parent, or to the root of its own tree by --alone."""
    if bool(parent) == alone:
        raise typer.BadParameter("give either --parent PROVIDER or --alone")

    def order(everything: list[ProviderState]) -> Write:
        moved = found_in(everything, which)
        below = found_in(everything, parent).id if parent else None
        return UpdateProvider(id=moved.id, name=moved.name, parent=below)

    _write(bus, order, which)


set_app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Replace all inventory, all traits or all aggregates of a provider.",
)
app.add_typer(set_app, name="set")


@set_app.command("inventory")
def set_inventory(
    which: ProviderName,
    stocks: Annotated[
        list[str],
        typer.Argument(
            metavar="CLASS=TOTAL[,reserved=N][,ratio=F][,min=N][,max=N][,step=N]",
            help="All classes of the provider; classes not named are removed.",
        ),
    ],
    bus: BusUrl = "",
    *,
    _output: Output = None,
) -> None:
    """Replace a provider's inventory. A class of which a consumer holds something cannot be removed.

    The next report of the provider by its host or daemon replaces it.
    """
    given: dict[str, str] = {}
    amounts: dict[str, ReportedInventory] = {}
    for text in stocks:
        resource, amounts[resource] = amount_from(text)
        put_once(given, resource, text, "the command line")
    _set(
        bus,
        which,
        lambda of: SetInventories(**of, inventories=amounts),
    )


@set_app.command("traits")
def set_traits(
    which: ProviderName,
    traits: Annotated[
        list[str] | None,
        typer.Argument(metavar="TRAIT...", help="All traits of the provider; traits not named are removed."),
    ] = None,
    bus: BusUrl = "",
    *,
    _output: Output = None,
) -> None:
    """Replace a provider's traits."""
    _set(bus, which, lambda of: SetTraits(**of, traits=tuple(traits or ())))


@set_app.command("aggregates")
def set_aggregates(
    which: ProviderName,
    aggregates: Annotated[
        list[str] | None,
        typer.Argument(
            metavar=f"{ID}...",
            help="All aggregates of the provider; aggregates not named are removed.",
        ),
    ] = None,
    bus: BusUrl = "",
    *,
    _output: Output = None,
) -> None:
    """Replace a provider's aggregates."""
    wanted = ask_bus(bus, lambda asking: aggregate_ids(asking, aggregates or ()))
    _set(bus, which, lambda of: SetAggregates(**of, aggregates=tuple(wanted)))


def _set(bus: str, which: str, order: Callable[[dict[str, Any]], Write]) -> None:
    """Send the order that changes a provider. It is refused if another client has changed the provider meanwhile."""

    def written(everything: list[ProviderState]) -> Write:
        provider = found_in(everything, which)
        return order({"provider": provider.id, "generation": provider.generation})

    _write(bus, written, which)


def _write(
    bus: str,
    order: Callable[[list[ProviderState]], Write],
    which: str = "",
) -> None:
    """Read the providers, build the order from them, send it, and print the provider `which` afterwards."""

    async def work(asking: CommandClient) -> ProviderState | None:
        await write(asking, order(await providers_of(asking)))
        return found_in(await providers_of(asking), which) if which else None

    provider = ask_bus(bus, work)
    if provider is None:
        out.print("done")
    else:
        print_one(provider, PROVIDERS)
