"""`moor provider`: shows placement's providers, inventories and their holders; creates, changes and deletes them."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any
from uuid import UUID

import click
import msgspec
from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from engine.inventories import ProviderId, capacity_of, near, standard_vocabulary
from moor.client import Client, ConsumerState, NotFound, ProviderState, ReportedInventory
from moor.flags import Commands, argument, option
from moor.options import ID, BusUrl, Output, out, put_once, say, wants_document, with_client, wrong_value
from moor.resource_commands import commands_of, completes
from moor.resources import AGGREGATE, CELL, CLASS, INVENTORIES, PROVIDER, TRAIT, ResourceKind
from moor.showing import grid_of, plain, print_all, print_json, print_one
from moor.tables import Columns, print_table

ProviderName = Annotated[
    str,
    argument(metavar="PROVIDER", help="A provider's name or id.", completes=completes(PROVIDER)),
]
# The keys of an inventory on the command line.
FIELDS: dict[str, tuple[str, type[int] | type[float]]] = {
    "reserved": ("reserved", int),
    "ratio": ("allocation_ratio", float),
    "min": ("min_unit", int),
    "max": ("max_unit", int),
    "step": ("step_size", int),
}


def amount_from(text: str) -> tuple[str, ReportedInventory]:
    """Parse the inventory of a class, CLASS=TOTAL[,reserved=N]... An error names the text and its wrong part."""
    first, *rest = text.split(",")
    resource, _, total = first.partition("=")
    written: dict[str, Any] = {"total": _number(text, "the total", total, int)}
    for part in rest:
        key, _, value = part.partition("=")
        if key not in FIELDS:
            raise click.BadParameter(f"{text!r}: {key!r} must be one of {', '.join(FIELDS)}")
        field, kind = FIELDS[key]
        put_once(written, field, _number(text, key, value, kind), repr(text))
    with wrong_value(f"{text!r}: "):
        return resource, msgspec.convert(written, ReportedInventory)


def _number(text: str, what: str, value: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(value)
    except ValueError:
        raise click.BadParameter(f"{text!r}: {what} is {value!r}, must be a number") from None


app = commands_of(
    PROVIDER,
    "Resource providers: show their trees, inventories and holders; create, change and delete them.",
)


@app.verb("list")
def list_providers(
    bus: BusUrl = "",
    *,
    name: Annotated[str, option(metavar="PATTERN", help="Only names that match, such as `compute-*`.")] = "*",
    cell: Annotated[str, option(help="Only providers of this cell.", completes=completes(CELL))] = "",
    trait: Annotated[
        list[str] | None, option(help="Only providers with this trait; may be repeated.")
    ] = None,
    aggregate: Annotated[
        str,
        option(metavar=ID, help="Only members of this aggregate.", completes=completes(AGGREGATE)),
    ] = "",
    roots: Annotated[bool, option("--roots", help="Only the roots of trees.")] = False,
    _output: Output = None,
) -> None:
    """List all providers, each below the root of its tree."""

    async def work(moor: Client) -> list[ProviderState]:
        everything = await moor.list_providers()
        names = {each.id: each.name for each in everything}
        if cell and cell not in {each.cell for each in everything}:
            await moor.show_cell(cell)
        for one in trait or ():
            if not any(one in each.traits for each in everything):
                known = {name for each in everything for name in each.traits}
                raise NotFound("provider with trait", one, near=near(one, known))
        wanted = {(await moor.show_aggregate(aggregate)).id} if aggregate else set()
        found = [
            each
            for each in everything
            if fnmatchcase(each.name, name)
            and cell in ("", each.cell)
            and set(trait or ()) <= {*each.traits}
            and wanted <= {*each.aggregates}
            and not (roots and each.parent is not None)
        ]
        return sorted(found, key=lambda each: (names[each.root], each.parent is not None, each.name))

    print_all(with_client(bus, work, operates=True), PROVIDER.columns, "no providers")


async def _tree(moor: Client, which: str) -> tuple[ProviderState, list[ProviderState]]:
    """A provider, and all of the tree that it belongs to."""
    provider = await moor.show_provider(which)
    return provider, [each for each in await moor.list_providers() if each.root == provider.root]


@app.verb()
def show(which: ProviderName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show one provider: its place in the tree, traits, aggregates and inventories."""
    provider, tree = with_client(bus, lambda moor: _tree(moor, which), operates=True)
    print_one(provider, lambda each: print_provider(each, tree), PROVIDER.columns)


