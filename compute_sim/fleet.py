"""The hosts and pools of one process by their ids: the clock that all of them have, their builds, and their changes as time passes."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from compute_sim.core.attempts import WELL, AttemptKey, AttemptRecord, AttemptState, Condition, begun
from compute_sim.core.trees import ProviderTree
from compute_sim.drivers import Driver, Reported
from compute_sim.store import ComputeTransaction
from engine.inventories import ProviderId


class Elapsed:
    """Seconds on the event loop's clock since the first call; in a simulation the clock jumps."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def __call__(self) -> float:
        now_s = asyncio.get_running_loop().time()
        if self._began_s is None:
            self._began_s = now_s
        return now_s - self._began_s


class FailedBuilds:
    """How many builds have failed on each host since the last one that succeeded. A restart begins anew. Instances that a
    host receives do not count, since their source may be at fault.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def of(self, host: ProviderId) -> int:
        return self._counts.get(host.int, 0)

    def count(self, before: AttemptRecord, after: AttemptRecord) -> None:
        """Count the attempt if its build failed in the step from the record `before` to the record `after`. If it succeeded, the
        host's count is 0 again.
        """
        if before.state is AttemptState.BUILDING and after.state is AttemptState.FAILED:
            self._counts[after.host.int] = self.of(after.host) + 1
        elif before.state is AttemptState.BUILDING and after.state is AttemptState.BUILT:
            self._counts.pop(after.host.int, None)


class Fleet:
    """The hosts and pools of one process. Pools are reported like hosts, but nothing is built there."""

    def __init__(
        self, drivers: Sequence[Driver], clock_s: Callable[[], float], pools: Sequence[Reported] = ()
    ) -> None:
        self.clock_s = clock_s
        self.failed_builds = FailedBuilds()
        # Why placement has refused the last report of a host.
        self.refused_reports: dict[ProviderId, str] = {}
        # By ids as integers, since Python computes the hash of a UUID at each lookup.
        self._drivers = {each.root.int: each for each in drivers}
        if len(self._drivers) != len(drivers):
            raise ValueError(f"{len(drivers)} hosts have only {len(self._drivers)} different names")
        # Pools come first: a host that is reported already has what it shares.
        self._reported: dict[int, Reported] = {each.root.int: each for each in (*pools, *drivers)}

    def __iter__(self) -> Iterator[ProviderId]:
        return iter([each.root for each in self._drivers.values()])

    def __getitem__(self, host: ProviderId) -> Driver:
        return self._drivers[host.int]

    def get(self, host: ProviderId) -> Driver | None:
        return self._drivers.get(host.int)

    def reported(self) -> list[ProviderId]:
        """The roots of all trees: those of the hosts, and of the pools."""
        return [each.root for each in self._reported.values()]

    def tree_of(self, root: ProviderId, known: ProviderTree, at_s: float) -> ProviderTree:
        return self._reported[root.int].update_provider_tree(known, at_s)

    def well(self, roots: Iterable[ProviderId], at_s: float) -> list[ProviderId]:
        """Those of these hosts and pools that work and can send messages.

        Unknown ids are left out: stored instances may be on hosts that this process was not started with again.
        """
        return [root for root in roots if self._condition(root, at_s) == WELL]

    def unwell(self, roots: Iterable[ProviderId], at_s: float) -> list[ProviderId]:
        """Those of these hosts and pools that cannot send messages now. Unknown ids count as such."""
        return [root for root in roots if self._condition(root, at_s) != WELL]

    def _condition(self, root: ProviderId, at_s: float) -> Condition | None:
        known = self._reported.get(root.int)
        return None if known is None else known.condition(at_s)

    def next_changes(self, at_s: float) -> dict[ProviderId, float]:
        """When each host changes next, after `at_s`; without those that never do."""
        changes = ((each.root, each.next_change_s(at_s)) for each in self._drivers.values())
        return {host: change_s for host, change_s in changes if change_s is not None}


class BuildSlots:
    """Decides which builds begin now: each host has a limited number at once, and further ones wait for their turn.

    A count is what the store had before the transaction, and the changes that the transaction has made since.
    """

    def __init__(self, tx: ComputeTransaction, fleet: Fleet, most: int) -> None:
        """`most` is how many builds a host has at once; 0 means any number."""
        self._tx = tx
        self._fleet = fleet
        self._most = most
        self._changes: dict[int, int] = {}
        # Hosts on which a build has ended.
        self._freed: dict[ProviderId, None] = {}

    def is_free(self, host: ProviderId) -> bool:
        if not self._most:
            return True
        return self._tx.building(host) + self._changes.get(host.int, 0) < self._most

    def changed(self, before: AttemptRecord | None, after: AttemptRecord) -> None:
        """Count one build more or one fewer if the transaction began or ended a build when it changed an attempt from `before`
        to `after`.
        """
        more = after.state.takes_slot - (before is not None and before.state.takes_slot)
        if more:
            self._changes[after.host.int] = self._changes.get(after.host.int, 0) + more
        if more < 0:
            self._freed[after.host] = None

    def begin_waiting(
        self, known: Mapping[AttemptKey, AttemptRecord], at_s: float
    ) -> Iterable[AttemptRecord]:
        """Begin attempts that wait on hosts where a build has ended, as far as these hosts have free slots.

        `known` has the attempts that this transaction has changed.
        """
        for host in self._freed:
            if not known and not self._tx.waiting(host):
                continue
            of_host = {each.key: each for each in self._tx.waiting(host)}
            of_host |= {key: each for key, each in known.items() if each.host == host}
            for attempt in of_host.values():
                if attempt.order is not None and self.is_free(host):
                    work = self._fleet[host].begin(attempt.order, at_s)
                    begun_now = begun(attempt.order, work, at_s, cause=attempt.cause, trace=attempt.trace)
                    after = structs.replace(begun_now, rank=attempt.rank)
                    self.changed(attempt, after)
                    yield after


async def watch_hosts(fleet: Fleet, touches: tuple[Callable[[Iterable[ProviderId]], None], ...]) -> None:
    """Follow the hosts: when one changes, or its silence ends, it is reported and its facts are published.

    It sleeps until the time of the next change, and so is no periodic part. When no host will change any more, it waits
    until it is cancelled.
    """
    at_s = fleet.clock_s()
    while changes := fleet.next_changes(at_s):
        first_s = min(changes.values())
        await asyncio.sleep(max(0.0, first_s - fleet.clock_s()))
        # A timer may be early by the clock's resolution.
        at_s = max(first_s, fleet.clock_s())
        hosts = [host for host, change_s in changes.items() if change_s <= at_s]
        for touch in touches:
            touch(hosts)
    await asyncio.Event().wait()
