"""The rules for administrators' writes, written a second time in the simplest way, and the books that they expect."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import UNSET, Struct, structs

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
from bus.messages.audit import BookEntry
from engine.inventories import (
    AggregateId,
    ConsumerId,
    ProviderId,
    ProviderState,
    ReportedInventory,
    ResourceAmount,
)

InventoryKey = tuple[ProviderId, str]


class ProviderRecord(Struct, frozen=True):
    """A provider, without its usage."""

    name: str
    parent: ProviderId | None = None
    generation: int = 0
    inventories: Mapping[str, ReportedInventory] = {}
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[AggregateId] = frozenset()


class HoldingRecord(Struct, frozen=True):
    """The amounts that a consumer holds, and its generation. A consumer that holds nothing has no record."""

    generation: int
    amounts: Mapping[InventoryKey, int]


class ExpectedBooks:
    def __init__(self) -> None:
        self.providers: dict[ProviderId, ProviderRecord] = {}
        self.holdings: dict[ConsumerId, HoldingRecord] = {}
        self.classes: set[str] = set()
        self.traits: set[str] = set()

    def holders_of(self, provider: ProviderId, resource: str | None = None) -> Iterator[ConsumerId]:
        for consumer, holding in self.holdings.items():
            if any(
                stock[0] == provider and (resource is None or stock[1] == resource)
                for stock in holding.amounts
            ):
                yield consumer

    def used(self, stock: InventoryKey) -> int:
        return sum(holding.amounts.get(stock, 0) for holding in self.holdings.values())

    def sums(self) -> dict[InventoryKey, int]:
        """The sum that consumers hold of each inventory in use."""
        sums: dict[InventoryKey, int] = {}
        for holding in self.holdings.values():
            for stock, amount in holding.amounts.items():
                sums[stock] = sums.get(stock, 0) + amount
        return sums

    def ancestors(self, provider: ProviderId) -> list[ProviderId]:
        """The provider itself and all its ancestors, the root last."""
        ancestry = [provider]
        while (parent := self.providers[ancestry[-1]].parent) is not None and parent not in ancestry:
            ancestry.append(parent)
        return ancestry


def record_of(state: ProviderState) -> ProviderRecord:
    return ProviderRecord(
        name=state.name,
        parent=state.parent,
        generation=state.generation,
        inventories={
            resource: ReportedInventory(
                total=each.total,
                reserved=each.reserved,
                min_unit=each.min_unit,
                max_unit=each.max_unit,
                step_size=each.step_size,
                allocation_ratio=each.allocation_ratio,
            )
            for resource, each in state.inventories.items()
        },
        traits=frozenset(state.traits),
        aggregates=frozenset(state.aggregates),
    )


def holding_of(row: BookEntry) -> HoldingRecord:
    return HoldingRecord(row.generation, summed(row.held))


def summed(held: Iterable[ResourceAmount]) -> dict[InventoryKey, int]:
    amounts: dict[InventoryKey, int] = {}
    for each in held:
        stock = (each.provider, each.resource)
        amounts[stock] = amounts.get(stock, 0) + each.amount
    return amounts


GENERATIONS = "a write is judged by the generation it names"
TREES = "trees stay trees"
HELD = "what is held stays"
CAPACITY = "capacity is law"
BOUNDS = "an amount keeps the bounds of its inventory"
SUMS = "a reshape changes no consumer's sums"
NAMES = "names are unique, and stay while they are used"
Violations = Iterator[tuple[str, str]]


def apply_write(expected: ExpectedBooks, write: Write) -> Violations:
    match write:
        case CreateProvider() | UpdateProvider() | DeleteProvider():
            yield from _write_place(expected, write)
        case SetInventories() | PutInventory() | DropInventory() | SetTraits() | SetAggregates():
            yield from _write_provider(expected, write)
        case SetAllocations(consumers=consumers):
            yield from _allocate(expected, consumers)
        case DeleteAllocations(consumer=consumer):
            if expected.holdings.pop(consumer, None) is None:
                yield HELD, "it held nothing"
        case Reshape():
            yield from _reshape(expected, write)
        case _:
            yield from _write_name(expected, write)


def _write_place(
    expected: ExpectedBooks, write: CreateProvider | UpdateProvider | DeleteProvider
) -> Violations:
    providers = expected.providers
    if isinstance(write, CreateProvider):
        if write.id in providers:
            yield TREES, "it existed already"
        yield from _check_name(expected, write.id, write.name)
        if write.parent is not None and write.parent not in providers:
            yield TREES, "its parent does not exist"
        providers[write.id] = ProviderRecord(write.name, write.parent)
        return
    if write.id not in providers:
        yield TREES, "there is no such provider"
        return
    if isinstance(write, DeleteProvider):
        if any(record.parent == write.id for record in providers.values()):
            yield TREES, "it has children"
        if holder := next(expected.holders_of(write.id), None):
            yield HELD, f"{holder} holds some of it"
        del providers[write.id]
        return
    yield from _check_name(expected, write.id, write.name)
    before = providers[write.id]
    parent = before.parent if write.parent is UNSET else write.parent
    if parent is not None and (parent not in providers or write.id in expected.ancestors(parent)):
        yield TREES, "its parent does not exist, or is below it"
        return
    if not write.reparents and parent != before.parent is not None:
        yield TREES, "the write does not allow it to leave its parent"
    providers[write.id] = structs.replace(before, name=write.name, parent=parent)


def _check_name(expected: ExpectedBooks, provider: ProviderId, name: str) -> Violations:
    if any(record.name == name and each != provider for each, record in expected.providers.items()):
        yield NAMES, f"another is called {name}"


def _write_provider(
    expected: ExpectedBooks, write: SetInventories | PutInventory | DropInventory | SetTraits | SetAggregates
) -> Violations:
    before = expected.providers.get(write.provider)
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
            inventories = _new_inventories(before.inventories, write)
            yield from _check_dropped(expected, write.provider, before.inventories, inventories)
            after = structs.replace(before, inventories=inventories, generation=before.generation + 1)
    expected.providers[write.provider] = after


def _new_inventories(
    before: Mapping[str, ReportedInventory], write: SetInventories | PutInventory | DropInventory
) -> dict[str, ReportedInventory]:
    match write:
        case SetInventories(inventories=inventories):
            return dict(inventories or {})
        case PutInventory(resource=resource, inventory=inventory):
            return {**before, resource: inventory}
        case DropInventory(resource=gone):
            return {resource: each for resource, each in before.items() if resource != gone}


def _check_dropped(
    expected: ExpectedBooks, provider: ProviderId, before: Iterable[str], after: Mapping[str, object]
) -> Violations:
    for resource in before:
        if resource not in after and (holder := next(expected.holders_of(provider, resource), None)):
            yield HELD, f"{holder} holds {resource} of it"


def _allocate(expected: ExpectedBooks, consumers: Sequence[ConsumerAllocations]) -> Violations:
    before = {one.consumer: expected.holdings.get(one.consumer) for one in consumers}
    sums = expected.sums()
    for one in consumers:
        was = before[one.consumer]
        current = was.generation if was else None
        if one.judges_generation and one.generation != current:
            yield GENERATIONS, f"{one.consumer} was at {current}"
        amounts = summed(one.amounts)
        if amounts:
            expected.holdings[one.consumer] = HoldingRecord((current or 0) + 1, amounts)
        else:
            expected.holdings.pop(one.consumer, None)
    # A provider's generation grows by one if a consumer of this write holds some of it now, or released all it held.
    gaining = {
        provider for one in consumers for provider, _ in summed(one.amounts) or _held(before[one.consumer])
    }
    for provider in gaining & expected.providers.keys():
        record = expected.providers[provider]
        expected.providers[provider] = structs.replace(record, generation=record.generation + 1)
    yield from _check_bounds(expected, consumers)
    yield from _check_capacity(expected, sums)


def _check_capacity(expected: ExpectedBooks, before: Mapping[InventoryKey, int]) -> Violations:
    """Inventories whose usage grew beyond their capacity."""
    for stock, held in expected.sums().items():
        record = expected.providers.get(stock[0])
        inventory = record.inventories.get(stock[1]) if record else None
        if inventory is None:
            yield CAPACITY, f"there is no {stock[1]} of {stock[0]}"
        elif held > before.get(stock, 0) and held > capacity(inventory):
            yield CAPACITY, f"of {capacity(inventory)} {stock[1]} {held} is held"


def _check_bounds(expected: ExpectedBooks, consumers: Sequence[ConsumerAllocations]) -> Violations:
    for one in consumers:
        for (provider, resource), amount in summed(one.amounts).items():
            record = expected.providers.get(provider)
            inventory = record.inventories.get(resource) if record else None
            if inventory is not None and (rule := broken_bound(inventory, amount)):
                yield BOUNDS, f"{amount} {resource} of {provider} breaks {rule}"


def broken_bound(inventory: ReportedInventory, amount: int) -> str:
    """The bound of the inventory that this amount breaks; empty if none."""
    if amount < inventory.min_unit:
        return "min_unit"
    if amount > inventory.max_unit:
        return "max_unit"
    return "step_size" if amount % inventory.step_size else ""


def _held(holding: HoldingRecord | None) -> Mapping[InventoryKey, int]:
    return holding.amounts if holding else {}


def capacity(inventory: ReportedInventory) -> int:
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)


def _reshape(expected: ExpectedBooks, write: Reshape) -> Violations:
    totals = _totals(expected, write)
    reshaped = []
    for one in write.inventories:
        before = expected.providers.get(one.provider)
        if before is None:
            yield TREES, "there is no such provider"
            continue
        if one.generation != before.generation:
            yield GENERATIONS, f"{one.provider} was at {before.generation}"
        reshaped.append(one.provider)
        # One step for the inventories that are replaced, one for those that remain.
        steps = 2 if one.inventories else 1
        expected.providers[one.provider] = structs.replace(
            before, inventories=dict(one.inventories), generation=before.generation + steps
        )
    yield from _allocate(expected, write.allocations)
    if totals != _totals(expected, write):
        yield SUMS, f"before it was {totals}"


def _totals(expected: ExpectedBooks, reshape: Reshape) -> dict[tuple[ConsumerId, str], int]:
    """How much of each resource class each consumer of the reshape holds, over all providers."""
    sums: dict[tuple[ConsumerId, str], int] = {}
    for one in reshape.allocations:
        for (_, resource), amount in _held(expected.holdings.get(one.consumer)).items():
            sums[one.consumer, resource] = sums.get((one.consumer, resource), 0) + amount
    return sums


def _write_name(expected: ExpectedBooks, write: Write) -> Violations:
    match write:
        case CreateTrait(name=name):
            expected.traits.add(name)
        case CreateClass(name=name):
            expected.classes.add(name)
        case DeleteTrait(name=name):
            if any(name in record.traits for record in expected.providers.values()):
                yield NAMES, "a provider has it"
            expected.traits.discard(name)
        case DeleteClass(name=name) | RenameClass(name=name):
            if any(name in record.inventories for record in expected.providers.values()):
                yield NAMES, "a provider has it"
            expected.classes.discard(name)
            if isinstance(write, RenameClass):
                expected.classes.add(write.to)
