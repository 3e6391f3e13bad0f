"""What is done by name: rules said once more, plainly, for whoever checks.

`apply` does to the pages what a write asks, and tells each reason why it should not have been done.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import UNSET, structs

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import (
    ConsumerAllocations,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteAllocations,
    DeleteClass,
    DeleteProvider,
    DeleteTrait,
    DropInventory,
    PutInventory,
    RenameClass,
    Reshape,
    SetAggregates,
    SetAllocations,
    SetInventories,
    SetTraits,
    UpdateProvider,
    Write,
)
from bus.messages.placement import ReportedInventory
from tests.simulation.pages import Holding, Pages, Plot, Stock, summed

GENERATIONS = "a write is judged by the generation it names"
TREES = "trees stay trees"
HELD = "what is held stays"
CAPACITY = "capacity is law"
BOUNDS = "an amount keeps the bounds of its inventory"
SUMS = "a reshape moves, and changes nobody's sums"
NAMES = "names are somebody's"
Wrong = Iterator[tuple[str, str]]


def apply(pages: Pages, write: Write) -> Wrong:
    match write:
        case CreateProvider() | UpdateProvider() | DeleteProvider():
            yield from _place(pages, write)
        case SetInventories() | PutInventory() | DropInventory() | SetTraits() | SetAggregates():
            yield from _equip(pages, write)
        case SetAllocations(consumers=consumers):
            yield from _allocate(pages, consumers)
        case DeleteAllocations(consumer=consumer):
            if pages.holdings.pop(consumer, None) is None:
                yield HELD, "it held nothing"
        case Reshape():
            yield from _reshape(pages, write)
        case _:
            yield from _name(pages, write)


def _place(pages: Pages, write: CreateProvider | UpdateProvider | DeleteProvider) -> Wrong:
    plots = pages.plots
    if isinstance(write, CreateProvider):
        if write.id in plots:
            yield TREES, "it was there already"
        yield from _named(pages, write.id, write.name)
        if write.parent is not None and write.parent not in plots:
            yield TREES, "its parent is not there"
        plots[write.id] = Plot(write.name, write.parent)
        return
    if write.id not in plots:
        yield TREES, "there is no such provider"
        return
    if isinstance(write, DeleteProvider):
        if any(plot.parent == write.id for plot in plots.values()):
            yield TREES, "it has children"
        if holder := next(pages.holders_of(write.id), None):
            yield HELD, f"{holder} holds something of it"
        del plots[write.id]
        return
    yield from _named(pages, write.id, write.name)
    before = plots[write.id]
    parent = before.parent if write.parent is UNSET else write.parent
    if parent is not None and (parent not in plots or write.id in pages.ancestors(parent)):
        yield TREES, "its parent is not there, or stands below it"
        return
    if not write.reparents and parent != before.parent is not None:
        yield TREES, "it was not to be taken from its parent"
    plots[write.id] = structs.replace(before, name=write.name, parent=parent)


def _named(pages: Pages, provider: ProviderId, name: str) -> Wrong:
    if any(plot.name == name and each != provider for each, plot in pages.plots.items()):
        yield NAMES, f"another is called {name}"


def _equip(
    pages: Pages, write: SetInventories | PutInventory | DropInventory | SetTraits | SetAggregates
) -> Wrong:
    before = pages.plots.get(write.provider)
    if before is None:
        yield TREES, "there is no such provider"
        return
    if not isinstance(write, DropInventory) and write.generation not in (None, before.generation):
        yield GENERATIONS, f"it was at {before.generation}"
    match write:
        case SetTraits(traits=traits):
            is_moved = before.traits != frozenset(traits)
            after = structs.replace(before, traits=frozenset(traits), generation=before.generation + is_moved)
        case SetAggregates(aggregates=aggregates, moves_generation=is_moved):
            after = structs.replace(
                before, aggregates=frozenset(aggregates), generation=before.generation + is_moved
            )
        case _:
            inventories = _restocked(before.inventories, write)
            yield from _lost(pages, write.provider, before.inventories, inventories)
            after = structs.replace(before, inventories=inventories, generation=before.generation + 1)
    pages.plots[write.provider] = after


def _restocked(
    before: Mapping[str, ReportedInventory], write: SetInventories | PutInventory | DropInventory
) -> dict[str, ReportedInventory]:
    match write:
        case SetInventories(inventories=inventories):
            return dict(inventories)
        case PutInventory(resource=resource, inventory=inventory):
            return {**before, resource: inventory}
        case DropInventory(resource=gone):
            return {resource: each for resource, each in before.items() if resource != gone}


def _lost(pages: Pages, provider: ProviderId, before: Iterable[str], after: Mapping[str, object]) -> Wrong:
    for resource in before:
        if resource not in after and (holder := next(pages.holders_of(provider, resource), None)):
            yield HELD, f"{holder} holds {resource} of it"


def _allocate(pages: Pages, consumers: Sequence[ConsumerAllocations]) -> Wrong:
    before = {one.consumer: pages.holdings.get(one.consumer) for one in consumers}
    sums = pages.sums()
    for one in consumers:
        was = before[one.consumer]
        current = was.generation if was else None
        if one.judges_generation and one.generation != current:
            yield GENERATIONS, f"{one.consumer} was at {current}"
        amounts = summed(one.amounts)
        if amounts:
            pages.holdings[one.consumer] = Holding((current or 0) + 1, amounts)
        else:
            pages.holdings.pop(one.consumer, None)
    # Each provider of which one of them holds something now, or held something that has gone, moves by one.
    gaining = {
        provider for one in consumers for provider, _ in summed(one.amounts) or _held(before[one.consumer])
    }
    for provider in gaining & pages.plots.keys():
        plot = pages.plots[provider]
        pages.plots[provider] = structs.replace(plot, generation=plot.generation + 1)
    yield from _out_of_bounds(pages, consumers)
    yield from _overfull(pages, sums)


def _overfull(pages: Pages, before: Mapping[Stock, int]) -> Wrong:
    """Stocks that were added to, and hold less than that, or in other portions."""
    for stock, held in pages.sums().items():
        plot = pages.plots.get(stock[0])
        inventory = plot.inventories.get(stock[1]) if plot else None
        if inventory is None:
            yield CAPACITY, f"there is no {stock[1]} of {stock[0]}"
        elif held > before.get(stock, 0) and held > capacity(inventory):
            yield CAPACITY, f"of {capacity(inventory)} {stock[1]} {held} is held"


def _out_of_bounds(pages: Pages, consumers: Sequence[ConsumerAllocations]) -> Wrong:
    for one in consumers:
        for (provider, resource), amount in summed(one.amounts).items():
            plot = pages.plots.get(provider)
            inventory = plot.inventories.get(resource) if plot else None
            if inventory is not None and (rule := broken_bound(inventory, amount)):
                yield BOUNDS, f"{amount} {resource} of {provider} breaks {rule}"


def broken_bound(inventory: ReportedInventory, amount: int) -> str:
    """Which of the bounds of one amount this one breaks; none if it keeps all."""
    if amount < inventory.min_unit:
        return "min_unit"
    if amount > inventory.max_unit:
        return "max_unit"
    return "step_size" if amount % inventory.step_size else ""


def _held(holding: Holding | None) -> Mapping[Stock, int]:
    return holding.amounts if holding else {}


def capacity(inventory: ReportedInventory) -> int:
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)


def _reshape(pages: Pages, write: Reshape) -> Wrong:
    totals = _totals(pages, write)
    reshaped = []
    for one in write.inventories:
        before = pages.plots.get(one.provider)
        if before is None:
            yield TREES, "there is no such provider"
            continue
        if one.generation != before.generation:
            yield GENERATIONS, f"{one.provider} was at {before.generation}"
        reshaped.append(one.provider)
        # Once for what is put over the old, once for what stays.
        steps = 2 if one.inventories else 1
        pages.plots[one.provider] = structs.replace(
            before, inventories=dict(one.inventories), generation=before.generation + steps
        )
    yield from _allocate(pages, write.allocations)
    if totals != _totals(pages, write):
        yield SUMS, f"before it was {totals}"


def _totals(pages: Pages, reshape: Reshape) -> dict[tuple[ConsumerId, str], int]:
    """How much of which class each of its consumers holds, wherever."""
    sums: dict[tuple[ConsumerId, str], int] = {}
    for one in reshape.allocations:
        for (_, resource), amount in _held(pages.holdings.get(one.consumer)).items():
            sums[one.consumer, resource] = sums.get((one.consumer, resource), 0) + amount
    return sums


def _name(pages: Pages, write: Write) -> Wrong:
    match write:
        case CreateTrait(name=name):
            pages.traits.add(name)
        case CreateClass(name=name):
            pages.classes.add(name)
        case DeleteTrait(name=name):
            if any(name in plot.traits for plot in pages.plots.values()):
                yield NAMES, "a provider has it"
            pages.traits.discard(name)
        case DeleteClass(name=name) | RenameClass(name=name):
            if any(name in plot.inventories for plot in pages.plots.values()):
                yield NAMES, "a provider has it"
            pages.classes.discard(name)
            if isinstance(write, RenameClass):
                pages.classes.add(write.to)
