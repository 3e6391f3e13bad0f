"""The state of placement's books that the write oracle expects: providers, holdings, custom names."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

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
