"""`moor provider`: what placement keeps books of, asked on the bus."""

from fnmatch import fnmatchcase
from typing import Annotated
from uuid import UUID

import typer

from bus.messages.administration import AskHolders, ConsumerState, HoldersFound
from bus.messages.placement import ProviderState
from moor.client import client
from moor.options import AsJson, BusUrl, out, run, settled
from moor.providers import Which, found_in, providers_of
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
    help="Providers: what there is, in which trees, who holds it; and an operator's word on it.",
)


@app.command("list")
def list_providers(
    bus: BusUrl = "",
    *,
    name: Annotated[str, typer.Option(metavar="PATTERN", help="Only such names: `compute-*`.")] = "*",
    cell: Annotated[str, typer.Option(help="Only those of this cell.")] = "",
    trait: Annotated[list[str] | None, typer.Option(help="Only those that have it; may be repeated.")] = None,
    aggregate: Annotated[UUID | None, typer.Option(help="Only its members.")] = None,
    roots: Annotated[bool, typer.Option("--roots", help="Only the roots of trees.")] = False,
    as_json: AsJson = False,
) -> None:
    """All providers, each below its tree's root."""
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
def show(which: Which, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """One provider: its place, traits, aggregates, and what it has of each class."""
    everything = run(_all(bus))
    provider = found_in(everything, which)
    if as_json:
        print_json(plain(provider))
    else:
        print_provider(provider, everything)


@app.command()
def tree(which: Which, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """The whole tree that it stands in."""
    everything = run(_all(bus))
    root = found_in(everything, which).root
    members = [each for each in everything if each.root == root]
    if as_json:
        print_json([plain(each) for each in members])
    else:
        out.print(tree_of(members))


@app.command()
def inventory(which: Which, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """What it has of each class, what of it is in use, and what one claim may ask for."""
    provider = found_in(run(_all(bus)), which)
    if as_json:
        print_json({name: plain(stock) for name, stock in provider.inventories.items()})
    elif provider.inventories:
        print_table(inventories_table(provider))
    else:
        out.print(f"{provider.name} has no inventory", markup=False)


@app.command()
def holders(which: Which, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """Who holds something of it."""

    async def work() -> tuple[ProviderState, list[ConsumerState]]:
        async with client(settled(bus=bus), operates=True) as asking:
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
        out.print(f"nobody holds anything of {provider.name}", markup=False)


async def _all(bus: str) -> list[ProviderState]:
    async with client(settled(bus=bus), operates=True) as asking:
        return await providers_of(asking)


app.add_typer(orders)
