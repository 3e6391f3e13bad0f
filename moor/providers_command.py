"""`moor provider`: shows placement's providers, inventories and their holders."""

from fnmatch import fnmatchcase
from typing import Annotated
from uuid import UUID

import typer

from bus.messages.administration import AskHolders, ConsumerState, HoldersFound
from bus.messages.placement import ProviderState
from moor.client import client
from moor.options import AsJson, BusUrl, command_settings, out, run
from moor.providers import ProviderName, found_in, providers_of
from moor.providers_orders import app as orders
from moor.providers_showing import (
    holders_table,
    inventories_table,
    print_provider,
    providers_table,
    tree_of,
)
from moor.showing import check_known, plain, print_json
from moor.tables import print_table

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
    cell: Annotated[str, typer.Option(help="Only providers of this cell.")] = "",
    trait: Annotated[
        list[str] | None, typer.Option(help="Only providers with this trait; may be repeated.")
    ] = None,
    aggregate: Annotated[UUID | None, typer.Option(help="Only members of this aggregate.")] = None,
    roots: Annotated[bool, typer.Option("--roots", help="Only the roots of trees.")] = False,
    as_json: AsJson = False,
) -> None:
    """List all providers, each below the root of its tree."""
    everything = run(_all(bus))
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
        and (aggregate is None or aggregate in each.aggregates)
        and not (roots and each.parent is not None)
    ]
    found.sort(key=lambda each: (names[each.root], each.parent is not None, each.name))
    if as_json:
        print_json([plain(each) for each in found])
    elif found:
        print_table(providers_table(found))
    else:
        out.print("no providers")


@app.command()
def show(which: ProviderName, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """Show one provider: its place in the tree, traits, aggregates and inventories."""
    everything = run(_all(bus))
    provider = found_in(everything, which)
    if as_json:
        print_json(plain(provider))
    else:
        print_provider(provider, everything)


@app.command()
def tree(which: ProviderName, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """Show the whole tree that a provider belongs to."""
    everything = run(_all(bus))
    root = found_in(everything, which).root
    members = [each for each in everything if each.root == root]
    if as_json:
        print_json([plain(each) for each in members])
    else:
        out.print(tree_of(members))


@app.command()
def inventory(which: ProviderName, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """Show a provider's inventory of each class: amount, usage, and the limits of one claim."""
    provider = found_in(run(_all(bus)), which)
    if as_json:
        print_json({name: plain(stock) for name, stock in provider.inventories.items()})
    elif provider.inventories:
        print_table(inventories_table(provider))
    else:
        out.print(f"{provider.name} has no inventory", markup=False)


@app.command()
def holders(which: ProviderName, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """List the consumers that hold something of a provider."""

    async def work() -> tuple[ProviderState, list[ConsumerState]]:
        async with client(command_settings(bus=bus), operates=True) as asking:
            provider = found_in(await providers_of(asking), which)
            found: list[ConsumerState] = []
            question = AskHolders(provider=provider.id)
            while True:
                page = await asking.ask(question)
                assert isinstance(page, HoldersFound), f"a question for holders was answered by {page!r}"
                found += page.holders
                if page.next is None:
                    return provider, found
                question = AskHolders(provider=provider.id, after=page.next)

    provider, held_by = run(work())
    if as_json:
        print_json([plain(each) for each in held_by])
    elif held_by:
        print_table(holders_table(provider, held_by))
    else:
        out.print(f"no consumer holds anything of {provider.name}", markup=False)


async def _all(bus: str) -> list[ProviderState]:
    async with client(command_settings(bus=bus), operates=True) as asking:
        return await providers_of(asking)


app.add_typer(orders)
