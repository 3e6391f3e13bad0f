"""The rules of a driver for reshapes of its host, as a part of its contract (driver_contract.py)."""

from collections.abc import Iterator, Mapping
from uuid import UUID, uuid5

from msgspec import structs

from compute_sim.core.trees import Allocations, CannotReshape, ProviderTree, TreeProvider, flaw_of_answer
from compute_sim.drivers import Driver
from engine.inventories import ConsumerId, ProviderId, ReportedInventory, ResourceAmount

_OLD = ProviderId(UUID("5b1d1d3e-0f0c-4a5e-8d0d-0f6f4b7f1c01"))
_SMALL, _LARGE = (ConsumerId(uuid5(_OLD, each)) for each in ("small", "large"))


def breaches_of_reshapes(driver: Driver, at_s: float) -> Iterator[str]:
    """The host had one provider more, which had everything. What consumers hold of it goes to the present tree."""
    new = driver.update_provider_tree(ProviderTree(driver.root), at_s)
    stock = {
        resource: each
        for provider in new.providers.values()
        for resource, each in provider.inventories.items()
    }
    if not stock:
        return
    known = _in_one(new, stock)
    fits = {_SMALL: _held({resource: each.min_unit for resource, each in stock.items()})}
    yield from _flaws(driver, known, new, fits)
    more = {resource: 2 * _capacity(new, resource) + each.min_unit for resource, each in stock.items()}
    answer = driver.reshape(known, new, {**fits, _LARGE: _held(more)})
    if not isinstance(answer, CannotReshape):
        yield "a reshape: it finds room for more than its host has"
    elif not answer.reason:
        yield "a reshape: it refuses, and does not say why"
    if driver.update_provider_tree(new, at_s) != new:
        yield "a reshape changes its tree"


def _flaws(driver: Driver, known: ProviderTree, new: ProviderTree, allocations: Allocations) -> Iterator[str]:
    answer = driver.reshape(known, new, allocations)
    if isinstance(answer, CannotReshape):
        # It may know of reasons of its own.
        if not answer.reason:
            yield "a reshape: it refuses, and does not say why"
        return
    if flaw := flaw_of_answer(new, allocations, answer):
        yield f"a reshape: {flaw}"
        return
    for each in [each for amounts in answer.values() for each in amounts]:
        if each.resource not in new.providers[each.provider].inventories:
            yield f"a reshape: {new.providers[each.provider].name} gives {each.resource}, and has none"
    driver.reshaped(answer)


def _in_one(new: ProviderTree, stock: Mapping[str, ReportedInventory]) -> ProviderTree:
    empty = {each.id: structs.replace(each, inventories={}) for each in new.providers.values()}
    old = TreeProvider(id=_OLD, name="old", parent=new.root, inventories=dict(stock))
    return ProviderTree(new.root, {**empty, _OLD: old})


def _held(amounts: Mapping[str, int]) -> tuple[ResourceAmount, ...]:
    return tuple(
        [
            ResourceAmount(provider=_OLD, resource=resource, amount=amount)
            for resource, amount in amounts.items()
        ]
    )


def _capacity(tree: ProviderTree, resource: str) -> int:
    return sum(
        max(0, int((each.total - each.reserved) * each.allocation_ratio))
        for provider in tree.providers.values()
        if (each := provider.inventories.get(resource)) is not None
    )
