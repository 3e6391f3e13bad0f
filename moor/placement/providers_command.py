"""`moor provider`: shows placement's providers, inventories and their holders; creates, changes and deletes them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from operator import itemgetter
from typing import Annotated, Any
from uuid import UUID, uuid4

import click
import msgspec
from msgspec import Struct, structs
from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from bus.messages.administration import (
    AlreadyThere,
    AskHolders,
    AskNames,
    ConsumerState,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteClass,
    DeleteProvider,
    DeleteTrait,
    Done,
    GenerationMoved,
    HasChildren,
    HoldersFound,
    IdTaken,
    KindOfNames,
    NameInUse,
    NamesFound,
    NameTaken,
    ProviderWritten,
    SetAggregates,
    SetInventories,
    SetTraits,
    UnknownClass,
    UnknownProvider,
    UnknownTrait,
    UpdateProvider,
    Write,
    WriteAnswered,
)
from bus.messages.placement import InventoryInUse
from engine.inventories import (
    INTEGER_MAX,
    AggregateId,
    InventoryState,
    ProviderId,
    ProviderState,
    ReportedInventory,
    capacity_of,
)
from engine.refusals import NotAllowed
from moor.asking import PAGE, CommandClient, answer_of, ask_bus, asked_for_all, items_of, providers_of
from moor.completing import complete_aggregates, complete_cells, complete_providers
from moor.flags import Commands, argument, option
from moor.naming import (
    CUSTOM,
    NamedKind,
    aggregate_ids,
    one_of,
    standard_classes,
    standard_traits,
    unknown_with_near,
)
from moor.options import ID, BusUrl, Output, fail, out, put_once, say, wants_document, wrong_value
from moor.showing import check_known, grid_of, plain, print_all, print_json, print_one
from moor.tables import Columns, print_table

ProviderName = Annotated[
    str,
    argument(metavar="PROVIDER", help="A provider's name or id.", completes=complete_providers),
]
NAMED_PROVIDERS = NamedKind[ProviderState](
    "provider",
    "`moor provider list` shows all providers",
    lambda each: each.id,
    lambda each: each.name,
    lambda each: each.cell,
)
# The reason for each refusing verdict, filled from its fields.
REASONS: dict[type, str] = {
    NotAllowed: "{field}: {reason}",
    UnknownProvider: "{field} names provider {provider}, which does not exist",
    GenerationMoved: "provider {provider} was written meanwhile (generation {seen} was read, it is {current} now): run the"
    " command again",
    NameTaken: "{name!r} is already the name of provider {provider}",
    IdTaken: "provider {provider} already exists",
    NameInUse: "{name} is in use, by provider {provider}",
    HasChildren: "it has a child, provider {child}",
    InventoryInUse: "consumers hold {used} {resource} of provider {provider}",
}
# The keys of an inventory on the command line.
FIELDS: dict[str, tuple[str, type[int] | type[float]]] = {
    "reserved": ("reserved", int),
    "ratio": ("allocation_ratio", float),
    "min": ("min_unit", int),
    "max": ("max_unit", int),
    "step": ("step_size", int),
}


def found_in(providers: Iterable[ProviderState], name: str) -> ProviderState:
    """The provider with this id or name, or whose id begins like this. If there is none, end the command."""
    return one_of(NAMED_PROVIDERS, name, providers)


async def write(asking: CommandClient, order: Write) -> None:
    """Send the order. If placement refuses it, end the command with the reason."""
    verdict = (await answer_of(asking, order, WriteAnswered)).verdict
    if isinstance(verdict, UnknownClass | UnknownTrait):
        what = "resource class" if isinstance(verdict, UnknownClass) else "trait"
        fail(f"not done: there is no {what} {await unknown_with_near(asking, verdict.names)}")
    if not isinstance(verdict, ProviderWritten | Done | AlreadyThere):
        why = REASONS.get(type(verdict))
        # No order of these commands gets a verdict outside the table; if one does, print it as it is on the bus.
        reason = why.format(**structs.asdict(verdict)) if why else msgspec.json.encode(verdict).decode()
        fail(f"not done: {reason}")


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


app = Commands(
    "Resource providers: show their trees, inventories and holders; create, change and delete them."
)


@app.verb("list")
def list_providers(
    bus: BusUrl = "",
    *,
    name: Annotated[str, option(metavar="PATTERN", help="Only names that match, such as `compute-*`.")] = "*",
    cell: Annotated[str, option(help="Only providers of this cell.", completes=complete_cells)] = "",
    trait: Annotated[
        list[str] | None, option(help="Only providers with this trait; may be repeated.")
    ] = None,
    aggregate: Annotated[
        str,
        option(metavar=ID, help="Only members of this aggregate.", completes=complete_aggregates),
    ] = "",
    roots: Annotated[bool, option("--roots", help="Only the roots of trees.")] = False,
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


@app.verb()
def show(which: ProviderName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show one provider: its place in the tree, traits, aggregates and inventories."""
    everything = ask_bus(bus, providers_of)
    print_one(found_in(everything, which), partial(print_provider, tree=everything))


