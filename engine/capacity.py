"""How much of a resource class a provider can give: in total, to one consumer, and while one batch of claims is decided."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Literal

from msgspec import Struct

from engine.inventories import InventoryState, ProviderId
from engine.refusals import Shortfall


class InventoryLimits(Struct, frozen=True, gc=False):
    """The limits of one inventory. Together with its usage they decide whether a claim fits."""

    capacity: int
    min_unit: int
    max_unit: int
    step_size: int


class ProviderRow(Struct, frozen=True, gc=False):
    """The columns of a provider that claims need. `shape` is the shape of its tree if it is a root, otherwise None.

    `limits` and `used` are those of its inventories, by class. `consumers` counts the consumers that have it as their host.
    """

    id: ProviderId
    root: ProviderId
    cell: str = ""
    generation: int = 0
    shape: int | None = None
    limits: Mapping[str, InventoryLimits] = {}
    used: Mapping[str, int] = {}
    consumers: int = 0


# Which limit was broken, and its value.
Rule = tuple[Literal["capacity", "min_unit", "max_unit", "step_size"], int]
CAPACITY: Rule = ("capacity", 0)


def limits_in(inventories: Mapping[str, InventoryState]) -> dict[str, InventoryLimits]:
    return {resource: _limits_of(inventory) for resource, inventory in inventories.items()}


def _limits_of(inventory: InventoryState) -> InventoryLimits:
    return InventoryLimits(
        capacity_of(inventory), inventory.min_unit, inventory.max_unit, inventory.step_size
    )


def used_in(inventories: Mapping[str, InventoryState]) -> dict[str, int]:
    return {resource: inventory.used for resource, inventory in inventories.items()}


def capacity_of(inventory: InventoryState) -> int:
    # Over-commit multiplies what is left after the reserve, never the reserve itself.
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)


class UsageDraft:
    """One provider while a batch is decided: what is used of it, and how many consumers have it as their host.

    `touched`: the provider has changed and must be written. `generation` grows when a consumer gets allocations of it.
    """

    __slots__ = ("consumers", "generation", "row", "touched", "used")

    def __init__(self, row: ProviderRow) -> None:
        self.row = row
        self.generation = row.generation
        self.used = {**row.used}
        self.consumers = row.consumers
        self.touched = False


def shortfall_of(usage: UsageDraft, resource: str, asked: int, held: int) -> Shortfall | None:
    """Why a consumer that gives back `held` of the class may not have this amount; None if it may.

    Limits that can never be met are reported before lack of free capacity. A consumer that takes no more than it gives
    back is granted, even if more is used than there is: a shrunken inventory only refuses to give *more*. A class
    without an inventory is a shortfall, not an error.
    """
    limits = usage.row.limits.get(resource)
    if limits is None:
        return Shortfall(provider=usage.row.id, resource=resource, asked=asked, free=0, rule="no_inventory")
    free = limits.capacity - usage.used[resource] + held
    if asked < limits.min_unit:
        return _broken(usage, resource, asked, free, ("min_unit", limits.min_unit))
    if asked > limits.max_unit:
        return _broken(usage, resource, asked, free, ("max_unit", limits.max_unit))
    if asked % limits.step_size:
        return _broken(usage, resource, asked, free, ("step_size", limits.step_size))
    if asked > free and asked > held:
        return _broken(usage, resource, asked, free, CAPACITY)
    return None


def shortfalls_of(usage: UsageDraft, resource: str, each: Sequence[int], held: int) -> Iterator[Shortfall]:
    """Why several consumers that together give back `held` of a class may not have these amounts (`each`) of it at once."""
    short = [broken for asked in each if (broken := shortfall_of(usage, resource, asked, held))]
    if short:
        yield from short
        return
    asked = sum(each)
    free = usage.row.limits[resource].capacity - usage.used[resource] + held
    if asked > free and asked > held:
        yield _broken(usage, resource, asked, free, CAPACITY)


def _broken(usage: UsageDraft, resource: str, asked: int, free: int, broken: Rule) -> Shortfall:
    rule, bound = broken
    return Shortfall(provider=usage.row.id, resource=resource, asked=asked, free=free, rule=rule, bound=bound)


CUSTOM = "CUSTOM_"


class Vocabulary(Struct, frozen=True):
    """The standard names of resource classes and traits. Names with the prefix CUSTOM_ are allowed beside them."""

    classes: frozenset[str]
    traits: frozenset[str]

    def knows_class(self, name: str) -> bool:
        return name in self.classes or _is_custom(name)

    def knows_trait(self, name: str) -> bool:
        return name in self.traits or _is_custom(name)


@cache
def standard_vocabulary() -> Vocabulary:
    """The names that os-resource-classes and os-traits have."""
    # To load them takes longer than most commands.
    import os_resource_classes  # noqa: PLC0415
    import os_traits  # noqa: PLC0415

    return Vocabulary(frozenset(os_resource_classes.STANDARDS), frozenset(os_traits.get_traits()))


def custom_of(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if _is_custom(name)))


def unknown_names(
    names: Iterable[str], standard: AbstractSet[str], custom: AbstractSet[str]
) -> tuple[str, ...]:
    """The names that are neither standard nor among these custom names, sorted and each once."""
    return tuple(sorted(set(names) - standard - custom))


def _is_custom(name: str) -> bool:
    return name.startswith(CUSTOM) and len(name) > len(CUSTOM)
