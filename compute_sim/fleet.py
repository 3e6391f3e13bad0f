"""The pretended hosts of one process: what each is, what is wrong with it, and what time it is for them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from bus.message import ProviderId
from bus.messages.cell import SpawnInstance
from compute_sim.core.faults import (
    WELL,
    BuildsSlowly,
    ComesBackLate,
    Condition,
    Dies,
    FailsToBuild,
    FallsSilent,
    Fate,
    Fault,
    FaultScript,
    condition_of,
    fate_of,
    faults_of,
    next_turn_s,
)
from compute_sim.core.hosts import Host
from compute_sim.drivers import Driver, SimulatedDriver


class Elapsed:
    """Seconds of the loop since this was first asked: a simulation's loop jumps, and so do these."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def __call__(self) -> float:
        now_s = asyncio.get_running_loop().time()
        if self._began_s is None:
            self._began_s = now_s
        return now_s - self._began_s


class PretendedHost:
    """A host, by its driver, with what is wrong with it."""

    __slots__ = ("_building", "_hearing", "_script", "_usual", "driver", "faults", "id")

    def __init__(self, host: Host, script: FaultScript, usual: Fate) -> None:
        self.faults = faults_of(script, host.name)
        self.driver: Driver = SimulatedDriver(host, self.faults)
        self.id = self.driver.root
        # Asked with every order: most hosts have none of these.
        self._building = tuple(
            [each for each in self.faults if isinstance(each, FailsToBuild | BuildsSlowly)]
        )
        self._hearing = tuple(
            [each for each in self.faults if isinstance(each, FallsSilent | ComesBackLate | Dies)]
        )
        self._script = script
        self._usual = usual

    def condition(self, at_s: float) -> Condition:
        return condition_of(self._hearing, at_s) if self._hearing else WELL

    def fate(self, order: SpawnInstance, at_s: float) -> Fate:
        return fate_of(self._script, self._building, order, at_s) if self._building else self._usual


class Fleet:
    def __init__(self, hosts: Sequence[Host], script: FaultScript, clock_s: Callable[[], float]) -> None:
        self.clock_s = clock_s
        self._script = script
        usual = Fate(script.spawn_ms)
        pretended = [PretendedHost(host, script, usual) for host in hosts]
        # By ids as whole numbers, since a UUID is hashed in Python each time it is looked up.
        self._hosts = {each.id.int: each for each in pretended}
        if len(self._hosts) != len(hosts):
            raise ValueError(f"{len(hosts)} hosts have only {len(self._hosts)} names among them")

    def __iter__(self) -> Iterator[ProviderId]:
        return iter([each.id for each in self._hosts.values()])

    def __getitem__(self, host: ProviderId) -> PretendedHost:
        return self._hosts[host.int]

    def get(self, host: ProviderId) -> PretendedHost | None:
        return self._hosts.get(host.int)

    def well(self, hosts: Iterable[ProviderId], at_s: float) -> list[ProviderId]:
        """Those of them that can be heard."""
        return [host for host in hosts if self._hosts[host.int].condition(at_s) == WELL]

    def next_turn_s(self, at_s: float) -> float | None:
        """When the script changes something next that hosts must tell of."""
        turns = [turn for fault in self._told() if (turn := next_turn_s(fault, at_s)) is not None]
        return min(turns, default=None)

    def turning(self, since_s: float, at_s: float) -> list[ProviderId]:
        """The hosts for which something began or ended after `since_s`, and by now."""
        turned = {fault for fault in self._told() if _turned(fault, since_s, at_s)}
        return [each.id for each in self._hosts.values() if any(fault in turned for fault in each.faults)]

    def _told(self) -> list[Fault]:
        return [each for each in self._script.faults if not isinstance(each, FailsToBuild | BuildsSlowly)]


def _turned(fault: Fault, since_s: float, at_s: float) -> bool:
    turn = next_turn_s(fault, since_s)
    return turn is not None and turn <= at_s