@app.verb()
def tree(which: ProviderName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show the whole tree that a provider belongs to."""
    everything = ask_bus(bus, providers_of)
    root = found_in(everything, which).root
    members = [each for each in everything if each.root == root]
    print_one(members, lambda tree: out.print(tree_of(tree)))


@app.verb()
def inventory(which: ProviderName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Show a provider's inventory of each class: amount, usage, and the limits of one claim."""
    provider = found_in(ask_bus(bus, providers_of), which)
    if wants_document():
        print_json({name: plain(stock) for name, stock in provider.inventories.items()})
    elif provider.inventories:
        print_inventories(provider)
    else:
        say(f"{provider.name} has no inventory")


@app.verb()
def holders(which: ProviderName, bus: BusUrl = "", *, _output: Output = None) -> None:
    """List the consumers that hold something of a provider."""

    async def work(asking: CommandClient) -> tuple[ProviderState, list[ConsumerState]]:
        provider = found_in(await providers_of(asking), which)
        question = AskHolders(provider=provider.id)
        return provider, await items_of(asking, question, HoldersFound, lambda page: page.holders)

    provider, found = ask_bus(bus, work)
    nothing = f"no consumer holds anything of {provider.name}"
    print_all(found, holder_columns(provider), nothing)


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
    new = ProviderId(id_ or uuid4())

    def order(everything: list[ProviderState]) -> Write:
        below = found_in(everything, parent).id if parent else None
        return CreateProvider(id=new, name=name, parent=below, of_cell=cell)

    _write(bus, order, str(new))


@app.verb()
def delete(which: ProviderName, bus: BusUrl = "") -> None:
    """Delete a provider. Refused while it has children or a consumer holds something of it."""
    _write(bus, lambda everything: DeleteProvider(id=found_in(everything, which).id))


@app.verb()
def rename(
    which: ProviderName,
    name: Annotated[str, argument(metavar="NAME", help="Its new name.")],
    bus: BusUrl = "",
) -> None:
    """Rename a provider."""
    _write(bus, lambda everything: UpdateProvider(id=found_in(everything, which).id, name=name), name)


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

    def order(everything: list[ProviderState]) -> Write:
        moved = found_in(everything, which)
        below = found_in(everything, parent).id if parent else None
        return UpdateProvider(id=moved.id, name=moved.name, parent=below)

    _write(bus, order, which)


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
    _set(
        bus,
        which,
        lambda of: SetInventories(**of, inventories=amounts),
    )


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
    _set(bus, which, lambda of: SetTraits(**of, traits=tuple(traits or ())))


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


BAR = 12
# How many traits a tree shows for each provider; a list shows none.
TRAITS_MAX = 4


def print_inventories(provider: ProviderState) -> None:
    """Print the usage, capacity and limits of each resource class of a provider."""
    print_table(sorted(provider.inventories.items()), INVENTORIES)


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
        print_inventories(provider)


def tree_of(providers: Sequence[ProviderState]) -> Tree:
    """Draw one tree: each provider below its parent."""
    below: dict[ProviderId | None, list[ProviderState]] = {}
    for each in providers:
        below.setdefault(each.parent, []).append(each)
    (root,) = below[None]
    drawn = Tree(_node(root), guide_style="dim")
    _grow(drawn, root, below)
    return drawn


def holder_columns(provider: ProviderState) -> Columns[ConsumerState]:
    return Columns(
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


def _grow(drawn: Tree, parent: ProviderState, below: Mapping[ProviderId | None, list[ProviderState]]) -> None:
    for child in sorted(below.get(parent.id, ()), key=lambda each: each.name):
        _grow(drawn.add(_node(child)), child, below)


def _node(provider: ProviderState) -> Text:
    text = Text.assemble((provider.name, "bold"), "  ", _in_short(provider))
    if provider.traits:
        shown = ", ".join(provider.traits[:TRAITS_MAX])
        more = f" and {len(provider.traits) - TRAITS_MAX} more" if len(provider.traits) > TRAITS_MAX else ""
        text.append(f"  {shown}{more}", style="dim")
    return text


def _in_short(provider: ProviderState) -> str:
    return "  ".join(
        f"{resource} {stock.used}/{capacity_of(stock)}"
        for resource, stock in sorted(provider.inventories.items())
    )


def _fullest(provider: ProviderState) -> str | Text:
    """The class with the highest usage in relation to its capacity."""
    shares = [
        (stock.used / max(1, capacity_of(stock)), f"{resource} {stock.used}/{capacity_of(stock)}")
        for resource, stock in sorted(provider.inventories.items())
        if stock.used
    ]
    return (
        max(shares, key=itemgetter(0))[1] if shares else Text("idle", "dim") if provider.inventories else ""
    )


def _formula(stock: ReportedInventory) -> str:
    left = f"{stock.total} - {stock.reserved}" if stock.reserved else str(stock.total)
    if stock.allocation_ratio == 1:
        return left
    return f"{f'({left})' if stock.reserved else left} x {stock.allocation_ratio:g}"


def _bounds(stock: ReportedInventory) -> str:
    most = "" if stock.max_unit == INTEGER_MAX else f" to {stock.max_unit}"
    step = "" if stock.step_size == 1 else f" by {stock.step_size}"
    return f"{stock.min_unit}{most or ' or more'}{step}"


def _bar(used: int, capacity: int) -> Text:
    filled = min(BAR, -(-BAR * used // capacity)) if capacity else 0
    colour = "red" if used > capacity else "yellow" if filled == BAR else "green"
    return Text.assemble(("█" * filled, colour), ("░" * (BAR - filled), "dim"))


PROVIDERS = Columns[ProviderState](
    {
        "name": lambda each: Text.assemble(("" if each.parent is None else "└ ", "dim"), each.name),
        "id": lambda each: str(each.id),
        "cell": lambda each: each.cell,
        "fullest": _fullest,
    },
    ids={"id": lambda _: True},
)
# Of each class and what there is of it.
INVENTORIES = Columns[tuple[str, InventoryState]](
    {
        "class": lambda each: each[0],
        "used": lambda each: str(each[1].used),
        "of": lambda each: str(capacity_of(each[1])),
        "": lambda each: _bar(each[1].used, capacity_of(each[1])),
        "calculated as": lambda each: _formula(each[1]),
        "one claim": lambda each: _bounds(each[1]),
    }
)


# `moor provider trait` and `moor provider class`: lists, creates and deletes custom traits and resource classes.


class NameShown(Struct, frozen=True):
    name: str
    kind: str


NAMES = Columns[NameShown]({"name": lambda each: each.name, "kind": lambda each: each.kind})

_NewName = Annotated[str, argument(metavar="NAME", help="CUSTOM_ and capitals, digits and underscores.")]
_Name = Annotated[str, argument(metavar="NAME", help="The name, with CUSTOM_.")]


def _app_of(
    what: str,
    of: KindOfNames,
    create: Callable[[str], Write],
    delete: Callable[[str], Write],
    standard: Callable[[], list[str]],
) -> Commands:
    app = Commands(f"Custom {what}: list, create and delete them.")

    @app.verb("list", help=f"List the custom {what}, ordered by name.")
    def list_names(
        bus: BusUrl = "",
        *,
        every: Annotated[bool, option("--all", help="Also the standard ones.")] = False,
        _output: Output = None,
    ) -> None:
        custom = asked_for_all(bus, AskNames(of=of, limit=PAGE), NamesFound, lambda page: page.names)
        shown = [NameShown(name, "custom") for name in custom]
        if every:
            shown += [NameShown(name, "standard") for name in sorted(standard())]
        print_all(shown, NAMES, f"no custom {what}")

    @app.verb("create", help=f"Create one of the custom {what}. Repeating the command is harmless.")
    def create_name(name: _NewName, bus: BusUrl = "", *, _output: Output = None) -> None:
        _check_custom(name)
        ask_bus(bus, lambda asking: write(asking, create(name)))
        print_one(NameShown(name, "custom"), NAMES)

    @app.verb("delete", help=f"Delete one of the custom {what}. Refused while a provider has it.")
    def delete_name(name: _Name, bus: BusUrl = "", *, _output: Output = None) -> None:
        _check_custom(name)
        ask_bus(bus, lambda asking: write(asking, delete(name)))
        print_one(NameShown(name, "custom"), lambda gone: say(f"deleted {gone.name}"))

    return app


def _check_custom(name: str) -> None:
    if not name.startswith(CUSTOM):
        raise click.BadParameter(
            f"NAME is {name!r}, must begin with {CUSTOM}: only such can be created and deleted"
        )


app.add_command(
    _app_of(
        "traits",
        "traits",
        lambda name: CreateTrait(name=name),
        lambda name: DeleteTrait(name=name),
        standard_traits,
    ),
    "trait",
)
app.add_command(
    _app_of(
        "resource classes",
        "classes",
        lambda name: CreateClass(name=name),
        lambda name: DeleteClass(name=name),
        standard_classes,
    ),
    "class",
)
