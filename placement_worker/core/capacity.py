"""How much of a class a provider may hand out: in all, and at once."""

from collections.abc import Mapping

from msgspec import Struct

from bus.messages.placement import InventoryState


class Terms(Struct, frozen=True, gc=False):
    """What claims must know of an inventory, beside what is used of it."""

    capacity: int
    min_unit: int
    max_unit: int
    step_size: int


def terms_in(inventories: Mapping[str, InventoryState]) -> dict[str, Terms]:
    return {resource: _terms_of(inventory) for resource, inventory in inventories.items()}


def used_in(inventories: Mapping[str, InventoryState]) -> dict[str, int]:
    return {resource: inventory.used for resource, inventory in inventories.items()}


def _terms_of(inventory: InventoryState) -> Terms:
    return Terms(capacity_of(inventory), inventory.min_unit, inventory.max_unit, inventory.step_size)


def capacity_of(inventory: InventoryState) -> int:
    # Over-commit multiplies what is left after the reserve, never the reserve itself.
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
