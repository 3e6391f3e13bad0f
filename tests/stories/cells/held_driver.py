"""A simulated host whose faults and builds follow a clock that only the test moves, so that no slow machine misses a state."""

from collections.abc import Mapping, Sequence

from bus.messages.cell import DestroyInstance
from compute_sim.core.attempts import AttemptRecord, Condition, HostOrder, Silent, Work
from compute_sim.core.hosts import Host
from compute_sim.core.trees import Allocations, CannotReshape, ProviderTree
from engine.inventories import ConsumerId, ProviderId
from laboratory.computes.driver import SimulatedDriver
from tests.waiting import Clock

# How often the compute looks whether the test has moved the clock.
LOOK_MS = 20.0
BUSY = Work(LOOK_MS)


class HeldDriver:
    """A `Driver`. The compute has its own clock, which runs; the simulated host has the test's."""

    def __init__(self, driver: SimulatedDriver, clock: Clock[float]) -> None:
        self._driver = driver
        self.clock = clock
        # When the work for an attempt ends, by the test's clock.
        self._ends_at_s: dict[tuple[ConsumerId, int], float] = {}
        self.wake_with, self.stopped, self.console = driver.wake_with, driver.stopped, driver.console
        self.why_broken = driver.why_broken

    @property
    def root(self) -> ProviderId:
        return self._driver.root

    @property
    def host(self) -> Host:
        return self._driver.host

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:  # noqa: ARG002 - not its clock
        return self._driver.update_provider_tree(tree, self.clock.now)

    def reshape(
        self, known: ProviderTree, new: ProviderTree, allocations: Allocations
    ) -> Allocations | CannotReshape:
        return self._driver.reshape(known, new, allocations)

    def reshaped(self, allocations: Allocations) -> None:
        self._driver.reshaped(allocations)

    def next_change_s(self, at_s: float) -> float | None:
        return at_s + LOOK_MS / 1000

    def metrics(self, at_s: float) -> Mapping[str, float]:  # noqa: ARG002 - not its clock
        return self._driver.metrics(self.clock.now)

    def images(self) -> Sequence[str]:
        return self._driver.images()

    def condition(self, at_s: float) -> Condition:
        condition = self._driver.condition(self.clock.now)
        if isinstance(condition, Silent) and condition.until_s is not None:
            return Silent(until_s=at_s + LOOK_MS / 1000)
        return condition

    def begin(self, order: HostOrder, at_s: float) -> Work:  # noqa: ARG002 - not its clock
        work = self._driver.begin(order, self.clock.now)
        if isinstance(order, DestroyInstance):
            self._ends_at_s.pop((order.instance, order.attempt), None)
            return work
        self._ends_at_s[order.instance, order.attempt] = self.clock.now + work.left_ms / 1000
        return Work(LOOK_MS, work.failure)

    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:  # noqa: ARG002 - not its clock
        if self.clock.now < self._ends_at_s.get((attempt.instance, attempt.attempt), 0.0):
            return BUSY
        return self._driver.look_at(attempt, self.clock.now)
