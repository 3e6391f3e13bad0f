"""A second kind of compute: it brings a driver, and stands on the same parts as the simulated hosts.

Its instances are domains that a hypervisor starts and removes in its own time, as libvirt would. Nothing of
`laboratory` is used.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import structs

from bus.memory import MemoryBroker
from bus.messages.cell import (
    DestroyInstance,
    ReceiveInstance,
    RespawnInstance,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from bus.workers.connections import Station
from bus.workers.set_aside import FailedRows
from compute_sim.core.attempts import WELL, AttemptRecord, AttemptState, Condition, HostOrder, Work, begun
from compute_sim.core.hosts import Host
from compute_sim.core.trees import Allocations, CannotReshape, ProviderTree, TreeProvider, first_fit
from compute_sim.drivers import ConsoleText, GuestStopped, NoConsole
from compute_sim.handlers import ComputeStore, Finisher, Fleet
from engine.inventories import ProviderId, ReportedInventory
from kit.errors import Unavailable
from tests.contracts.driver_contract import breaches
from tests.stories.cells.test_compute_sim import spawn
from tests.waiting import until

NAME = "real-1"
LOOK_MS = 10.0
BUSY = Work(LOOK_MS)
Domain = tuple[object, int]


class Hypervisor:
    """Takes its time: a domain starts or ends when the test says so. It outlives the driver."""

    def __init__(self) -> None:
        self.starting: set[Domain] = set()
        self.stopping: set[Domain] = set()
        self.running: set[Domain] = set()
        self.removing: set[Domain] = set()

    def proceed(self) -> None:
        self.running = ((self.running - self.stopping) | self.starting) - self.removing
        for each in (self.starting, self.stopping, self.removing):
            each.clear()


class DomainDriver:
    """A `Driver` that asks a hypervisor."""

    def __init__(self, hypervisor: Hypervisor) -> None:
        self.host = Host(name=NAME, hypervisor_type="KVM")
        self.root = spawn(1, NAME).host
        self._hypervisor = hypervisor

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:  # noqa: ARG002 - it has no clock
        inventories = {"VCPU": ReportedInventory(total=8)}
        root = TreeProvider(id=self.root, name=NAME, inventories=inventories)
        return ProviderTree(self.root, {self.root: root})

    def reshape(
        self, known: ProviderTree, new: ProviderTree, allocations: Allocations
    ) -> Allocations | CannotReshape:
        return first_fit(known, new, allocations)

    def reshaped(self, allocations: Allocations) -> None:
        """A domain of this hypervisor has no places."""

    def next_change_s(self, at_s: float) -> float | None:
        return at_s + LOOK_MS / 1000

    def metrics(self, at_s: float) -> Mapping[str, float]:  # noqa: ARG002 - it measures nothing
        return {}

    def images(self) -> Sequence[str]:
        return ()

    def condition(self, at_s: float) -> Condition:  # noqa: ARG002 - it has no clock
        return WELL

    def wake_with(self, wake: Callable[[ProviderId], None]) -> None:
        """It is looked at every LOOK_MS."""

    def stopped(self, running: Iterable[AttemptRecord]) -> Sequence[GuestStopped]:  # noqa: ARG002 - none ever does
        return ()

    def why_broken(self, attempt: AttemptRecord) -> str:  # noqa: ARG002 - none ever is
        return ""

    async def console(self, attempt: AttemptRecord, start: int, limit: int) -> ConsoleText:  # noqa: ARG002 - there is none
        raise NoConsole(f"{NAME} keeps no consoles")

    def begin(self, order: HostOrder, at_s: float) -> Work:  # noqa: ARG002 - it has no clock
        domain, hypervisor = (order.instance, order.attempt), self._hypervisor
        hypervisor.starting.discard(domain)
        hypervisor.stopping.discard(domain)
        match order:
            case StopInstance():
                hypervisor.stopping.add(domain)
            case DestroyInstance() if domain in hypervisor.running:
                hypervisor.removing.add(domain)
            case DestroyInstance():
                return Work()
            case SpawnInstance(stopped=True) | ReceiveInstance(stopped=True):
                # It is defined, and does not run.
                return Work()
            case SpawnInstance() | ReceiveInstance() | StartInstance():
                hypervisor.starting.add(domain)
            case RespawnInstance():
                hypervisor.running.discard(domain)
                hypervisor.starting.add(domain)
        return BUSY

    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:  # noqa: ARG002 - it has no clock
        domain = (attempt.instance, attempt.attempt)
        if domain in self._hypervisor.starting | self._hypervisor.stopping | self._hypervisor.removing:
            return BUSY
        runs = domain in self._hypervisor.running
        if attempt.stays_stopped:
            return Work(failure="the domain runs" if runs else "")
        if (
            attempt.state
            in (AttemptState.BUILDING, AttemptState.RECEIVING, AttemptState.STARTING, AttemptState.REBUILDING)
            and not runs
        ):
            return Work(failure="the domain did not start")
        if attempt.state is AttemptState.STOPPING and runs:
            return Work(failure="the domain did not stop")
        return Work()


async def test_a_driver_of_another_kind_keeps_the_contract() -> None:
    hypervisor = Hypervisor()

    assert breaches(lambda: DomainDriver(hypervisor), proceed=hypervisor.proceed) == ()


class Watching(DomainDriver):
    """It says that something has changed, and that each guest has stopped."""

    wake: Callable[[ProviderId], None]

    def wake_with(self, wake: Callable[[ProviderId], None]) -> None:
        self.wake = wake

    def stopped(self, running: Iterable[AttemptRecord]) -> Sequence[GuestStopped]:
        return [GuestStopped(each, "crashed") for each in running]


class AwayOnce(ComputeStore):
    is_away = True

    async def replace(self, pairs: Iterable[tuple[AttemptRecord, AttemptRecord]]) -> None:
        if self.is_away:
            self.is_away = False
            raise Unavailable("the database is away")
        await super().replace(pairs)


async def test_a_guest_that_stops_while_the_database_is_away_is_told_when_it_is_back() -> None:
    driver, store = Watching(Hypervisor()), AwayOnce(lambda: 0.0)
    station = Station(MemoryBroker().as_user(), "compute-c1-1")
    guest = begun(spawn(1, NAME), Work(), 0.0)
    await store.save([structs.replace(guest, state=AttemptState.BUILT, ends_s=None)])
    finisher = Finisher(
        Fleet([driver], store.clock_s), store, station.publisher, 0, FailedRows(station, "compute.c1.work")
    )
    running = asyncio.create_task(finisher.run())
    driver.wake(driver.root)

    async def is_stopped() -> bool:
        (known,) = (await store.load([guest.key])).values()
        return known.state is AttemptState.STOPPED

    await until(is_stopped, "the stop is told, with the next look")
    running.cancel()
