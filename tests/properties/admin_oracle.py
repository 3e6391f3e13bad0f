"""An oracle for administrators' writes, as simple as possible: one write at a time, each number counted anew.

It is slow on purpose and shares no line with placement_worker/core, so it cannot have the same faults. It returns
only the name of a verdict.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from msgspec import UNSET

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
    ProviderWrite,
    PutInventory,
    RenameClass,
    Reshape,
    SetAggregates,
    SetAllocations,
    SetInventories,
    SetQuota,
    SetTraits,
    UpdateProvider,
    Write,
)
from engine.inventories import AggregateId, ConsumerId, ProviderId, ReportedInventory

Amounts = dict[tuple[ProviderId, str], int]


@dataclass
class PlainProvider:
    name: str
    parent: ProviderId | None
    generation: int = 0
    stocks: dict[str, ReportedInventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[AggregateId] = frozenset()


@dataclass
class PlainConsumer:
    generation: int
    amounts: Amounts


@dataclass
class AdminOracle:
    standard: frozenset[str]
    providers: dict[ProviderId, PlainProvider] = field(default_factory=dict)
    consumers: dict[ConsumerId, PlainConsumer] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)
    traits: set[str] = field(default_factory=set)

    def judge(self, write: Write) -> str:
        match write:
            case CreateTrait() | CreateClass():
                return self._make(write)
            case DeleteTrait() | RenameClass() | DeleteClass():
                return self._take_away(write)
            case SetAllocations():
                return self._allocate(write.consumers)
            case DeleteAllocations():
                return "Done" if self.consumers.pop(write.consumer, None) else "UnknownConsumer"
            case Reshape():
                return self._reshape(write)
            case SetQuota():
                raise AssertionError("no property test sets quotas by this oracle")
            case _:
                return self._write_provider(write)

    def _write_provider(self, write: ProviderWrite) -> str:
        match write:
            case CreateProvider():
                return self._create(write)
            case UpdateProvider():
                return self._update(write)
            case DeleteProvider():
                return self._delete(write)
            case _:
                return self._set(write)

    def root_of(self, which: ProviderId) -> ProviderId:
        parent = self.providers[which].parent
        return which if parent is None else self.root_of(parent)

    def used(self, which: ProviderId, resource: str) -> int:
        return sum(held.amounts.get((which, resource), 0) for held in self.consumers.values())

    def _create(self, write: CreateProvider) -> str:
        if write.parent == write.id:
            return "NotAllowed"
        if write.parent is not None and write.parent not in self.providers:
            return "UnknownProvider"
        if write.id in self.providers:
            return "IdTaken"
        if write.name in {one.name for one in self.providers.values()}:
            return "NameTaken"
        self.providers[write.id] = PlainProvider(write.name, write.parent)
        return "ProviderWritten"

    def _update(self, write: UpdateProvider) -> str:
        if write.id not in self.providers:
            return "UnknownProvider"
        one = self.providers[write.id]
        parent = one.parent if write.parent is UNSET else write.parent
        if parent != one.parent:
            if parent is not None and parent not in self.providers:
                return "UnknownProvider"
            if one.parent is not None and not write.reparents:
                return "NotAllowed"
            above = parent
            while above is not None:
                if above == write.id:
                    return "NotAllowed"
                above = self.providers[above].parent
        if any(other.name == write.name for which, other in self.providers.items() if which != write.id):
            return "NameTaken"
        one.name, one.parent = write.name, parent
        return "ProviderWritten"

    def _delete(self, write: DeleteProvider) -> str:
        if write.id not in self.providers:
            return "UnknownProvider"
        if any(one.parent == write.id for one in self.providers.values()):
            return "HasChildren"
        if any(self.used(write.id, resource) for resource in self.providers[write.id].stocks):
            return "InventoryInUse"
        del self.providers[write.id]
        return "Done"

    def _set(self, write: SetInventories | PutInventory | DropInventory | SetTraits | SetAggregates) -> str:
        if write.provider not in self.providers:
            return "UnknownProvider"
        one = self.providers[write.provider]
        if not isinstance(write, DropInventory) and write.generation not in (None, one.generation):
            return "GenerationMoved"
        match write:
            case SetTraits():
                if set(write.traits) - self.traits - self.standard:
                    return "UnknownTrait"
                one.generation += one.traits != frozenset(write.traits)
                one.traits = frozenset(write.traits)
            case SetAggregates():
                one.aggregates = frozenset(write.aggregates)
                one.generation += write.moves_generation
            case _:
                return self._stock(write, one)
        return "ProviderWritten"

    def _stock(self, write: SetInventories | PutInventory | DropInventory, one: PlainProvider) -> str:
        match write:
            case SetInventories():
                wanted = dict(write.inventories or {})
            case PutInventory():
                wanted = one.stocks | {write.resource: write.inventory}
            case _:
                wanted = {name: stock for name, stock in one.stocks.items() if name != write.resource}
        named = {write.resource} if not isinstance(write, SetInventories) else set(wanted)
        if isinstance(write, DropInventory) and write.resource in one.stocks:
            named = set()
        if named - self.classes - self.standard:
            return "UnknownClass"
        if isinstance(write, PutInventory) and write.is_new == (write.resource in one.stocks):
            return "InventoryPresent" if write.is_new else "InventoryAbsent"
        if isinstance(write, DropInventory) and write.resource not in one.stocks:
            return "InventoryAbsent"
        if any(self.used(write.provider, name) for name in one.stocks if name not in wanted):
            return "InventoryInUse"
        one.stocks = wanted
        one.generation += 1
        return "ProviderWritten"

    def _make(self, write: CreateTrait | CreateClass) -> str:
        names = self.traits if isinstance(write, CreateTrait) else self.classes
        if write.name in names:
            return "AlreadyThere"
        names.add(write.name)
        return "Done"

    def _take_away(self, write: DeleteTrait | RenameClass | DeleteClass) -> str:
        of_traits = isinstance(write, DeleteTrait)
        names = self.traits if of_traits else self.classes
        if write.name not in names:
            return "UnknownTrait" if of_traits else "UnknownClass"
        if isinstance(write, RenameClass) and write.to == write.name:
            return "Done"
        if any(write.name in (one.traits if of_traits else one.stocks) for one in self.providers.values()):
            return "NameInUse"
        if isinstance(write, RenameClass):
            if write.to in names:
                return "AlreadyThere"
            names.add(write.to)
        names.remove(write.name)
        return "Done"

    def _allocate(
        self, consumers: tuple[ConsumerAllocations, ...], named: AbstractSet[str] = frozenset()
    ) -> str:
        """`named` are classes of inventories that are written together with these."""
        if refused := self._not_allocated(consumers, named):
            return refused
        touched = {amount.provider for one in consumers for amount in one.amounts}
        for one in consumers:
            held = self.consumers.pop(one.consumer, None)
            if one.amounts:
                self.consumers[one.consumer] = PlainConsumer(held.generation + 1 if held else 1, _summed(one))
            elif held:
                touched |= {which for which, _ in held.amounts}
        for which in touched:
            self.providers[which].generation += 1
        return "Done"

    def _not_allocated(self, consumers: tuple[ConsumerAllocations, ...], named: AbstractSet[str]) -> str:
        if len({one.consumer for one in consumers}) < len(consumers):
            return "NotAllowed"
        for one in consumers:
            held = self.consumers.get(one.consumer)
            if one.judges_generation and one.generation != (held.generation if held else None):
                return "ConsumerMoved"
        amounts = [amount for one in consumers for amount in one.amounts]
        if any(amount.provider not in self.providers for amount in amounts):
            return "UnknownProvider"
        if ({amount.resource for amount in amounts} | named) - self.classes - self.standard:
            return "UnknownClass"
        return "" if self._fits(consumers) else "DoesNotFit"

    def _fits(self, consumers: tuple[ConsumerAllocations, ...]) -> bool:
        named = {one.consumer for one in consumers}
        wanted: Amounts = {}
        for one in consumers:
            for key, amount in _summed(one).items():
                stock = self.providers[key[0]].stocks.get(key[1])
                if (
                    stock is None
                    or not stock.min_unit <= amount <= stock.max_unit
                    or amount % stock.step_size
                ):
                    return False
                wanted[key] = wanted.get(key, 0) + amount
        for (which, resource), amount in wanted.items():
            stock = self.providers[which].stocks[resource]
            before = self.used(which, resource)
            others = sum(
                held.amounts.get((which, resource), 0)
                for who, held in self.consumers.items()
                if who not in named
            )
            capacity = int((stock.total - stock.reserved) * stock.allocation_ratio)
            if others + amount > max(capacity, before):
                return False
        return True

    def _reshape(self, write: Reshape) -> str:
        """The old and the new inventories exist for a moment, then the old ones go. A wrong result is rolled back."""
        kept = {which: (dict(one.stocks), one.generation) for which, one in self.providers.items()}
        held = dict(self.consumers)
        verdict = self._reshaped(write)
        if verdict != "Done":
            self.consumers = held
            for which, (stocks, generation) in kept.items():
                self.providers[which].stocks, self.providers[which].generation = stocks, generation
        return verdict

    def _reshaped(self, write: Reshape) -> str:
        for one in write.inventories:
            if one.provider not in self.providers:
                return "UnknownProvider"
            if one.generation != self.providers[one.provider].generation:
                return "GenerationMoved"
        for one in write.inventories:
            provider = self.providers[one.provider]
            provider.generation += bool(one.inventories)
            provider.stocks |= one.inventories
        named = {name for one in write.inventories for name in one.inventories}
        verdict = self._allocate(write.allocations, named)
        if verdict != "Done":
            return verdict
        for one in write.inventories:
            provider = self.providers[one.provider]
            if any(self.used(one.provider, name) for name in provider.stocks if name not in one.inventories):
                return "InventoryInUse"
            provider.stocks = dict(one.inventories)
            provider.generation += 1
        return "Done"


def _summed(one: ConsumerAllocations) -> Amounts:
    amounts: Amounts = {}
    for amount in one.amounts:
        key = amount.provider, amount.resource
        amounts[key] = amounts.get(key, 0) + amount.amount
    return amounts
