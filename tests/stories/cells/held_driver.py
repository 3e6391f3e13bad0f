"""A simulated host whose faults and builds follow a clock that only the test moves, so that no slow machine misses a state."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bus.messages.cell import DestroyInstance
from compute_sim.core.attempts import AttemptRecord, Condition, HostOrder, Silent, Work
from compute_sim.core.trees import ProviderTree
from laboratory.computes.driver import SimulatedDriver
from tests.waiting import Clock

if TYPE_CHECKING:
    from engine.inventories import ConsumerId

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

    def __getattr__(self, name: str) -> Any:
        """What does not depend on the time."""
        return getattr(self._driver, name)

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:  # noqa: ARG002 - not its clock
        return self._driver.update_provider_tree(tree, self.clock.now)

    def next_change_s(self, at_s: float) -> float | None:
        return at_s + LOOK_MS / 1000

    def metrics(self, at_s: float) -> Mapping[str, float]:  # noqa: ARG002 - not its clock
        return self._driver.metrics(self.clock.now)

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
