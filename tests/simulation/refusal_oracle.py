"""Checks the reason of a refused write against the state of the books before it."""

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
from bus.messages.placement import InventoryInUse
from engine.inventories import ReportedInventory
from engine.refusals import DoesNotFit, NotAllowed, Shortfall
from tests.simulation.expected_books import ExpectedBooks, summed
from tests.simulation.write_rules import broken_bound, capacity


def is_refusal_true(expected: ExpectedBooks, write: Write, verdict: WriteVerdict) -> bool:
    return _CHECKS[type(verdict)](expected, write, verdict)


def _generation_moved(expected: ExpectedBooks, _: Write, said: GenerationMoved) -> bool:
    record = expected.providers.get(said.provider)
    return record is not None and record.generation == said.current != said.seen


def _consumer_moved(expected: ExpectedBooks, _: Write, said: ConsumerMoved) -> bool:
    holding = expected.holdings.get(said.consumer)
    return (holding.generation if holding else None) == said.current != said.seen


def _name_taken(expected: ExpectedBooks, _: Write, said: NameTaken) -> bool:
    return said.provider in expected.providers and expected.providers[said.provider].name == said.name


def _has_children(expected: ExpectedBooks, _: Write, said: HasChildren) -> bool:
    return said.child in expected.providers and expected.providers[said.child].parent == said.provider


def _in_use(expected: ExpectedBooks, write: Write, said: InventoryInUse) -> bool:
    # For a reshape the number counts its own allocations as well.
    is_held = isinstance(write, Reshape) or expected.used((said.provider, said.resource)) == said.used
    return said.used > 0 and is_held


def _does_not_fit(expected: ExpectedBooks, write: Write, said: DoesNotFit) -> bool:
    return bool(said.shortfalls) and all(
        _is_short(expected, write, shortfall) for shortfall in said.shortfalls
    )


def _is_short(expected: ExpectedBooks, write: Write, shortfall: Shortfall) -> bool:
    """Whether a reported shortfall is true. It is computed again from the inventory, the usage of others, and the
    amounts that the write asks for; a reshape is judged by the inventories that it brings.
    """
    stock = (shortfall.provider, shortfall.resource)
    inventory = _inventory(expected, write, shortfall)
    if inventory is None:
        return shortfall.rule == "no_inventory"
    if not isinstance(write, SetAllocations | Reshape):
        return False
    consumers = write.consumers if isinstance(write, SetAllocations) else write.allocations
    asked = [amount for one in consumers if (amount := summed(one.amounts).get(stock, 0))]
    held = [expected.holdings[one.consumer] for one in consumers if one.consumer in expected.holdings]
    given_back = sum(each.amounts.get(stock, 0) for each in held)
    if shortfall.free != capacity(inventory) - expected.used(stock) + given_back:
        return False
    if shortfall.rule != "capacity":
        return shortfall.asked in asked and broken_bound(inventory, shortfall.asked) == shortfall.rule
    return shortfall.asked in (*asked, sum(asked)) and shortfall.asked > max(shortfall.free, given_back)


def _inventory(expected: ExpectedBooks, write: Write, shortfall: Shortfall) -> ReportedInventory | None:
    record = expected.providers.get(shortfall.provider)
    found = dict(record.inventories) if record else {}
    for one in write.inventories if isinstance(write, Reshape) else ():
        found |= one.inventories if one.provider == shortfall.provider else {}
    return found.get(shortfall.resource)


def _name_in_use(expected: ExpectedBooks, _: Write, said: NameInUse) -> bool:
    record = expected.providers[said.provider]
    return said.name in record.traits or said.name in record.inventories


def _not_allowed(expected: ExpectedBooks, write: Write, said: NotAllowed) -> bool:
    """Whether the refusal of a field is true. Of the administrators' writes, only a provider's parent can be invalid."""
    if isinstance(write, CreateProvider):
        return said.field == "parent" and write.parent == write.id
    if not isinstance(write, UpdateProvider) or said.field != "parent":
        return False
    is_kept = not write.reparents and expected.providers[write.id].parent is not None
    return is_kept or (isinstance(write.parent, UUID) and write.id in expected.ancestors(write.parent))


_CHECKS: dict[type, Callable[[ExpectedBooks, Write, Any], bool]] = {
    GenerationMoved: _generation_moved,
    ConsumerMoved: _consumer_moved,
    UnknownProvider: lambda expected, _, said: said.provider not in expected.providers,
    UnknownConsumer: lambda expected, _, said: said.consumer not in expected.holdings,
    UnknownTrait: lambda expected, _, said: not set(said.names) & expected.traits,
    UnknownClass: lambda expected, _, said: not set(said.names) & expected.classes,
    AlreadyThere: lambda expected, _, said: said.name in expected.classes | expected.traits,
    NameTaken: _name_taken,
    IdTaken: lambda expected, _, said: said.provider in expected.providers,
    HasChildren: _has_children,
    InventoryPresent: lambda expected, _, said: (
        said.resource in expected.providers[said.provider].inventories
    ),
    InventoryAbsent: lambda expected, _, said: (
        said.resource not in expected.providers[said.provider].inventories
    ),
    InventoryInUse: _in_use,
    DoesNotFit: _does_not_fit,
    NameInUse: _name_in_use,
    NotAllowed: _not_allowed,
}
