"""The rules for administrators' writes, written a second time in the simplest way: one write at a time, each number counted anew.

They are slow on purpose and share no line with placement_worker/core, so they cannot have the same faults.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import UNSET, Struct, structs

from bus.messages.audit import BookEntry
from bus.messages.books import (
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
    SetPlaces,
    SetQuota,
    SetTraits,
    UpdateProvider,
    Write,
)
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
    place: str = ""


class HoldingRecord(Struct, frozen=True):
    """The amounts that a consumer holds, and its generation. A consumer that holds nothing has no record."""

    generation: int
    amounts: Mapping[InventoryKey, int]


class ExpectedBooks:
    """The books as they must be after each write, and the verdict that it must get."""

    def __init__(self, standard: AbstractSet[str]) -> None:
        """`standard` has the names of classes and traits that exist without being created."""
        self._standard = standard
        self.providers: dict[ProviderId, ProviderRecord] = {}
        self.holdings: dict[ConsumerId, HoldingRecord] = {}
        self.classes: set[str] = set()
        self.traits: set[str] = set()

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

    def judge(self, write: Write) -> str:
        """The name of the verdict on this write. If it is to be done, it is done."""
        match write:
            case CreateTrait() | CreateClass():
                return self._make(write)
            case DeleteTrait() | RenameClass() | DeleteClass():
                return self._take_away(write)
            case SetAllocations():
                return self._allocate(write.consumers)
            case DeleteAllocations():
                return "Done" if self.holdings.pop(write.consumer, None) else "UnknownConsumer"
            case Reshape():
                return self._reshape(write)
            case SetQuota():
                raise AssertionError("quotas have a checker of their own")
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
            case SetPlaces():
                return self._place(write)
            case _:
                return self._set(write)

    def _change(self, provider: ProviderId, **fields: object) -> None:
        self.providers[provider] = structs.replace(self.providers[provider], **fields)

    def _create(self, write: CreateProvider) -> str:
        if write.parent == write.id:
            return "NotAllowed"
        if write.parent is not None and write.parent not in self.providers:
            return "UnknownProvider"
        if write.id in self.providers:
            return "IdTaken"
        if write.name in {one.name for one in self.providers.values()}:
            return "NameTaken"
        self.providers[write.id] = ProviderRecord(write.name, write.parent)
        return "ProviderWritten"

    def _update(self, write: UpdateProvider) -> str:
        if write.id not in self.providers:
            return "UnknownProvider"
        before = self.providers[write.id].parent
        parent = before if write.parent is UNSET else write.parent
        if parent != before:
            if parent is not None and parent not in self.providers:
                return "UnknownProvider"
            if before is not None and not write.reparents:
                return "NotAllowed"
            if parent is not None and write.id in self.ancestors(parent):
                return "NotAllowed"
        if any(other.name == write.name for which, other in self.providers.items() if which != write.id):
            return "NameTaken"
        self._change(write.id, name=write.name, parent=parent)
        return "ProviderWritten"

    def _delete(self, write: DeleteProvider) -> str:
        if write.id not in self.providers:
            return "UnknownProvider"
        if any(one.parent == write.id for one in self.providers.values()):
            return "HasChildren"
        if any(self.used((write.id, resource)) for resource in self.providers[write.id].inventories):
            return "InventoryInUse"
        del self.providers[write.id]
        return "Done"

    def _place(self, write: SetPlaces) -> str:
        for each in write.places:
            if each.provider not in self.providers:
                return "UnknownProvider"
            if self.providers[each.provider].parent is not None:
                return "NotAllowed"
        for each in write.places:
            one = self.providers[each.provider]
            # No host reports a place of its own here.
            moves = one.place != each.place
            self._change(each.provider, place=each.place, generation=one.generation + moves)
        return "Done"

    def _set(self, write: SetInventories | PutInventory | DropInventory | SetTraits | SetAggregates) -> str:
        if write.provider not in self.providers:
            return "UnknownProvider"
        one = self.providers[write.provider]
        if not isinstance(write, DropInventory) and write.generation not in (None, one.generation):
            return "GenerationMoved"
        match write:
            case SetTraits():
                if set(write.traits) - self.traits - self._standard:
                    return "UnknownTrait"
                traits = frozenset(write.traits)
                self._change(
                    write.provider, traits=traits, generation=one.generation + (one.traits != traits)
                )
            case SetAggregates():
                self._change(
                    write.provider,
                    aggregates=frozenset(write.aggregates),
                    generation=one.generation + write.moves_generation,
                )
            case _:
                return self._stock(write, one)
        return "ProviderWritten"

    def _stock(self, write: SetInventories | PutInventory | DropInventory, one: ProviderRecord) -> str:
        match write:
            case SetInventories():
                wanted = dict(write.inventories or {})
            case PutInventory():
                wanted = {**one.inventories, write.resource: write.inventory}
            case _:
                wanted = {name: stock for name, stock in one.inventories.items() if name != write.resource}
        named = {write.resource} if not isinstance(write, SetInventories) else set(wanted)
        if isinstance(write, DropInventory) and write.resource in one.inventories:
            named = set()
        if named - self.classes - self._standard:
            return "UnknownClass"
        if isinstance(write, PutInventory) and write.is_new == (write.resource in one.inventories):
            return "InventoryPresent" if write.is_new else "InventoryAbsent"
        if isinstance(write, DropInventory) and write.resource not in one.inventories:
            return "InventoryAbsent"
        if any(self.used((write.provider, name)) for name in one.inventories if name not in wanted):
            return "InventoryInUse"
        self._change(write.provider, inventories=wanted, generation=one.generation + 1)
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
        if any(
            write.name in (one.traits if of_traits else one.inventories) for one in self.providers.values()
        ):
            return "NameInUse"
        if isinstance(write, RenameClass):
            if write.to in names:
                return "AlreadyThere"
            names.add(write.to)
        names.remove(write.name)
        return "Done"

    def _allocate(
        self, consumers: Sequence[ConsumerAllocations], named: AbstractSet[str] = frozenset()
    ) -> str:
        """`named` are classes of inventories that are written together with these."""
        if refused := self._not_allocated(consumers, named):
            return refused
        # A provider's generation grows by one if a consumer of this write holds some of it now, or released all it held.
        touched = {amount.provider for one in consumers for amount in one.amounts}
        for one in consumers:
            held = self.holdings.pop(one.consumer, None)
            if one.amounts:
                generation = held.generation + 1 if held else 1
                self.holdings[one.consumer] = HoldingRecord(generation, summed(one.amounts))
            elif held:
                touched |= {which for which, _ in held.amounts}
        for which in touched:
            self._change(which, generation=self.providers[which].generation + 1)
        return "Done"

    def _not_allocated(self, consumers: Sequence[ConsumerAllocations], named: AbstractSet[str]) -> str:
        if len({one.consumer for one in consumers}) < len(consumers):
            return "NotAllowed"
        for one in consumers:
            held = self.holdings.get(one.consumer)
            if one.judges_generation and one.generation != (held.generation if held else None):
                return "ConsumerMoved"
        amounts = [amount for one in consumers for amount in one.amounts]
        if any(amount.provider not in self.providers for amount in amounts):
            return "UnknownProvider"
        if ({amount.resource for amount in amounts} | named) - self.classes - self._standard:
            return "UnknownClass"
        return "" if self._fits(consumers) else "DoesNotFit"

    def _fits(self, consumers: Sequence[ConsumerAllocations]) -> bool:
        given_back = [self.holdings[one.consumer] for one in consumers if one.consumer in self.holdings]
        wanted: dict[InventoryKey, int] = {}
        for one in consumers:
            for key, amount in summed(one.amounts).items():
                stock = self.providers[key[0]].inventories.get(key[1])
                if stock is None or broken_bound(stock, amount):
                    return False
                wanted[key] = wanted.get(key, 0) + amount
        for key, amount in wanted.items():
            before = self.used(key)
            others = before - sum(held.amounts.get(key, 0) for held in given_back)
            if others + amount > max(capacity(self.providers[key[0]].inventories[key[1]]), before):
                return False
        return True

    def _reshape(self, write: Reshape) -> str:
        """The old and the new inventories exist for a moment, then the old ones go. A wrong result is rolled back."""
        before = dict(self.providers), dict(self.holdings)
        verdict = self._reshaped(write)
        if verdict != "Done":
            self.providers, self.holdings = before
        return verdict

    def _reshaped(self, write: Reshape) -> str:
        for one in write.inventories:
            if one.provider not in self.providers:
                return "UnknownProvider"
            if one.generation != self.providers[one.provider].generation:
                return "GenerationMoved"
        for one in write.inventories:
            provider = self.providers[one.provider]
            generation = provider.generation + bool(one.inventories)
            both = {**provider.inventories, **one.inventories}
            self._change(one.provider, inventories=both, generation=generation)
        named = {name for one in write.inventories for name in one.inventories}
        verdict = self._allocate(write.allocations, named)
        if verdict != "Done":
            return verdict
        for one in write.inventories:
            provider = self.providers[one.provider]
            gone = [name for name in provider.inventories if name not in one.inventories]
            if any(self.used((one.provider, name)) for name in gone):
                return "InventoryInUse"
            self._change(one.provider, inventories=dict(one.inventories), generation=provider.generation + 1)
        return "Done"


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
        place=state.place,
    )


def holding_of(row: BookEntry) -> HoldingRecord:
    return HoldingRecord(row.generation, summed(row.held))


def summed(held: Iterable[ResourceAmount]) -> dict[InventoryKey, int]:
    amounts: dict[InventoryKey, int] = {}
    for each in held:
        stock = (each.provider, each.resource)
        amounts[stock] = amounts.get(stock, 0) + each.amount
    return amounts


def broken_bound(inventory: ReportedInventory, amount: int) -> str:
    """The bound of the inventory that this amount breaks; empty if none."""
    if amount < inventory.min_unit:
        return "min_unit"
    if amount > inventory.max_unit:
        return "max_unit"
    return "step_size" if amount % inventory.step_size else ""


def capacity(inventory: ReportedInventory) -> int:
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
