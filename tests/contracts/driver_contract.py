"""A test kit for the contract of drivers. Given a function that creates a driver, it lists what the driver breaks.

    assert breaches(lambda: MyDriver(...)) == ()

Placement, or another provider of the tree, relies on each rule about trees, and the conductor on each rule about work. The
driver must be one on which all work succeeds. `proceed` is called whenever time passes: a hypervisor that a test controls then
does the work that was ordered.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from uuid import UUID, uuid5

from msgspec import structs

from compute_sim.core.attempts import WELL, AttemptRecord, AttemptState, HostOrder, begun, looked_at
from compute_sim.core.trees import ProviderTree, TreeProvider, flaw_of
from compute_sim.drivers import Driver
from engine.flavors import Flavor
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, Share
from laboratory.check.orders import SEQUENCES, HostUnderCheck, InstanceOrders, interruptions
from tests.contracts.driver_reshapes import breaches_of_reshapes

_OURS = UUID("0d3c7a52-8f0e-4d57-9c3a-6a3a3f6f7a11")

# How often a driver may say that its work goes on.
LOOKS_MAX = 100


def breaches(
    make: Callable[[], Driver],
    at_s: float = 0.0,
    proceed: Callable[[], None] = lambda: None,
    *,
    moves_live: bool = True,
) -> tuple[str, ...]:
    """Every rule that this driver breaks, as a sentence; empty for a correct driver. One that cannot have an instance twice on its host
    does not move it live to itself (`moves_live`): it must refuse to.
    """
    return (
        *_breaches(make, at_s),
        *breaches_of_reshapes(make(), at_s),
        *_breaches_at_work(make, at_s, proceed, moves_live=moves_live),
    )


def _breaches(make: Callable[[], Driver], at_s: float) -> Iterator[str]:
    driver = make()
    first = driver.update_provider_tree(ProviderTree(driver.root), at_s)
    if driver.root not in first.providers:
        yield f"the first call does not create the root {driver.root}"
        return
    if flaw := flaw_of(ProviderTree(driver.root), first):
        yield f"on an empty tree: {flaw}"
    yield from _nonsense(first)
    if driver.update_provider_tree(first, at_s) != first:
        yield "a call with its own result returns something else, though nothing changed"
    again = make()
    if again.root != driver.root or again.update_provider_tree(ProviderTree(again.root), at_s) != first:
        yield "a new driver, as after a restart, creates another tree: derive the ids from the hardware"
    yield from _breaches_after_loss(driver, first, at_s)


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


def _nonsense(tree: ProviderTree) -> Iterator[str]:
    """Inventories and names that placement would refuse from any reporter."""
    for name, bearers in groupby(sorted(each.name for each in tree.providers.values())):
        if len(list(bearers)) > 1:
            yield f"several providers are called {name!r}"
    for each in tree.providers.values():
        for resource, inventory in each.inventories.items():
            if inventory.reserved > inventory.total:
                yield f"{each.name!r} reserves {inventory.reserved} of {inventory.total} {resource}"
            if inventory.min_unit > inventory.max_unit:
                yield f"{each.name!r}: min_unit of {resource} is {inventory.min_unit}, max_unit {inventory.max_unit}"


_RESULTS = {
    AttemptState.BUILDING: AttemptState.BUILT,
    AttemptState.RECEIVING: AttemptState.BUILT,
    AttemptState.STOPPING: AttemptState.STOPPED,
    AttemptState.STARTING: AttemptState.BUILT,
    AttemptState.REBUILDING: AttemptState.BUILT,
    AttemptState.DESTROYED: AttemptState.DESTROYED,
}


def _breaches_at_work(
    make: Callable[[], Driver], at_s: float, proceed: Callable[[], None], *, moves_live: bool
) -> Iterator[str]:
    driver = make()

    def end(attempt: AttemptRecord, words: str) -> Iterator[str]:
        nonlocal at_s
        work, result = f"{attempt.state.value} {words}", _RESULTS[attempt.state]
        if attempt.stays_stopped:
            result = AttemptState.STOPPED
        for _ in range(LOOKS_MAX):
            proceed()
            at_s = max(at_s, attempt.ends_s or 0.0)
            attempt, answer = looked_at(attempt, WELL, driver.look_at(attempt, at_s), at_s)
            if answer is not None:
                yield from _breaches_after_its_end(driver, attempt, at_s, work)
                break
        else:
            yield f"{work}: the work does not end"
            return
        if attempt.state is not result:
            yield f"{work}: the work fails: {attempt.failure}"

    def obey(words: str, *orders: HostOrder) -> Iterator[str]:
        for order in orders:
            yield from end(begun(order, driver.begin(order, at_s), at_s), words)

    yield from _sequences(driver.root, obey, moves_live=moves_live)
    for each in interruptions(partial(_orders_of, driver.root)):
        yield from obey("before another order", *each.before)
        driver.begin(each.work, at_s)
        yield from obey(f"while the work of {type(each.work).__name__} goes on", each.last)
        yield from obey("at last", *_destroys(each.work))
    for each in interruptions(partial(_orders_of, driver.root, words=" of a new process")):
        yield from obey("before a restart", *each.before)
        attempt = begun(each.work, driver.begin(each.work, at_s), at_s)
        driver = make()
        yield from end(attempt, "in a new driver, as after a restart")
        yield from obey("at last", *_destroys(each.work))


def _breaches_after_its_end(driver: Driver, attempt: AttemptRecord, at_s: float, work: str) -> Iterator[str]:
    """An answer that could not be sent is due again, and the driver is asked once more before it is sent."""
    if driver.look_at(attempt, at_s).left_ms:
        yield f"{work}: it is begun once more by a look after its end"


def _sequences(host: ProviderId, obey: Callable[..., Iterator[str]], *, moves_live: bool) -> Iterator[str]:
    for words, sequence in SEQUENCES.items():
        orders = sequence(_orders_of(host, words))
        yield from obey(words, *orders)
        yield from obey("at last", *_destroys(orders[0]))
    live = _orders_of(host, "live")
    yield from obey("before a live move", live.spawn())
    refused = [*obey("live", live.receive(live=True))]
    if moves_live:
        yield from refused
    else:
        if not refused:
            yield "it says that it has moved an instance live to its own host, which it cannot"
        yield from obey("after a refused live move", live.stop(1), live.start(1))
    yield from obey("at last", live.destroy(1), live.destroy(2))
    yield from obey("though it is unknown", _orders_of(host, "unknown").destroy())


def _orders_of(host: ProviderId, name: str, words: str = "") -> InstanceOrders:
    amounts = {"VCPU": 1, "MEMORY_MB": 64}
    share = Share(
        host=host,
        amounts=tuple(
            [ResourceAmount(provider=host, resource=each, amount=amount) for each, amount in amounts.items()]
        ),
    )
    on = HostUnderCheck(cell="c1", host=host, flavor=Flavor(vcpus=1, ram_mb=64), share=share)
    return InstanceOrders(on, ConsumerId(uuid5(_OURS, name + words)))


def _destroys(order: HostOrder) -> tuple[HostOrder, HostOrder]:
    """Orders to destroy both attempts of the instance that this order is about."""
    of = InstanceOrders(HostUnderCheck(cell=order.cell, host=order.host), order.instance)
    return of.destroy(1), of.destroy(2)
