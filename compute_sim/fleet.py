"""The hosts of one process by their ids, and the clock that all of them have."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from bus.message import ProviderId
from compute_sim.core.attempts import WELL
from compute_sim.core.hosts import FailedBuilds
from compute_sim.drivers import Driver


class Elapsed:
    """Seconds on the event loop's clock since the first call; in a simulation the clock jumps."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def __call__(self) -> float:
        now_s = asyncio.get_running_loop().time()
        if self._began_s is None:
            self._began_s = now_s
        return now_s - self._began_s


class Fleet:
    def __init__(self, drivers: Sequence[Driver], clock_s: Callable[[], float]) -> None:
        self.clock_s = clock_s
        self.failed_builds = FailedBuilds()
        # By ids as integers, since Python computes the hash of a UUID at each lookup.
        self._drivers = {each.root.int: each for each in drivers}
        if len(self._drivers) != len(drivers):
            raise ValueError(f"{len(drivers)} hosts have only {len(self._drivers)} different names")

    def __iter__(self) -> Iterator[ProviderId]:
        return iter([each.root for each in self._drivers.values()])

    def __getitem__(self, host: ProviderId) -> Driver:
        return self._drivers[host.int]

    def get(self, host: ProviderId) -> Driver | None:
        return self._drivers.get(host.int)

    def well(self, hosts: Iterable[ProviderId], at_s: float) -> list[ProviderId]:
        """Those of these hosts that can send."""
        return [host for host in hosts if self._drivers[host.int].condition(at_s) == WELL]

    def next_changes(self, at_s: float) -> dict[ProviderId, float]:
        """When each host changes next, after `at_s`; without those that never do."""
        changes = ((each.root, each.next_change_s(at_s)) for each in self._drivers.values())
        return {host: change_s for host, change_s in changes if change_s is not None}
