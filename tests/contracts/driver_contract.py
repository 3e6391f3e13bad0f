"""A test kit for the `update_provider_tree` contract. Given a function that creates a driver, it lists what the driver
breaks.

    assert breaches(lambda: MyDriver(...)) == ()

Placement, or another provider of the tree, relies on each rule.
"""

from collections.abc import Callable, Iterator
from itertools import groupby
from uuid import UUID, uuid5

from msgspec import structs

from bus.message import ProviderId
from bus.messages.placement import ReportedInventory
from compute_sim.core.tree import ProviderTree, TreeProvider, flaw_of
from compute_sim.drivers import Driver

_OURS = UUID("0d3c7a52-8f0e-4d57-9c3a-6a3a3f6f7a11")
STORAGE = TreeProvider(
    id=ProviderId(uuid5(_OURS, "storage")),
    name="shared-storage",
    inventories={"DISK_GB": ReportedInventory(total=10_000)},
    traits=frozenset({"MISC_SHARES_VIA_AGGREGATE"}),
)
OPERATORS_TRAIT = "CUSTOM_SET_BY_AN_OPERATOR"


def breaches(make: Callable[[], Driver], at_s: float = 0.0) -> tuple[str, ...]:
    """Every rule that this driver breaks, as a sentence; empty for a correct driver."""
    return tuple(_breaches(make, at_s))


def _breaches(make: Callable[[], Driver], at_s: float) -> Iterator[str]:
    driver = make()
    first = driver.update_provider_tree(ProviderTree(driver.root), at_s)
    if driver.root not in first.own:
        yield f"the first call does not create the root {driver.root}"
        return
    yield from _flaws(ProviderTree(driver.root), first, "on an empty tree")
    yield from _nonsense(first)
    if driver.update_provider_tree(first, at_s) != first:
        yield "a call with its own result returns something else, though nothing changed"
    again = make()
    if again.root != driver.root or again.update_provider_tree(ProviderTree(again.root), at_s) != first:
        yield "a new driver, as after a restart, creates another tree: derive the ids from the hardware"
    yield from _breaches_beside_others(driver, first, at_s)
    yield from _breaches_after_loss(driver, first, at_s)


def _breaches_beside_others(driver: Driver, first: ProviderTree, at_s: float) -> Iterator[str]:
    """Rules beside a provider that shares with the host, and an operator's trait on every provider of the host."""
    marked = {
        id_: structs.replace(each, foreign_traits=frozenset({OPERATORS_TRAIT}))
        for id_, each in first.providers.items()
    }
    given = ProviderTree(first.root, {**marked, STORAGE.id: STORAGE}, first.foreign | frozenset({STORAGE.id}))
    edited = driver.update_provider_tree(given, at_s)
    yield from _flaws(given, edited, "beside foreign providers and traits")
    if any(OPERATORS_TRAIT in each.traits for each in edited.own.values()):
        yield f"it claims the operator's trait {OPERATORS_TRAIT} as its own: nobody could unset it again"


def _breaches_after_loss(driver: Driver, first: ProviderTree, at_s: float) -> Iterator[str]:
    """Rules for a provider that no longer exists, and one that was changed by another program."""
    stale = TreeProvider(id=ProviderId(uuid5(_OURS, "stale")), name="unplugged", parent=first.root)
    if stale.id in driver.update_provider_tree(_with(first, stale), at_s).providers:
        yield "its own provider stays in the tree after it no longer exists"
    bare = TreeProvider(id=first.root, name=first.providers[first.root].name)
    if driver.update_provider_tree(_with(first, bare), at_s) != first:
        yield "it does not restore lost inventories and traits of its root"


def _with(tree: ProviderTree, provider: TreeProvider) -> ProviderTree:
    return structs.replace(tree, providers={**tree.providers, provider.id: provider})


def _flaws(given: ProviderTree, edited: ProviderTree, where: str) -> Iterator[str]:
    if flaw := flaw_of(given, edited):
        yield f"{where}: {flaw}"


def _nonsense(tree: ProviderTree) -> Iterator[str]:
    """Inventories and names that placement would refuse from any reporter."""
    for name, bearers in groupby(sorted(each.name for each in tree.own.values())):
        if len(list(bearers)) > 1:
            yield f"several providers are called {name!r}"
    for each in tree.own.values():
        for resource, inventory in each.inventories.items():
            if inventory.reserved > inventory.total:
                yield f"{each.name!r} reserves {inventory.reserved} of {inventory.total} {resource}"
            if inventory.min_unit > inventory.max_unit:
                yield f"{each.name!r}: min_unit of {resource} is {inventory.min_unit}, max_unit {inventory.max_unit}"
