"""A compute's attempts in memory; a restart loses them, unless the store is that of store_sql.py, which has a table beside it.

A simulator may forget attempts: core/attempts.py says how it answers about unknown ones. But hosts that outlive their
process, as in `moor up`, must keep what is on them.
"""

import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct

from compute_sim.core.attempts import AttemptKey, AttemptRecord, AttemptState
from compute_sim.core.hosts import Load
from engine.flavors import InstanceId
from engine.inventories import ProviderId


class _HostLoad(Struct):
    """The instances and builds of one host, and whether they have changed since the last `take_changed`."""

    host: ProviderId
    # How many attempts each instance has here, by ids as integers: two while it is resized on its host.
    instances: dict[int, int] = {}
    building: int = 0
    waiting: dict[AttemptKey, None] = {}
    changed: bool = False


class ComputeStore:
    """Keeps a compute's attempts in memory, and finds those whose next step is due.

    No method waits for anything, and a batch saves once, at its end: so each transaction is atomic and isolated.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._attempts: dict[AttemptKey, AttemptRecord] = {}
        # A heap of due times. The number keeps entries with equal times in order, and keys from being compared.
        self._due: list[tuple[float, int, AttemptKey]] = []
        self._numbers = 0
        self._taken: list[tuple[float, int, AttemptKey]] = []
        # Attempts that are due at another time than their own, since their answer could not be sent then.
        self._again: dict[AttemptKey, float] = {}
        self._over: deque[tuple[float, AttemptKey, AttemptState]] = deque()
        # By hosts as integers, as in the keys.
        self._loads: dict[int, _HostLoad] = {}
        self._changed: list[_HostLoad] = []
        self._sooner: Callable[[], None] = lambda: None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["ComputeStore"]:
        """A transaction, whose changes are made by this store's own methods; no other runs at the same time."""
        try:
            yield self
        except BaseException:
            for entry in self._taken:
                heapq.heappush(self._due, entry)
            raise
        finally:
            self._taken.clear()

    def wake_with(self, sooner: Callable[[], None]) -> None:
        """Set a function that is called when something is due earlier than before."""
        self._sooner = sooner

    async def load(self, keys: Iterable[AttemptKey]) -> Mapping[AttemptKey, AttemptRecord]:
        """The known attempts with these keys."""
        return {key: known for key in keys if (known := self._attempts.get(key)) is not None}

    async def due(self, at_s: float, limit: int) -> Sequence[AttemptRecord]:
        """Attempts whose answers are due by now, the earliest first. This process does not get them again until they
        are saved with another time or named by `due_again`. For its successor they are still due.
        """
        found: list[AttemptRecord] = []
        while self._due and self._due[0][0] <= at_s and len(found) < limit:
            entry = heapq.heappop(self._due)
            attempt = self._attempts.get(entry[2])
            if attempt is not None and self._is_due_at(attempt, entry[0]):
                found.append(attempt)
                self._taken.append(entry)
        return found

    async def save(self, attempts: Iterable[AttemptRecord]) -> None:
        first_s = self._due[0][0] if self._due else None
        for attempt in attempts:
            key = attempt.key
            known = self._attempts.get(key)
            if known is attempt:
                continue
            self._attempts[key] = attempt
            self._again.pop(key, None)
            if known is None or known.state is not attempt.state:
                self._count(key, attempt, known.state if known else None)
            # With the same time as before it is in the heap already, or taken from it.
            if attempt.due_s is not None and (known is None or known.due_s != attempt.due_s):
                self._push(attempt.due_s, key)
        if self._due and (first_s is None or self._due[0][0] < first_s):
            self._sooner()

    async def remember(self, attempts: Iterable[AttemptRecord]) -> None:
        """Keep the state of attempts that have ended, for this process only, until the broker confirms their answers.

        A table still has them as due. So if this process dies before that, its successor finds them due, and answers again.
        """
        await self.save(attempts)

    def due_again(self, keys: Iterable[AttemptKey], at_s: float) -> None:
        """The answers to these attempts could not be sent: make them due again at this time, if they have not changed."""
        for key in keys:
            attempt = self._attempts.get(key)
            if attempt is not None and attempt.due_s is not None:
                self._again[key] = at_s
                self._push(at_s, key)
        self._sooner()

    async def of_hosts(self, hosts: Collection[ProviderId]) -> Mapping[ProviderId, Sequence[AttemptRecord]]:
        """All attempts that these hosts still have, and those that are over but whose last answer is still due. Hosts without
        any are left out.
        """
        # No index by host: this is read rarely, and then for many hosts.
        numbers = {host.int for host in hosts}
        found: dict[ProviderId, list[AttemptRecord]] = {}
        for key, each in self._attempts.items():
            if key[0] in numbers and (not each.state.is_over or each.due_s is not None):
                found.setdefault(each.host, []).append(each)
        return found

    async def replace(self, pairs: Iterable[tuple[AttemptRecord, AttemptRecord]]) -> None:
        """Replace the first attempt of each pair by the second, if it has not changed since it was read.

        It has not changed if the store still has the same object.
        """
        await self.save([after for before, after in pairs if self._attempts.get(before.key) is before])

    async def next_due_s(self) -> float | None:
        while self._due:
            due_s, _, key = self._due[0]
            attempt = self._attempts.get(key)
            if attempt is not None and self._is_due_at(attempt, due_s):
                return due_s
            heapq.heappop(self._due)
        return None

    def _is_due_at(self, attempt: AttemptRecord, at_s: float) -> bool:
        """Is the attempt still due at this time? If not, it was saved again, with another time or none."""
        return attempt.due_s == at_s or self._again.get(attempt.key) == at_s

    def _push(self, at_s: float, key: AttemptKey) -> None:
        self._numbers += 1
        heapq.heappush(self._due, (at_s, self._numbers, key))

    async def loads(self, hosts: Iterable[ProviderId]) -> Mapping[ProviderId, Load]:
        """The `Load` of each of these hosts: its instances, and the builds that run or wait there."""
        found = {}
        for host in hosts:
            load = self._loads.get(host.int)
            found[host] = Load(len(load.instances), load.building + len(load.waiting)) if load else Load()
        return found

    async def living(
        self, instances: Collection[InstanceId], after: InstanceId | None, limit: int
    ) -> Sequence[AttemptRecord]:
        """The attempts that hosts have: of these instances, or of all if none is named; only ids after `after`.

        They are in the order of their instances' ids, then of attempts: at most `limit`, and the others of the last instance.
        """
        first, named = -1 if after is None else after.int, {each.int for each in instances}
        found = [
            (instance, attempt, host)
            for (host, instance, attempt), known in self._attempts.items()
            if instance > first and not known.state.is_over and (not named or instance in named)
        ]
        if len(found) > limit:
            last = heapq.nsmallest(limit, found)[-1][0]
            found = [each for each in found if each[0] <= last]
        return [self._attempts[host, instance, attempt] for instance, attempt, host in sorted(found)]

    def building(self, host: ProviderId) -> int:
        """How many attempts this host is building, or receiving in a move, without the changes of this transaction."""
        load = self._loads.get(host.int)
        return load.building if load else 0

    def waiting(self, host: ProviderId) -> Sequence[AttemptRecord]:
        """The attempts that wait for their turn on this host, as of before the transaction; the earliest first."""
        load = self._loads.get(host.int)
        return [self._attempts[key] for key in load.waiting] if load else ()

    async def take_changed(self) -> Sequence[ProviderId]:
        """The hosts whose load has changed since the last call."""
        changed, self._changed = self._changed, []
        for load in changed:
            load.changed = False
        return [load.host for load in changed]

    async def forget(self, over_before_s: float) -> Sequence[AttemptKey]:
        """Delete attempts that were over before this time, and return their keys."""
        forgotten: list[AttemptKey] = []
        while self._over and self._over[0][0] < over_before_s:
            _, key, state = self._over.popleft()
            known = self._attempts.get(key)
            # Otherwise it was destroyed after it had failed, and is over since then.
            if known is not None and known.state is state:
                del self._attempts[key]
                self._again.pop(key, None)
                forgotten.append(key)
        return forgotten

    def _count(self, key: AttemptKey, attempt: AttemptRecord, before: AttemptState | None) -> None:
        """Update the host's load and the list of finished attempts."""
        state, number = attempt.state, key[0]
        load = self._loads.get(number)
        if load is None:
            load = self._loads[number] = _HostLoad(attempt.host)
        was_there = before is not None and not before.is_over
        if was_there is state.is_over:
            attempts = load.instances.pop(key[1], 0) + (-1 if was_there else 1)
            if attempts:
                load.instances[key[1]] = attempts
        load.building += state.takes_slot - (before is not None and before.takes_slot)
        if state is AttemptState.WAITING:
            load.waiting[key] = None
        elif before is AttemptState.WAITING:
            del load.waiting[key]
        if not load.changed:
            load.changed = True
            self._changed.append(load)
        if state.is_over:
            self._over.append((self._clock_s(), key, state))
