"""Draws one administrator's write among the rows that it knows. None means that there is no row to write about."""

import random
from collections.abc import Callable, Mapping, Sequence

from msgspec import UNSET, structs

from bus.messages.administration import (
    ConsumerAllocations,
    ConsumerState,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteClass,
    DeleteProvider,
    DeleteTrait,
    DropInventory,
    ProviderInventories,
    PutInventory,
    RenameClass,
    Reshape,
    SetAggregates,
    SetInventories,
    SetTraits,
    UpdateProvider,
    Write,
)
from engine.inventories import InventoryState, ProviderId, ProviderState, ReportedInventory, ResourceAmount
from tests.simulation.fixtures import AGGREGATES, CLASS, OWN_PROVIDERS, PROVIDER_NAMES, RENAMED_CLASS, TRAITS
from tests.simulation.plan import GOLD, RATIOS

Known = Mapping[ProviderId, ProviderState]


def reshaped(
    source: ProviderState,
    target: ProviderState,
    resource: str,
    holders: Sequence[ConsumerState],
    *,
    keeps: bool,
) -> Reshape:
    """Move a resource class with all its allocations to `target`. With `keeps`, the source keeps its inventory as well."""
    left = {name: _reported(stock) for name, stock in source.inventories.items() if keeps or name != resource}
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


def some_amount(resource: str, chance: random.Random) -> int:
    return chance.choice((1, 1, 2, 4)) * (256 if resource == "MEMORY_MB" else 1)


def write_name(chance: random.Random) -> Write:
    label = chance.choice(TRAITS)
    return chance.choice(
        (
            CreateTrait(name=label),
            CreateTrait(name=label),
            DeleteTrait(name=label),
            CreateClass(name=CLASS),
            RenameClass(name=CLASS, to=RENAMED_CLASS),
            DeleteClass(name=RENAMED_CLASS),
        )
    )


def _create_provider(known: Known, chance: random.Random) -> Write:
    missing = [n for n, own in enumerate(OWN_PROVIDERS) if own not in known]
    n = chance.choice(missing if missing and chance.random() < 0.9 else range(len(OWN_PROVIDERS)))
    name = PROVIDER_NAMES[n] if chance.random() < 0.9 else chance.choice(PROVIDER_NAMES)
    parent = chance.choice((None, None, *[own for own in OWN_PROVIDERS if own in known], *list(known)[:1]))
    return CreateProvider(id=OWN_PROVIDERS[n], name=name, parent=parent)


def _move_provider(known: Known, chance: random.Random) -> Write | None:
    own = _own(known)
    if not own:
        return None
    moved = chance.choice(own)
    places = (None, UNSET, *[each.id for each in own], *list(known)[:1])
    return UpdateProvider(
        id=moved.id,
        name=moved.name if chance.random() < 0.8 else chance.choice(PROVIDER_NAMES),
        parent=chance.choice(places),
        reparents=chance.random() < 0.9,
    )


def _delete_provider(known: Known, chance: random.Random) -> Write | None:
    own = _own(known)
    in_use = [each for each in own if any(stock.used for stock in each.inventories.values())]
    among = in_use if in_use and chance.random() < 0.5 else own
    return DeleteProvider(id=chance.choice(among).id) if among else None


def _set_inventory(known: Known, chance: random.Random) -> Write | None:
    own = _own(known)
    if not own:
        return None
    state = chance.choice(own)
    provider, generation = state.id, _generation(state, chance)
    resource = chance.choice((*state.inventories, "VCPU", "MEMORY_MB", CLASS))
    stock = _stock(256 if resource == "MEMORY_MB" else 1, chance)
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


def _stock(unit: int, chance: random.Random) -> ReportedInventory:
    """An inventory; about half of them have a reserve, bounds and a ratio."""
    total = chance.choice((4, 16))
    reserved, step = chance.choice((0, 0, 1, 2)), chance.choice((1, 1, 2))
    return ReportedInventory(
        total=total * unit,
        reserved=reserved * unit,
        min_unit=chance.choice((1, 1, 2)) * unit,
        max_unit=chance.choice((2, 4, total)) * unit,
        step_size=step * unit,
        allocation_ratio=chance.choice(RATIOS),
    )


def _set_traits(known: Known, chance: random.Random) -> Write | None:
    if not known:
        return None
    state = chance.choice(list(known.values()))
    changed = {chance.choice((*TRAITS, *TRAITS, GOLD))}
    kept = set(state.traits)
    traits = kept - changed if kept & changed else kept | changed
    return SetTraits(provider=state.id, generation=_generation(state, chance), traits=tuple(sorted(traits)))


def _set_aggregates(known: Known, chance: random.Random) -> Write | None:
    if not known:
        return None
    state = chance.choice(list(known.values()))
    groups = tuple(chance.sample(AGGREGATES, chance.choice((0, 1, 1, 2))))
    return SetAggregates(
        provider=state.id,
        generation=_generation(state, chance),
        aggregates=groups,
        moves_generation=chance.random() < 0.8,
    )


def _own(known: Known) -> list[ProviderState]:
    return [known[own] for own in OWN_PROVIDERS if own in known]


def _generation(state: ProviderState, chance: random.Random) -> int | None:
    return chance.choice((state.generation,) * 8 + (None, max(0, state.generation - 1)))


DRAWN_WRITES: dict[str, Callable[[Known, random.Random], Write | None]] = {
    "create provider": _create_provider,
    "move provider": _move_provider,
    "delete provider": _delete_provider,
    "set inventory": _set_inventory,
    "set traits": _set_traits,
    "set aggregates": _set_aggregates,
}
