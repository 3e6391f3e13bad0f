"""How much of a resource class a provider can give: in total, and to one consumer."""

from collections.abc import Mapping

from msgspec import Struct

from bus.messages.placement import InventoryState


class InventoryLimits(Struct, frozen=True, gc=False):
    """The limits of one inventory. Together with its usage they decide whether a claim fits."""

    capacity: int
    min_unit: int
    max_unit: int
    step_size: int


def limits_in(inventories: Mapping[str, InventoryState]) -> dict[str, InventoryLimits]:
    return {resource: _limits_of(inventory) for resource, inventory in inventories.items()}


def used_in(inventories: Mapping[str, InventoryState]) -> dict[str, int]:
    return {resource: inventory.used for resource, inventory in inventories.items()}


def _limits_of(inventory: InventoryState) -> InventoryLimits:
    return InventoryLimits(
        capacity_of(inventory), inventory.min_unit, inventory.max_unit, inventory.step_size
    )


def capacity_of(inventory: InventoryState) -> int:
    # Over-commit multiplies what is left after the reserve, never the reserve itself.
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
