"""The test kit of the `update_provider_tree` contract: give it a way to make a driver, and it says what is broken.

    assert breaches(lambda: MyDriver(...)) == ()

Each rule is there because placement, or whoever shares the tree, relies on it.
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
    """Every rule that a driver made so breaks, as a sentence; none if it may be trusted."""
    return tuple(_breaches(make, at_s))


def _breaches(make: Callable[[], Driver], at_s: float) -> Iterator[str]:
    driver = make()
    first = driver.update_provider_tree(ProviderTree(driver.root), at_s)
    if driver.root not in first.own:
        yield f"asked for the first time it does not make its root {driver.root}"
        return
    yield from _flaws(ProviderTree(driver.root), first, "on an empty tree")
    yield from _nonsense(first)
    if driver.update_provider_tree(first, at_s) != first:
        yield "asked again with what it returned it returns something else, though nothing changed"
    again = make()
    if again.root != driver.root or again.update_provider_tree(ProviderTree(again.root), at_s) != first:
        yield "made anew, as after a restart, it makes another tree: its ids must follow from what it drives"
    yield from _breaches_beside_others(driver, first, at_s)
    yield from _breaches_after_loss(driver, first, at_s)


def _breaches_beside_others(driver: Driver, first: ProviderTree, at_s: float) -> Iterator[str]:
    """A provider that shares with the host, and an operator who has set a trait on every provider of it."""
    marked = {
        id_: structs.replace(each, foreign_traits=frozenset({OPERATORS_TRAIT}))
        for id_, each in first.providers.items()
    }
    given = ProviderTree(first.root, {**marked, STORAGE.id: STORAGE}, first.foreign | frozenset({STORAGE.id}))
    edited = driver.update_provider_tree(given, at_s)
    yield from _flaws(given, edited, "beside foreign providers and traits")
    if any(OPERATORS_TRAIT in each.traits for each in edited.own.values()):
        yield f"it takes the operator's trait {OPERATORS_TRAIT} for its own: it could never be unset again"


def _breaches_after_loss(driver: Driver, first: ProviderTree, at_s: float) -> Iterator[str]:
    """A provider of its own that is there no more, and one that was changed behind its back."""
    stale = TreeProvider(id=ProviderId(uuid5(_OURS, "stale")), name="unplugged", parent=first.root)
    if stale.id in driver.update_provider_tree(_with(first, stale), at_s).providers:
        yield "a provider of its own that is not there any more stays in the tree"
    bare = TreeProvider(id=first.root, name=first.providers[first.root].name)
    if driver.update_provider_tree(_with(first, bare), at_s) != first:
        yield "inventories and traits of its root that got lost are not put back"


def _with(tree: ProviderTree, provider: TreeProvider) -> ProviderTree:
    return structs.replace(tree, providers={**tree.providers, provider.id: provider})


def _flaws(given: ProviderTree, edited: ProviderTree, where: str) -> Iterator[str]:
    if flaw := flaw_of(given, edited):
        yield f"{where}: {flaw}"


def _nonsense(tree: ProviderTree) -> Iterator[str]:
    """What placement would refuse whoever asked."""
    for name, bearers in groupby(sorted(each.name for each in tree.own.values())):
        if len(list(bearers)) > 1:
            yield f"several providers are called {name!r}"
    for each in tree.own.values():
        for resource, inventory in each.inventories.items():
            if inventory.reserved > inventory.total:
                yield f"{each.name!r} reserves {inventory.reserved} of {inventory.total} {resource}"
            if inventory.min_unit > inventory.max_unit:
                yield f"{each.name!r}: min_unit of {resource} is {inventory.min_unit}, max_unit {inventory.max_unit}"
