"""Prints providers, their inventories and their holders as tables and trees."""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from bus.message import ProviderId
from bus.messages.administration import ConsumerState, TypeUsage
from bus.messages.candidates import Candidate
from bus.messages.placement import INTEGER_MAX, InventoryState, ProviderState
from moor.options import out
from moor.showing import grid_of
from moor.tables import Rows, print_table, table_of
from placement_worker.core.capacity import capacity_of

BAR = 12
# How many traits a tree shows for each provider; a list shows none.
TRAITS_MAX = 4


def providers_table(providers: Iterable[ProviderState]) -> Rows:
    table = table_of("name", "id", "cell", "fullest")
    for each in providers:
        name = escape(each.name) if each.parent is None else f"[dim]└[/dim] {escape(each.name)}"
        table.add_row(name, str(each.id), each.cell, _fullest(each))
    return table


def inventories_table(provider: ProviderState) -> Rows:
    """Usage, capacity and limits of each class."""
    table = table_of("class", "used", "of", "", "calculated as", "one claim")
    for resource, stock in sorted(provider.inventories.items()):
        capacity = capacity_of(stock)
        table.add_row(
            resource,
            str(stock.used),
            str(capacity),
            _bar(stock.used, capacity),
            _formula(stock),
            _bounds(stock),
        )
    return table


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
    )
    out.print(grid, highlight=False)
    if provider.inventories:
        out.print()
        print_table(inventories_table(provider))


def tree_of(providers: Sequence[ProviderState]) -> Tree:
    """Draw one tree: each provider below its parent."""
    below: dict[ProviderId | None, list[ProviderState]] = {}
    for each in providers:
        below.setdefault(each.parent, []).append(each)
    (root,) = below[None]
    drawn = Tree(_node(root), guide_style="dim")
    _grow(drawn, root, below)
    return drawn


def holders_table(provider: ProviderState, holders: Iterable[ConsumerState]) -> Rows:
    table = table_of("id", "type", "project", "user", "holds", prose=("holds",))
    for each in holders:
        held = ", ".join(
            f"{amount.amount} {amount.resource}" for amount in each.held if amount.provider == provider.id
        )
        table.add_row(str(each.id), escape(each.type), escape(each.project), escape(each.user), held)
    return table


def usages_table(usages: Sequence[TypeUsage]) -> Rows:
    """One row per type of consumer, and a row with the totals if there are several types."""
    resources = sorted({resource for each in usages for resource in each.used})
    table = table_of("consumers", "", *resources)
    for each in usages:
        table.add_row(escape(each.type or "unknown"), str(each.consumers), *_numbers(each.used, resources))
    if len(usages) > 1:
        total = {name: sum(each.used.get(name, 0) for each in usages) for name in resources}
        table.add_row(
            "[bold]all[/bold]", str(sum(each.consumers for each in usages)), *_numbers(total, resources)
        )
    return table


def candidates_table(found: Iterable[Candidate], names: Mapping[ProviderId, str]) -> Rows:
    """One row per candidate: what each provider gives, and for which request group if there are several."""
    table = table_of("host", "gives", prose=("gives",))
    for each in found:
        table.add_row(escape(_name(each.share.host, names)), escape(_given(each, names)))
    return table


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
    """The provider's name; its id if it was created or deleted between the two questions."""
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


def _fullest(provider: ProviderState) -> str:
    """The class with the highest usage in relation to its capacity."""
    shares = [
        (stock.used / max(1, capacity_of(stock)), f"{resource} {stock.used}/{capacity_of(stock)}")
        for resource, stock in sorted(provider.inventories.items())
        if stock.used
    ]
    return max(shares, key=itemgetter(0))[1] if shares else "[dim]idle[/dim]" if provider.inventories else ""


def _formula(stock: InventoryState) -> str:
    left = f"{stock.total} - {stock.reserved}" if stock.reserved else str(stock.total)
    if stock.allocation_ratio == 1:
        return left
    return f"{f'({left})' if stock.reserved else left} x {stock.allocation_ratio:g}"


def _bounds(stock: InventoryState) -> str:
    most = "" if stock.max_unit == INTEGER_MAX else f" to {stock.max_unit}"
    step = "" if stock.step_size == 1 else f" by {stock.step_size}"
    return f"{stock.min_unit}{most or ' or more'}{step}"


def _bar(used: int, capacity: int) -> str:
    filled = min(BAR, -(-BAR * used // capacity)) if capacity else 0
    colour = "red" if used > capacity else "yellow" if filled == BAR else "green"
    return f"[{colour}]{'█' * filled}[/{colour}][dim]{'░' * (BAR - filled)}[/dim]"


def _numbers(used: Mapping[str, int], resources: Sequence[str]) -> list[str]:
    return [str(used.get(name, 0)) for name in resources]
