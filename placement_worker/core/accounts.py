"""What providers have, while a batch is being decided: accounts that change in place, private to one fold; and whether an
amount fits them.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from bus.messages.placement import InventoryState, Shortfall
from placement_worker.core.capacity import capacity_of
from placement_worker.core.ledger import ProviderRow

Rule = Literal["capacity", "min_unit", "max_unit", "step_size"]


class Account:
    """One provider. Touched means that its revision moves; only who gains allocations moves its generation."""

    __slots__ = ("generation", "row", "stocks", "touched")

    def __init__(self, row: ProviderRow) -> None:
        self.row = row
        self.generation = row.generation
        self.stocks: dict[str, Stock] = {}
        self.touched = False

    def stock(self, resource: str) -> "Stock":
        stock = self.stocks.get(resource)
        if stock is None:
            stock = self.stocks[resource] = Stock(self, resource, self.row.inventories.get(resource))
        return stock


class Stock:
    """What one provider has of one class: `used` moves as claims come and go.

    Without an inventory there is nothing of the class, which is an answer and not an error.
    """

    __slots__ = ("account", "capacity", "inventory", "resource", "used")

    def __init__(self, account: Account, resource: str, inventory: InventoryState | None) -> None:
        self.account = account
        self.resource = resource
        self.inventory = inventory
        if inventory is None:
            self.capacity = self.used = 0
        else:
            self.capacity = capacity_of(inventory)
            self.used = inventory.used


def shortfall_of(stock: Stock, asked: int, held: int) -> Shortfall | None:
    """Why this amount is not to be had by someone who gives back `held` of the same; None if it is.

    What the inventory could never give is said before what it cannot give now. Whoever does not take more than it
    gives back passes even where more is in use than there is: an inventory that shrank takes nothing *more*.
    """
    inventory = stock.inventory
    if inventory is None:
        return Shortfall(
            provider=stock.account.row.id, resource=stock.resource, asked=asked, free=0, rule="no_inventory"
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


def shortfalls_of(stock: Stock, each: Sequence[int], held: int) -> Iterator[Shortfall]:
    """The same of several amounts that are taken at once by those who together give back `held`."""
    short = [broken for asked in each if (broken := shortfall_of(stock, asked, held))]
    asked = sum(each)
    free = stock.capacity - stock.used + held
    if short:
        yield from short
    elif asked > free and asked > held:
        yield _broken(stock, asked, free, "capacity", 0)


def _broken(stock: Stock, asked: int, free: int, rule: Rule, bound: int) -> Shortfall:
    return Shortfall(
        provider=stock.account.row.id,
        resource=stock.resource,
        asked=asked,
        free=free,
        rule=rule,
        bound=bound,
    )
