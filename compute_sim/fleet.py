"""The simulated hosts of one process, their faults, and their clock."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from bus.message import ProviderId
from bus.messages.cell import SpawnInstance
from compute_sim.core.faults import (
    WELL,
    BuildOutcome,
    BuildsSlowly,
    ComesBackLate,
    Condition,
    Dies,
    FailsToBuild,
    FallsSilent,
    Fault,
    FaultScript,
    build_outcome_of,
    condition_of,
    faults_of,
    next_turn_s,
)
from compute_sim.core.hosts import Host
from compute_sim.drivers import Driver, SimulatedDriver


class Elapsed:
    """Seconds on the event loop's clock since the first call; in a simulation the clock jumps."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def __call__(self) -> float:
        now_s = asyncio.get_running_loop().time()
        if self._began_s is None:
            self._began_s = now_s
        return now_s - self._began_s


class SimulatedHost:
    """One host: its driver and its faults."""

    __slots__ = ("_build_faults", "_no_fault_outcome", "_script", "_silencing", "driver", "faults", "id")

    def __init__(self, host: Host, script: FaultScript, no_fault_outcome: BuildOutcome) -> None:
        self.faults = faults_of(script, host.name)
        self.driver: Driver = SimulatedDriver(host, self.faults)
        self.id = self.driver.root
        # Checked at every order; most hosts have none of these faults.
        self._build_faults = tuple(
            [each for each in self.faults if isinstance(each, FailsToBuild | BuildsSlowly)]
        )
        self._silencing = tuple(
            [each for each in self.faults if isinstance(each, FallsSilent | ComesBackLate | Dies)]
        )
        self._script = script
        self._no_fault_outcome = no_fault_outcome

    def condition(self, at_s: float) -> Condition:
        return condition_of(self._silencing, at_s) if self._silencing else WELL

    def build_outcome(self, order: SpawnInstance, at_s: float) -> BuildOutcome:
        return (
            build_outcome_of(self._script, self._build_faults, order, at_s)
            if self._build_faults
            else self._no_fault_outcome
        )


class Fleet:
    def __init__(self, hosts: Sequence[Host], script: FaultScript, clock_s: Callable[[], float]) -> None:
        self.clock_s = clock_s
        self._script = script
        no_fault_outcome = BuildOutcome(script.spawn_ms)
        simulated = [SimulatedHost(host, script, no_fault_outcome) for host in hosts]
        # By ids as integers, since Python computes the hash of a UUID at each lookup.
        self._hosts = {each.id.int: each for each in simulated}
        if len(self._hosts) != len(hosts):
            raise ValueError(f"{len(hosts)} hosts have only {len(self._hosts)} different names")

    def __iter__(self) -> Iterator[ProviderId]:
        return iter([each.id for each in self._hosts.values()])

    def __getitem__(self, host: ProviderId) -> SimulatedHost:
        return self._hosts[host.int]

    def get(self, host: ProviderId) -> SimulatedHost | None:
        return self._hosts.get(host.int)

    def well(self, hosts: Iterable[ProviderId], at_s: float) -> list[ProviderId]:
        """Those of these hosts that can send."""
        return [host for host in hosts if self._hosts[host.int].condition(at_s) == WELL]

    def next_turn_s(self, at_s: float) -> float | None:
        """When the script next changes something that hosts must report."""
        turns = [turn for fault in self._told() if (turn := next_turn_s(fault, at_s)) is not None]
        return min(turns, default=None)

    def turning(self, since_s: float, at_s: float) -> list[ProviderId]:
        """The hosts for which a fault began or ended after `since_s`, up to `at_s`."""
        turned = {fault for fault in self._told() if _turned(fault, since_s, at_s)}
        return [each.id for each in self._hosts.values() if any(fault in turned for fault in each.faults)]

    def _told(self) -> list[Fault]:
        return [each for each in self._script.faults if not isinstance(each, FailsToBuild | BuildsSlowly)]


def _turned(fault: Fault, since_s: float, at_s: float) -> bool:
    turn = next_turn_s(fault, since_s)
    return turn is not None and turn <= at_s
