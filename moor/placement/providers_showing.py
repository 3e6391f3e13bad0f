"""Prints providers, their inventories and their holders as tables and trees."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter

from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from bus.messages.administration import Candidate, ConsumerState, TypeUsage
from engine.capacity import capacity_of
from engine.inventories import INTEGER_MAX, InventoryState, ProviderId, ProviderState, ReportedInventory
from moor.options import out
from moor.showing import grid_of
from moor.tables import Columns, print_table

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


def print_usages(usages: Sequence[TypeUsage]) -> None:
    """One row per type of consumer, and a row with the totals if there are several types."""
    resources = sorted({resource for each in usages for resource in each.used})
    table = [(Text(each.type or "unknown"), each.consumers, each.used) for each in usages]
    if len(usages) > 1:
        total = {name: sum(each.used.get(name, 0) for each in usages) for name in resources}
        table.append((Text("all", "bold"), sum(each.consumers for each in usages), total))
    of_classes = {name: partial(_amount_of, name) for name in resources}
    print_table(table, Columns({"consumers": itemgetter(0), "": lambda row: str(row[1]), **of_classes}))


def _amount_of(resource: str, row: tuple[Text, int, Mapping[str, int]]) -> str:
    return str(row[2].get(resource, 0))


def candidate_columns(names: Mapping[ProviderId, str]) -> Columns[Candidate]:
    """The table of candidates: what each provider gives, and for which request group if there are several."""
    return Columns(
        {
            "host": lambda each: _name(each.share.host, names),
            "gives": lambda each: _given(each, names),
        },
        prose=("gives",),
    )


def _given(candidate: Candidate, names: Mapping[ProviderId, str]) -> str:
    by_giver: dict[ProviderId, list[str]] = {}
    for amount in candidate.share.amounts:
        by_giver.setdefault(amount.provider, []).append(f"{amount.amount} {amount.resource}")
    parts = {
        giver: ", ".join(
            sorted(suffix for suffix, givers in candidate.mappings.items() if suffix and giver in givers)
        )
        for giver in by_giver
    }
    return "; ".join(
        f"{_name(giver, names)}: {', '.join(amounts)}" + (f" for {parts[giver]}" if parts[giver] else "")
        for giver, amounts in by_giver.items()
    )


def _name(provider: ProviderId, names: Mapping[ProviderId, str]) -> str:
    """The provider's name. Its id if `names` lacks it: `names` was read a moment before or after the provider."""
    return names.get(provider, str(provider))


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
