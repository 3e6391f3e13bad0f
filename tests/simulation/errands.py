"""What clerks write into placement's books by name, and how they come upon it: each errand a few questions and writes.

An errand is drawn as a deed and a lot. What it is about is chosen when it is done, by its lot, among what its clerk knows
then, which may be old by the time the write arrives: that is what generations are for.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol
from uuid import NAMESPACE_OID, UUID, uuid5

from msgspec import UNSET, structs

from bus.message import AggregateId, ConsumerId, ProviderId
from bus.messages.administration import (
    ConsumerAllocations,
    ConsumerState,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteAllocations,
    DeleteClass,
    DeleteProvider,
    DeleteTrait,
    DropInventory,
    ProviderInventories,
    ProviderWritten,
    PutInventory,
    RenameClass,
    Reshape,
    SetAggregates,
    SetAllocations,
    SetInventories,
    SetTraits,
    UpdateProvider,
    Write,
    WriteVerdict,
)
from bus.messages.placement import InventoryState, ProviderState, ReportedInventory, ResourceAmount
from tests.simulation.plan import GOLD

LABELS = ("CUSTOM_LABEL_A", "CUSTOM_LABEL_B")
ACRE, FIELD = "CUSTOM_ACRE", "CUSTOM_FIELD"
SHARES = "MISC_SHARES_VIA_AGGREGATE"


def _id(name: str) -> UUID:
    return uuid5(NAMESPACE_OID, f"of the clerks: {name}")


# Providers that belong to clerks, beside the hosts, which have reporters.
NAMES = ("barn", "forge", "manor", "mill", "well", "yard")
OWN = tuple(ProviderId(_id(name)) for name in NAMES)
POOL = ProviderId(_id("pool"))
TENANTS = tuple(ConsumerId(_id(f"tenant {n}")) for n in range(8))
GROUPS = tuple(AggregateId(_id(f"group {n}")) for n in range(3))


class Hand(Protocol):
    """How a clerk reaches the books."""

    async def write(self, write: Write) -> WriteVerdict: ...

    async def providers(self) -> Mapping[ProviderId, ProviderState]: ...

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None: ...

    async def holders_of(self, provider: ProviderId) -> Sequence[ConsumerState]: ...

    async def inquire(self) -> None:
        """Ask whatever else may be asked."""


class Clerk:
    """Knows what it was told last."""

    def __init__(self, hand: Hand, pause: Callable[[float], Awaitable[None]]) -> None:
        self._hand = hand
        self._pause = pause
        self._known: Mapping[ProviderId, ProviderState] = {}
        self._tenants: dict[ConsumerId, ConsumerState | None] = {}

    async def do(self, deed: str, chance: random.Random) -> None:
        match deed:
            case "inquire":
                await self._hand.inquire()
            case "release":
                await self._hand.write(DeleteAllocations(consumer=chance.choice(TENANTS)))
            case "name":
                await self._hand.write(_naming(chance))
            case "let":
                await self._let(chance)
            case "share":
                await self._share(chance)
            case "reshape":
                await self._reshape(chance)
            case _:
                known = await self._look(chance)
                if write := _DEEDS[deed](known, chance):
                    await self._pause(chance.choice((0.0, 0.0, 0.05, 0.5)))
                    await self._hand.write(write)

    async def _look(self, chance: random.Random) -> Mapping[ProviderId, ProviderState]:
        """Or it believes that nothing has changed since."""
        if not self._known or chance.random() < 0.7:
            self._known = await self._hand.providers()
        return self._known

    async def _tenant(self, tenant: ConsumerId, chance: random.Random) -> ConsumerState | None:
        if tenant not in self._tenants or chance.random() < 0.8:
            self._tenants[tenant] = await self._hand.consumer(tenant)
        return self._tenants[tenant]

    async def _let(self, chance: random.Random) -> None:
        """What some of its tenants are to hold from now on: all of it, or nothing is changed."""
        known = await self._look(chance)
        stocks = [(state, resource) for state in known.values() for resource in state.inventories]
        # Hosts are many, and the clerks' own few.
        own = [stock for stock in stocks if stock[0].cell == ""]
        wishes = []
        for tenant in chance.sample(TENANTS, chance.choice((1, 1, 2, 3))):
            state = await self._tenant(tenant, chance)
            among = own if chance.random() < 0.5 else stocks
            named = chance.sample(among, min(len(among), chance.choice((0, 1, 1, 2))))
            wishes.append(
                ConsumerAllocations(
                    consumer=tenant,
                    amounts=tuple(
                        ResourceAmount(
                            provider=provider.id, resource=resource, amount=_some(resource, chance)
                        )
                        for provider, resource in named
                    ),
                    project="estate",
                    user="clerk",
                    generation=state.generation if state else None,
                    type="TENANT",
                    judges_generation=chance.random() < 0.9,
                )
            )
        await self._pause(chance.choice((0.0, 0.0, 0.05, 0.5)))
        await self._hand.write(SetAllocations(consumers=tuple(wishes)))

    async def _share(self, chance: random.Random) -> None:
        """A pool of disks for who is in its group."""
        await self._hand.write(CreateProvider(id=POOL, name="pool"))
        disks = {"DISK_GB": ReportedInventory(total=chance.choice((50, 500)))}
        known = await self._look(chance)
        generation = known[POOL].generation if POOL in known else 0
        set_ = await self._hand.write(SetInventories(provider=POOL, generation=generation, inventories=disks))
        if isinstance(set_, ProviderWritten):
            generation = set_.generation
        await self._hand.write(SetTraits(provider=POOL, generation=generation, traits=(SHARES,)))
        await self._hand.write(SetAggregates(provider=POOL, generation=None, aggregates=GROUPS[:1]))

    async def _reshape(self, chance: random.Random) -> None:
        """One class of a provider goes to a child of it, or comes back, with all that is held of it."""
        known = await self._hand.providers()
        wholes = [state for state in known.values() if state.parent is None and state.id != POOL]
        if not wholes:
            return
        whole = chance.choice(wholes)
        part_id = ProviderId(_id(f"part of {whole.name}"))
        if part_id not in known:
            await self._hand.write(CreateProvider(id=part_id, name=f"part of {whole.name}", parent=whole.id))
            known = await self._hand.providers()
        part = known.get(part_id)
        if part is None or whole.id not in known:
            return
        whole = known[whole.id]
        resource = chance.choice(("VCPU", "MEMORY_MB"))
        source, target = (part, whole) if resource in part.inventories else (whole, part)
        if resource not in source.inventories:
            return
        # Now and then it overlooks somebody.
        holders = (await self._hand.holders_of(source.id))[chance.random() < 0.15 :]
        await self._pause(chance.choice((0.0, 0.0, 0.05, 0.5)))
        await self._hand.write(_reshaped(source, target, resource, holders))


def _reshaped(
    source: ProviderState, target: ProviderState, resource: str, holders: Sequence[ConsumerState]
) -> Reshape:
    left = {name: _reported(stock) for name, stock in source.inventories.items() if name != resource}
    grown = {name: _reported(stock) for name, stock in target.inventories.items()}
    return Reshape(
        inventories=(
            ProviderInventories(provider=source.id, generation=source.generation, inventories=left),
            ProviderInventories(
                provider=target.id,
                generation=target.generation,
                inventories={resource: _reported(source.inventories[resource]), **grown},
            ),
        ),
        allocations=tuple(
            ConsumerAllocations(
                consumer=each.id,
                amounts=tuple(_moved(amount, source.id, target.id, resource) for amount in each.held),
                project=each.project,
                user=each.user,
                generation=each.generation,
            )
            for each in holders
            if any(amount.provider == source.id and amount.resource == resource for amount in each.held)
        ),
    )


def _moved(amount: ResourceAmount, source: ProviderId, target: ProviderId, resource: str) -> ResourceAmount:
    if (amount.provider, amount.resource) != (source, resource):
        return amount
    return structs.replace(amount, provider=target)


def _reported(stock: InventoryState) -> ReportedInventory:
    return ReportedInventory(
        total=stock.total,
        reserved=stock.reserved,
        min_unit=stock.min_unit,
        max_unit=stock.max_unit,
        step_size=stock.step_size,
        allocation_ratio=stock.allocation_ratio,
    )


def _some(resource: str, chance: random.Random) -> int:
    return chance.choice((1, 1, 2, 4)) * (256 if resource == "MEMORY_MB" else 1)


# Errands of one write: None where there is nothing to write about.

Known = Mapping[ProviderId, ProviderState]


def _naming(chance: random.Random) -> Write:
    label = chance.choice(LABELS)
    return chance.choice(
        (
            CreateTrait(name=label),
            CreateTrait(name=label),
            DeleteTrait(name=label),
            CreateClass(name=ACRE),
            RenameClass(name=ACRE, to=FIELD),
            DeleteClass(name=FIELD),
        )
    )


def _planting(known: Known, chance: random.Random) -> Write:
    missing = [n for n, own in enumerate(OWN) if own not in known]
    n = chance.choice(missing if missing and chance.random() < 0.9 else range(len(OWN)))
    name = NAMES[n] if chance.random() < 0.9 else chance.choice(NAMES)
    parent = chance.choice((None, None, *[own for own in OWN if own in known], *list(known)[:1]))
    return CreateProvider(id=OWN[n], name=name, parent=parent)


def _moving(known: Known, chance: random.Random) -> Write | None:
    own = _own(known)
    if not own:
        return None
    moved = chance.choice(own)
    places = (None, UNSET, *[each.id for each in own], *list(known)[:1])
    return UpdateProvider(
        id=moved.id,
        name=moved.name if chance.random() < 0.8 else chance.choice(NAMES),
        parent=chance.choice(places),
        reparents=chance.random() < 0.9,
    )


def _felling(known: Known, chance: random.Random) -> Write | None:
    own = _own(known)
    return DeleteProvider(id=chance.choice(own).id) if own else None


def _stocking(known: Known, chance: random.Random) -> Write | None:
    own = _own(known)
    if not own:
        return None
    state = chance.choice(own)
    provider, generation = state.id, _generation(state, chance)
    resource = chance.choice((*state.inventories, "VCPU", "MEMORY_MB", ACRE))
    stock = ReportedInventory(total=chance.choice((4, 16)) * (256 if resource == "MEMORY_MB" else 1))
    match chance.choice(("all", "all", "one", "new", "none")):
        case "one":
            return PutInventory(provider=provider, generation=generation, resource=resource, inventory=stock)
        case "new":
            return PutInventory(
                provider=provider, generation=generation, resource=resource, inventory=stock, is_new=True
            )
        case "none":
            return DropInventory(provider=provider, resource=resource)
        case _:
            stocks = {"VCPU": ReportedInventory(total=8), resource: stock}
            return SetInventories(provider=provider, generation=generation, inventories=stocks)


def _labelling(known: Known, chance: random.Random) -> Write | None:
    if not known:
        return None
    state = chance.choice(list(known.values()))
    changed = {chance.choice((*LABELS, *LABELS, GOLD))}
    kept = set(state.traits)
    traits = kept - changed if kept & changed else kept | changed
    return SetTraits(provider=state.id, generation=_generation(state, chance), traits=tuple(sorted(traits)))


def _grouping(known: Known, chance: random.Random) -> Write | None:
    if not known:
        return None
    state = chance.choice(list(known.values()))
    groups = tuple(chance.sample(GROUPS, chance.choice((0, 1, 1, 2))))
    return SetAggregates(
        provider=state.id,
        generation=_generation(state, chance),
        aggregates=groups,
        moves_generation=chance.random() < 0.8,
    )


def _own(known: Known) -> list[ProviderState]:
    return [known[own] for own in OWN if own in known]


def _generation(state: ProviderState, chance: random.Random) -> int | None:
    return chance.choice((state.generation,) * 8 + (None, max(0, state.generation - 1)))


_DEEDS: dict[str, Callable[[Known, random.Random], Write | None]] = {
    "plant": _planting,
    "move": _moving,
    "fell": _felling,
    "stock": _stocking,
    "label": _labelling,
    "group": _grouping,
}
# How often each is drawn.
EVERY_DEED = (
    *("plant",) * 3,
    *("move",) * 2,
    *("fell",) * 2,
    *("stock",) * 4,
    *("label",) * 3,
    *("group",) * 2,
    *("let",) * 6,
    "release",
    "share",
    *("reshape",) * 3,
    *("name",) * 2,
    "inquire",
)
