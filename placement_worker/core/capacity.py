"""Does an amount fit an inventory? The arithmetic of one class of one provider, and of nothing else."""

from typing import Literal

from bus.message import ProviderId
from bus.messages.placement import InventoryState, Shortfall

Rule = Literal["capacity", "min_unit", "max_unit", "step_size"]


class Stock:
    """What one provider has of one class, while a batch is being decided: `used` moves as claims come and go.

    Without an inventory there is nothing of the class, which is an answer and not an error.
    """

    __slots__ = ("capacity", "inventory", "provider", "resource", "used")

    def __init__(self, provider: ProviderId, resource: str, inventory: InventoryState | None) -> None:
        self.provider = provider
        self.resource = resource
        self.inventory = inventory
        self.capacity = capacity_of(inventory) if inventory else 0
        self.used = inventory.used if inventory else 0


def capacity_of(inventory: InventoryState) -> int:
    # Over-commit multiplies what is left after the reserve, never the reserve itself.
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)


def shortfall_of(stock: Stock, asked: int, held: int) -> Shortfall | None:
    """Why this amount is not to be had by someone who gives back `held` of the same; None if it is.

    What the inventory could never give is said before what it cannot give now. Whoever does not take more than it
    gives back passes even where more is in use than there is: an inventory that shrank takes nothing *more*.
    """
    inventory = stock.inventory
    if inventory is None:
        return Shortfall(
            provider=stock.provider, resource=stock.resource, asked=asked, free=0, rule="no_inventory"
        )
    free = stock.capacity - stock.used + held
    if asked < inventory.min_unit:
        return _broken(stock, asked, free, "min_unit", inventory.min_unit)
    if asked > inventory.max_unit:
        return _broken(stock, asked, free, "max_unit", inventory.max_unit)
    if asked % inventory.step_size:
        return _broken(stock, asked, free, "step_size", inventory.step_size)
    if asked > free and asked > held:
        return _broken(stock, asked, free, "capacity", 0)
    return None


def _broken(stock: Stock, asked: int, free: int, rule: Rule, bound: int) -> Shortfall:
    return Shortfall(
        provider=stock.provider, resource=stock.resource, asked=asked, free=free, rule=rule, bound=bound
    )
