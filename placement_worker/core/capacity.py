"""How much of a class a provider may hand out in all."""

from bus.messages.placement import InventoryState


def capacity_of(inventory: InventoryState) -> int:
    # Over-commit multiplies what is left after the reserve, never the reserve itself.
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
