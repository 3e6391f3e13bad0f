"""`moor provider`: shows placement's providers, inventories and their holders."""

from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated

import typer

from bus.messages.administration import AskHolders, ConsumerState, HoldersFound
from engine.inventories import AggregateId, ProviderState
from moor.asking import CommandClient, ask_bus, items_of, providers_of
from moor.completing import complete_aggregates, complete_cells
from moor.naming import aggregate_ids
from moor.options import ID, BusUrl, Output, out, say, wants_document
from moor.placement.providers import ProviderName, found_in
from moor.placement.providers_orders import app as orders
from moor.placement.providers_showing import (
    PROVIDERS,
    holder_columns,
    print_inventories,
    print_provider,
    tree_of,
)
from moor.showing import check_known, plain, print_all, print_json, print_one

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Resource providers: show their trees, inventories and holders; create, change and delete them.",
)


@app.command("list")
def list_providers(
    bus: BusUrl = "",
    *,
    name: Annotated[
        str, typer.Option(metavar="PATTERN", help="Only names that match, such as `compute-*`.")
    ] = "*",
    cell: Annotated[
        str, typer.Option(help="Only providers of this cell.", autocompletion=complete_cells)
    ] = "",
    trait: Annotated[
        list[str] | None, typer.Option(help="Only providers with this trait; may be repeated.")
    ] = None,
    aggregate: Annotated[
        str,
        typer.Option(metavar=ID, help="Only members of this aggregate.", autocompletion=complete_aggregates),
    ] = "",
    roots: Annotated[bool, typer.Option("--roots", help="Only the roots of trees.")] = False,
    _output: Output = None,
) -> None:
    """List all providers, each below the root of its tree."""

    async def work(asking: CommandClient) -> tuple[list[ProviderState], list[AggregateId]]:
        wanted = await aggregate_ids(asking, [aggregate]) if aggregate else []
        return await providers_of(asking), wanted

    everything, wanted = ask_bus(bus, work)
    check_known("--cell", cell, (each.cell for each in everything))
    for one in trait or ():
        check_known("--trait", one, (name for each in everything for name in each.traits))
    names = {each.id: each.name for each in everything}
    found = [
        each
        for each in everything
        if fnmatchcase(each.name, name)
        and cell in ("", each.cell)
        and set(trait or ()) <= {*each.traits}
        and set(wanted) <= {*each.aggregates}
        and not (roots and each.parent is not None)
    ]
    found.sort(key=lambda each: (names[each.root], each.parent is not None, each.name))
    print_all(found, PROVIDERS, "no providers")


@app.command()
def show(which: ProviderName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show one provider: its place in the tree, traits, aggregates and inventories."""
    everything = ask_bus(bus, providers_of)
    print_one(found_in(everything, which), partial(print_provider, tree=everything))


@app.command()
def tree(which: ProviderName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show the whole tree that a provider belongs to."""
    everything = ask_bus(bus, providers_of)
    root = found_in(everything, which).root
    members = [each for each in everything if each.root == root]
    print_one(members, lambda tree: out.print(tree_of(tree)))


@app.command()
def inventory(which: ProviderName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show a provider's inventory of each class: amount, usage, and the limits of one claim."""
    provider = found_in(ask_bus(bus, providers_of), which)
    if wants_document():
        print_json({name: plain(stock) for name, stock in provider.inventories.items()})
    elif provider.inventories:
        print_inventories(provider)
    else:
        say(f"{provider.name} has no inventory")


@app.command()
def holders(which: ProviderName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """List the consumers that hold something of a provider."""

    async def work(asking: CommandClient) -> tuple[ProviderState, list[ConsumerState]]:
        provider = found_in(await providers_of(asking), which)
        question = AskHolders(provider=provider.id)
        return provider, await items_of(asking, question, HoldersFound, lambda page: page.holders)

    provider, found = ask_bus(bus, work)
    nothing = f"no consumer holds anything of {provider.name}"
    print_all(found, holder_columns(provider), nothing)


app.add_typer(orders)
