"""What is refused by name: is the reason true, by what stood there before?"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from bus.messages.administration import (
    AlreadyThere,
    ConsumerMoved,
    CreateProvider,
    GenerationMoved,
    HasChildren,
    IdTaken,
    InventoryAbsent,
    InventoryPresent,
    NameInUse,
    NameTaken,
    Reshape,
    SetAllocations,
    UnknownClass,
    UnknownConsumer,
    UnknownProvider,
    UnknownTrait,
    UpdateProvider,
    Write,
    WriteVerdict,
)
from bus.messages.placement import DoesNotFit, InventoryInUse, NotAllowed, ReportedInventory, Shortfall
from tests.simulation.applying import broken_bound, capacity
from tests.simulation.pages import Pages, summed


def is_excused(pages: Pages, write: Write, verdict: WriteVerdict) -> bool:
    return _TRUTHS[type(verdict)](pages, write, verdict)


def _generation_moved(pages: Pages, _: Write, said: GenerationMoved) -> bool:
    plot = pages.plots.get(said.provider)
    return plot is not None and plot.generation == said.current != said.seen


def _consumer_moved(pages: Pages, _: Write, said: ConsumerMoved) -> bool:
    holding = pages.holdings.get(said.consumer)
    return (holding.generation if holding else None) == said.current != said.seen


def _name_taken(pages: Pages, _: Write, said: NameTaken) -> bool:
    return said.provider in pages.plots and pages.plots[said.provider].name == said.name


def _has_children(pages: Pages, _: Write, said: HasChildren) -> bool:
    return said.child in pages.plots and pages.plots[said.child].parent == said.provider


def _in_use(pages: Pages, write: Write, said: InventoryInUse) -> bool:
    # Of a reshape it is what its own allocations would leave there.
    is_held = isinstance(write, Reshape) or pages.used((said.provider, said.resource)) == said.used
    return said.used > 0 and is_held


def _does_not_fit(pages: Pages, write: Write, said: DoesNotFit) -> bool:
    return bool(said.shortfalls) and all(_is_short(pages, write, short) for short in said.shortfalls)


def _is_short(pages: Pages, write: Write, short: Shortfall) -> bool:
    """By what there is, what others hold, and what the write asks; a reshape's inventories count as it writes them."""
    stock = (short.provider, short.resource)
    inventory = _inventory(pages, write, short)
    if inventory is None:
        return short.rule == "no_inventory"
    if not isinstance(write, SetAllocations | Reshape):
        return False
    consumers = write.consumers if isinstance(write, SetAllocations) else write.allocations
    asked = [amount for one in consumers if (amount := summed(one.amounts).get(stock, 0))]
    held = [pages.holdings[one.consumer] for one in consumers if one.consumer in pages.holdings]
    given_back = sum(each.amounts.get(stock, 0) for each in held)
    if short.free != capacity(inventory) - pages.used(stock) + given_back:
        return False
    if short.rule != "capacity":
        return short.asked in asked and broken_bound(inventory, short.asked) == short.rule
    return short.asked in (*asked, sum(asked)) and short.asked > max(short.free, given_back)


def _inventory(pages: Pages, write: Write, short: Shortfall) -> ReportedInventory | None:
    plot = pages.plots.get(short.provider)
    found = dict(plot.inventories) if plot else {}
    for one in write.inventories if isinstance(write, Reshape) else ():
        found |= one.inventories if one.provider == short.provider else {}
    return found.get(short.resource)


def _name_in_use(pages: Pages, _: Write, said: NameInUse) -> bool:
    plot = pages.plots[said.provider]
    return said.name in plot.traits or said.name in plot.inventories


def _not_allowed(pages: Pages, write: Write, said: NotAllowed) -> bool:
    """Of what clerks ask, only the place of a provider may make no sense."""
    if isinstance(write, CreateProvider):
        return said.field == "parent" and write.parent == write.id
    if not isinstance(write, UpdateProvider) or said.field != "parent":
        return False
    is_kept = not write.reparents and pages.plots[write.id].parent is not None
    return is_kept or (isinstance(write.parent, UUID) and write.id in pages.ancestors(write.parent))


_TRUTHS: dict[type, Callable[[Pages, Write, Any], bool]] = {
    GenerationMoved: _generation_moved,
    ConsumerMoved: _consumer_moved,
    UnknownProvider: lambda pages, _, said: said.provider not in pages.plots,
    UnknownConsumer: lambda pages, _, said: said.consumer not in pages.holdings,
    UnknownTrait: lambda pages, _, said: not set(said.names) & pages.traits,
    UnknownClass: lambda pages, _, said: not set(said.names) & pages.classes,
    AlreadyThere: lambda pages, _, said: said.name in pages.classes | pages.traits,
    NameTaken: _name_taken,
    IdTaken: lambda pages, _, said: said.provider in pages.plots,
    HasChildren: _has_children,
    InventoryPresent: lambda pages, _, said: said.resource in pages.plots[said.provider].inventories,
    InventoryAbsent: lambda pages, _, said: said.resource not in pages.plots[said.provider].inventories,
    InventoryInUse: _in_use,
    DoesNotFit: _does_not_fit,
    NameInUse: _name_in_use,
    NotAllowed: _not_allowed,
}
