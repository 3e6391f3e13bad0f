"""Placement's books as who follows them by simpler means has them: providers, who holds what, custom names."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from bus.message import AggregateId, ConsumerId, ProviderId
from bus.messages.placement import ReportedInventory, ResourceAmount
from placement_worker.core.ledger import Consumer, ProviderBook

Stock = tuple[ProviderId, str]


class Plot(Struct, frozen=True):
    """A provider, without what is used of it."""

    name: str
    parent: ProviderId | None = None
    generation: int = 0
    inventories: Mapping[str, ReportedInventory] = {}
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[AggregateId] = frozenset()


class Holding(Struct, frozen=True):
    """What a consumer holds, and its generation; who holds nothing is none."""

    generation: int
    amounts: Mapping[Stock, int]


class Pages:
    """What stands, as this side has it."""

    def __init__(self) -> None:
        self.plots: dict[ProviderId, Plot] = {}
        self.holdings: dict[ConsumerId, Holding] = {}
        self.classes: set[str] = set()
        self.traits: set[str] = set()

    def holders_of(self, provider: ProviderId, resource: str | None = None) -> Iterator[ConsumerId]:
        for consumer, holding in self.holdings.items():
            if any(
                stock[0] == provider and (resource is None or stock[1] == resource)
                for stock in holding.amounts
            ):
                yield consumer

    def used(self, stock: Stock) -> int:
        return sum(holding.amounts.get(stock, 0) for holding in self.holdings.values())

    def sums(self) -> dict[Stock, int]:
        """What is held of each stock of which something is."""
        sums: dict[Stock, int] = {}
        for holding in self.holdings.values():
            for stock, amount in holding.amounts.items():
                sums[stock] = sums.get(stock, 0) + amount
        return sums

    def ancestors(self, provider: ProviderId) -> list[ProviderId]:
        """Itself first, its root last."""
        way = [provider]
        while (parent := self.plots[way[-1]].parent) is not None and parent not in way:
            way.append(parent)
        return way


def plot_of(book: ProviderBook) -> Plot:
    return Plot(
        name=book.name,
        parent=book.parent,
        generation=book.generation,
        inventories={
            resource: ReportedInventory(
                total=each.total,
                reserved=each.reserved,
                min_unit=each.min_unit,
                max_unit=each.max_unit,
                step_size=each.step_size,
                allocation_ratio=each.allocation_ratio,
            )
            for resource, each in book.inventories.items()
        },
        traits=book.traits | book.operator_traits,
        aggregates=book.aggregates,
    )


def holding_of(row: Consumer, held: Iterable[ResourceAmount]) -> Holding:
    return Holding(row.generation, summed(held))


def summed(held: Iterable[ResourceAmount]) -> dict[Stock, int]:
    amounts: dict[Stock, int] = {}
    for each in held:
        stock = (each.provider, each.resource)
        amounts[stock] = amounts.get(stock, 0) + each.amount
    return amounts
