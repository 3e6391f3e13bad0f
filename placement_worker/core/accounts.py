"""What providers have, while a batch is being decided: accounts that change in place, private to one fold; and whether an
amount fits them.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from bus.messages.placement import Shortfall
from placement_worker.core.ledger import ProviderRow

# What was broken, and its value.
Rule = tuple[Literal["capacity", "min_unit", "max_unit", "step_size"], int]
CAPACITY: Rule = ("capacity", 0)


class Account:
    """One provider, what is used of it by now, and how many consumers live on it. Touched means that its revision moves; only who gains allocations moves
    its generation.
    """

    __slots__ = ("consumers", "generation", "row", "touched", "used")

    def __init__(self, row: ProviderRow) -> None:
        self.row = row
        self.generation = row.generation
        self.used = {**row.used}
        self.consumers = row.consumers
        self.touched = False


def shortfall_of(account: Account, resource: str, asked: int, held: int) -> Shortfall | None:
    """Why this amount is not to be had by someone who gives back `held` of the same; None if it is.

    What the inventory could never give is said before what it cannot give now. Whoever does not take more than it
    gives back passes even where more is in use than there is: an inventory that shrank takes nothing *more*. Without an
    inventory there is nothing of the class, which is an answer and not an error.
    """
    terms = account.row.terms.get(resource)
    if terms is None:
        return Shortfall(provider=account.row.id, resource=resource, asked=asked, free=0, rule="no_inventory")
    free = terms.capacity - account.used[resource] + held
    if asked < terms.min_unit:
        return _broken(account, resource, asked, free, ("min_unit", terms.min_unit))
    if asked > terms.max_unit:
        return _broken(account, resource, asked, free, ("max_unit", terms.max_unit))
    if asked % terms.step_size:
        return _broken(account, resource, asked, free, ("step_size", terms.step_size))
    if asked > free and asked > held:
        return _broken(account, resource, asked, free, CAPACITY)
    return None


def shortfalls_of(account: Account, resource: str, each: Sequence[int], held: int) -> Iterator[Shortfall]:
    """The same of several amounts that are taken at once by those who together give back `held`."""
    short = [broken for asked in each if (broken := shortfall_of(account, resource, asked, held))]
    if short:
        yield from short
        return
    asked = sum(each)
    free = account.row.terms[resource].capacity - account.used[resource] + held
    if asked > free and asked > held:
        yield _broken(account, resource, asked, free, CAPACITY)


def _broken(account: Account, resource: str, asked: int, free: int, broken: Rule) -> Shortfall:
    rule, bound = broken
    return Shortfall(
        provider=account.row.id, resource=resource, asked=asked, free=free, rule=rule, bound=bound
    )