@app.verb()
def tree(which: ProviderName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show the whole tree that a provider belongs to."""
    _, members = with_client(bus, lambda moor: _tree(moor, which), operates=True)
    print_one(members, lambda tree: out.print(tree_of(tree)))


@app.verb()
def inventory(which: ProviderName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show a provider's inventory of each class: amount, usage, and the limits of one claim."""
    provider = with_client(bus, lambda moor: moor.show_provider(which), operates=True)
    if wants_document():
        print_json({name: plain(stock) for name, stock in provider.inventories.items()})
    elif provider.inventories:
        print_table(sorted(provider.inventories.items()), INVENTORIES)
    else:
        say(f"{provider.name} has no inventory")


@app.verb()
def holders(which: ProviderName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """List the consumers that hold something of a provider."""

    async def work(moor: Client) -> tuple[ProviderState, list[ConsumerState]]:
        provider = await moor.show_provider(which)
        return provider, await moor.list_holders(provider.id)

    provider, found = with_client(bus, work, operates=True)
    columns = Columns[ConsumerState](
        {
            "id": lambda each: str(each.id),
            "type": lambda each: each.type,
            "project": lambda each: each.project,
            "user": lambda each: each.user,
            "holds": lambda each: ", ".join(
                f"{amount.amount} {amount.resource}" for amount in each.held if amount.provider == provider.id
            ),
        },
        prose=("holds",),
    )
    print_all(found, columns, f"no consumer holds anything of {provider.name}")


Parent = Annotated[str, option(metavar="PROVIDER", help="The parent provider.")]


@app.verb()
def create(
    name: Annotated[str, argument(metavar="NAME", help="The new provider's name.")],
    bus: BusUrl = "",
    *,
    parent: Parent = "",
    id_: Annotated[
        UUID | None,
        option("--id", show_default=False, help="The new provider's id. Default: a random one."),
    ] = None,
    cell: Annotated[str, option(help="The cell that it belongs to, if any.")] = "",
    _output: Output = None,
) -> None:
    """Create a provider without inventory, traits and aggregates."""
    _print_changed(bus, lambda moor: moor.create_provider(name, id_=id_, parent=parent, cell=cell))


@app.verb()
def rename(
    which: ProviderName,
    name: Annotated[str, argument(metavar="NAME", help="Its new name.")],
    bus: BusUrl = "",
    *,
    _output: Output = None,
) -> None:
    """Rename a provider."""
    _print_changed(bus, lambda moor: moor.set_provider(which, name=name))


@app.verb()
def move(
    which: ProviderName,
    bus: BusUrl = "",
    *,
    parent: Parent = "",
    alone: Annotated[bool, option("--alone", help="Make it the root of its own tree.")] = False,
    _output: Output = None,
) -> None:
    """Move a provider and its children: below --parent, or to the root of its own tree by --alone."""
    if bool(parent) == alone:
        raise click.BadParameter("give either --parent PROVIDER or --alone")
    _print_changed(bus, lambda moor: moor.set_provider(which, parent=parent))


set_app = Commands("Replace all inventory, all traits or all aggregates of a provider.")
app.add_command(set_app, "set")


@set_app.verb("inventory")
def set_inventory(
    which: ProviderName,
    stocks: Annotated[
        list[str],
        argument(
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
    _print_changed(bus, lambda moor: moor.set_provider(which, inventories=amounts))


@set_app.verb("traits")
def set_traits(
    which: ProviderName,
    traits: Annotated[
        list[str] | None,
        argument(metavar="TRAIT...", help="All traits of the provider; traits not named are removed."),
    ] = None,
    bus: BusUrl = "",
    *,
    _output: Output = None,
) -> None:
    """Replace a provider's traits."""
    _print_changed(bus, lambda moor: moor.set_provider(which, traits=traits or ()))


@set_app.verb("aggregates")
def set_aggregates(
    which: ProviderName,
    aggregates: Annotated[
        list[str] | None,
        argument(
            metavar=f"{ID}...",
            help="All aggregates of the provider; aggregates not named are removed.",
        ),
    ] = None,
    bus: BusUrl = "",
    *,
    _output: Output = None,
) -> None:
    """Replace a provider's aggregates."""
    _print_changed(bus, lambda moor: moor.set_provider(which, aggregates=aggregates or ()))


def _print_changed(bus: str, change: Callable[[Client], Awaitable[ProviderState]]) -> None:
    print_one(with_client(bus, change, operates=True), PROVIDER.columns)


# How many traits a tree shows for each provider; a list shows none.
TRAITS_MAX = 4


def print_provider(provider: ProviderState, tree: Sequence[ProviderState]) -> None:
    """Print all fields of a provider; its parent and root are shown by name."""
    names = {each.id: each.name for each in tree}
    grid = grid_of(
        ("provider", str(provider.id)),
        ("name", escape(provider.name)),
        ("below", "" if provider.parent is None else escape(names[provider.parent])),
        ("tree", "" if provider.parent is None else escape(names[provider.root])),
        ("cell", provider.cell),
        ("generation", f"{provider.generation}, its tree's shape {provider.shape}"),
        ("traits", ", ".join(provider.traits)),
        ("aggregates", ", ".join(map(str, provider.aggregates))),
        ("by hand", "no report has named it" if provider.made_by_name else ""),
    )
    out.print(grid)
    if provider.inventories:
        out.print()
        print_table(sorted(provider.inventories.items()), INVENTORIES)


def tree_of(providers: Sequence[ProviderState]) -> Tree:
    """Draw one tree: each provider below its parent."""
    below: dict[ProviderId | None, list[ProviderState]] = {}
    for each in providers:
        below.setdefault(each.parent, []).append(each)
    (root,) = below[None]
    drawn = Tree(_node(root), guide_style="dim")
    _grow(drawn, root, below)
    return drawn


def _grow(drawn: Tree, parent: ProviderState, below: Mapping[ProviderId | None, list[ProviderState]]) -> None:
    for child in sorted(below.get(parent.id, ()), key=lambda each: each.name):
        _grow(drawn.add(_node(child)), child, below)


def _node(provider: ProviderState) -> Text:
    stocks = [
        f"{resource} {stock.used}/{capacity_of(stock)}"
        for resource, stock in sorted(provider.inventories.items())
    ]
    text = Text.assemble((provider.name, "bold"), "  ", "  ".join(stocks))
    if provider.traits:
        shown = ", ".join(provider.traits[:TRAITS_MAX])
        more = f" and {len(provider.traits) - TRAITS_MAX} more" if len(provider.traits) > TRAITS_MAX else ""
        text.append(f"  {shown}{more}", style="dim")
    return text


# `moor provider trait` and `moor provider class`: lists, creates and deletes custom traits and resource classes.


_NewName = Annotated[str, argument(metavar="NAME", help="CUSTOM_ and capitals, digits and underscores.")]


def _add_names(
    resource: ResourceKind[str],
    create: Callable[[Client, str], Awaitable[None]],
    standard: Callable[[], Collection[str]],
) -> None:
    names = commands_of(resource, f"Custom {resource.several}: list, create and delete them.")

    @names.verb("list", help=f"List the custom {resource.several}, ordered by name.")
    def listed(
        bus: BusUrl = "",
        *,
        every: Annotated[bool, option("--all", help="Also the standard ones.")] = False,
        _output: Output = None,
    ) -> None:
        found = with_client(bus, resource.list, operates=True)
        shown = [*found, *(sorted(standard()) if every else ())]
        print_all(shown, resource.columns, f"no custom {resource.several}")

    @names.verb(
        "create", help=f"Create one of the custom {resource.several}. Repeating the command is harmless."
    )
    def created(name: _NewName, bus: BusUrl = "", *, _output: Output = None) -> None:
        with_client(bus, lambda moor: create(moor, name), operates=True)
        print_one(name, resource.columns)

    app.add_command(names, resource.command.split()[-1])


_add_names(TRAIT, Client.create_trait, lambda: standard_vocabulary().traits)
_add_names(CLASS, Client.create_class, lambda: standard_vocabulary().classes)
