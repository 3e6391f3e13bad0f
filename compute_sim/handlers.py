"""Handles the orders of conductors to hosts, keeps the attempts that they begin, and ends these.

The attempts of a batch of orders are loaded, decided and saved together. The rules are in core/attempts.py.

An order is acknowledged when it is saved, not when the instance is built, received or stopped. Unacknowledged, it would fill
the prefetch for minutes, could not be delivered to another process (its host is here), and would hold back the other
messages of its parcel. Guests outlive this process where the attempts are in a table, too (store_sql.py). With the store in
memory alone, simulated guests are lost with the process, as on a hypervisor that loses power. The conductor's attempt then times
out and it treats the host as silent. It may order the same attempt again before that, which does no harm.
"""

import asyncio
import heapq
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from msgspec import Struct, structs

from bus.message import Message
from bus.messages.cell import (
    AdoptGuest,
    DestroyInstance,
    LeaveGuest,
    ReceiveInstance,
    RespawnInstance,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from bus.messages.hosts import CheckHost, HostsNotHere
from bus.workers.handlers import Handlers, Received, Said, Tell
from bus.workers.publisher import Outgoing, Publisher
from bus.workers.set_aside import FailedRows, RowWork
from compute_sim.core.attempts import (
    WELL,
    AttemptKey,
    AttemptRecord,
    AttemptState,
    BuildOrder,
    Dead,
    HostOrder,
    answered_again,
    answered_later,
    begun,
    failed,
    key_of,
    looked_at,
    next_step,
    refusal_of,
    source_key_of,
    stopped_by_itself,
    waiting,
    why_not_received,
)
from compute_sim.core.hosts import Load, holdings
from compute_sim.core.trees import ProviderTree
from compute_sim.drivers import Driver, Reported
from compute_sim.settings import USUAL_PACE, ComputePace
from engine.flavors import InstanceId
from engine.inventories import ProviderId
from kit.errors import Operational
from kit.parts import Background, Status, Supervised, operational, wait_at_most

log = logging.getLogger(__name__)


class _HostLoad(Struct):
    """The instances and builds of one host, and whether they have changed since the last `take_changed`."""

    host: ProviderId
    # How many attempts each instance has here, by ids as integers: two while it is resized on its host.
    instances: dict[int, int] = {}
    building: int = 0
    waiting: dict[AttemptKey, None] = {}
    changed: bool = False


class ComputeStore:
    """Keeps a compute's attempts in memory, and finds those whose work ends.

    No method waits for anything, and a batch saves once, at its end: so each transaction is atomic and isolated.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.clock_s = clock_s
        self._attempts: dict[AttemptKey, AttemptRecord] = {}
        # When the work of each attempt ends, as far as is known, and so when it is asked for. And a heap of these moments, and of
        # others that do not count any more.
        self._ends: dict[AttemptKey, float] = {}
        self._moments: list[tuple[float, AttemptKey]] = []
        self._taken: list[tuple[float, AttemptKey]] = []
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
            for moment in self._taken:
                self._ends[moment[1]] = moment[0]
                heapq.heappush(self._moments, moment)
            raise
        finally:
            self._taken.clear()

    def wake_with(self, sooner: Callable[[], None]) -> None:
        """Set a function that is called when some work ends earlier than all other."""
        self._sooner = sooner

    async def load(self, keys: Iterable[AttemptKey]) -> Mapping[AttemptKey, AttemptRecord]:
        """The known attempts with these keys."""
        return {key: known for key in keys if (known := self._attempts.get(key)) is not None}

    async def ending(self, at_s: float, limit: int) -> Sequence[AttemptRecord]:
        """Attempts whose work ends by now, the earliest first. This process does not get them again until they are saved with another
        time or named by `end_again`. For its successor they still end.
        """
        found: list[AttemptRecord] = []
        while len(found) < limit and (ends_s := self.next_end_s()) is not None and ends_s <= at_s:
            moment = heapq.heappop(self._moments)
            del self._ends[moment[1]]
            found.append(self._attempts[moment[1]])
            self._taken.append(moment)
        return found

    async def save(self, attempts: Iterable[AttemptRecord]) -> None:
        for attempt in attempts:
            key = attempt.key
            known = self._attempts.get(key)
            if known is attempt:
                continue
            self._attempts[key] = attempt
            # With the same time as before it is known already, or taken.
            if (known and known.ends_s) != attempt.ends_s:
                self._set_end(key, attempt.ends_s)
            if known is None or known.state is not attempt.state:
                self._count(key, attempt, known.state if known else None)

    async def remember(self, attempts: Iterable[AttemptRecord]) -> None:
        """Keep the state of attempts whose work has ended, for this process only, until the broker confirms their answers.

        In a table their work still goes on. So if this process dies before that, its successor asks for it, and answers again.
        """
        await self.save(attempts)

    def end_again(self, keys: Iterable[AttemptKey], at_s: float) -> None:
        """Ask for these attempts again at this time, unless they are answered: the answers could not be sent, for instance."""
        for key in keys:
            attempt = self._attempts.get(key)
            if attempt is not None and attempt.ends_s is not None:
                self._set_end(key, at_s)

    async def of_hosts(self, hosts: Collection[ProviderId]) -> Mapping[ProviderId, Sequence[AttemptRecord]]:
        """All attempts that these hosts still have, and those that are over but whose last answer is not sent. Hosts without
        any are left out.
        """
        # No index by host: this is read rarely, and then for many hosts.
        numbers = {host.int for host in hosts}
        found: dict[ProviderId, list[AttemptRecord]] = {}
        for key, each in self._attempts.items():
            if key[0] in numbers and (not each.state.is_over or each.ends_s is not None):
                found.setdefault(each.host, []).append(each)
        return found

    async def replace(self, pairs: Iterable[tuple[AttemptRecord, AttemptRecord]]) -> None:
        """Replace the first attempt of each pair by the second, if it has not changed since it was read.

        It has not changed if the store still has the same object.
        """
        await self.save([after for before, after in pairs if self._attempts.get(before.key) is before])

    def next_end_s(self) -> float | None:
        while self._moments:
            ends_s, key = self._moments[0]
            if self._ends.get(key) == ends_s:
                return ends_s
            heapq.heappop(self._moments)
        return None

    def _set_end(self, key: AttemptKey, ends_s: float | None) -> None:
        if ends_s is None:
            self._ends.pop(key, None)
            return
        self._ends[key] = ends_s
        heapq.heappush(self._moments, (ends_s, key))
        if self._moments[0] == (ends_s, key):
            self._sooner()

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
                self._ends.pop(key, None)
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
            self._over.append((self.clock_s(), key, state))


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
    """The hosts and pools of one process. Pools are reported like hosts, but nothing is built there."""

    def __init__(
        self, drivers: Sequence[Driver], clock_s: Callable[[], float], pools: Sequence[Reported] = ()
    ) -> None:
        self.clock_s = clock_s
        # How many builds have failed on each host since the last one that succeeded, by ids as integers. A restart begins anew.
        self.failed_builds: dict[int, int] = {}
        # Why placement has refused the last report of a host.
        self.refused_reports: dict[ProviderId, str] = {}
        # Hosts that are not here, and for which there were orders.
        self.asked_for: set[ProviderId] = set()
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

    def count_build(self, before: AttemptRecord, after: AttemptRecord) -> None:
        """Count a build that failed in the step from `before` to `after`; after one that succeeded, the host has none. Instances that
        a host receives do not count, since their source may be at fault.
        """
        host = after.host.int
        if before.state is AttemptState.BUILDING and after.state is AttemptState.FAILED:
            self.failed_builds[host] = self.failed_builds.get(host, 0) + 1
        elif before.state is AttemptState.BUILDING and after.state is AttemptState.BUILT:
            self.failed_builds.pop(host, None)

    def reported(self) -> list[ProviderId]:
        """The roots of all trees: those of the hosts, and of the pools."""
        return [each.root for each in self._reported.values()]

    def tree_of(self, root: ProviderId, known: ProviderTree, at_s: float) -> ProviderTree:
        return self._reported[root.int].update_provider_tree(known, at_s)

    def well(self, roots: Iterable[ProviderId], at_s: float) -> list[ProviderId]:
        """Those of these hosts and pools that work and can send messages.

        Unknown ids are left out: stored instances may be on hosts that this process was not started with again.
        """
        return [
            root
            for root in roots
            if (known := self._reported.get(root.int)) is not None and known.condition(at_s) == WELL
        ]

    def next_changes(self, at_s: float) -> dict[ProviderId, float]:
        """When each host changes next, after `at_s`; without those that never do."""
        changes = ((each.root, each.next_change_s(at_s)) for each in self._drivers.values())
        return {host: change_s for host, change_s in changes if change_s is not None}


class BuildSlots:
    """Decides which builds begin now: each host has a limited number at once, and further ones wait for their turn.

    A count is what the store had before the transaction, and the changes that the transaction has made since.
    """

    def __init__(self, tx: ComputeStore, fleet: Fleet, most: int) -> None:
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


ORDERS = (
    *(SpawnInstance, ReceiveInstance, AdoptGuest, StopInstance, StartInstance, RespawnInstance),
    *(DestroyInstance, LeaveGuest),
)


def handlers(fleet: Fleet, builds_at_once_max: int = 0) -> Handlers:
    async def on_orders(orders: Sequence[Received[HostOrder]], tx: ComputeStore) -> list[Said]:
        at_s = fleet.clock_s()
        keys = [key_of(order.message) for order in orders]
        sources = [
            source_key_of(each.message) for each in orders if isinstance(each.message, ReceiveInstance)
        ]
        attempts = dict(await tx.load([*keys, *sources]))
        said: list[Said] = []
        missing: list[Received[HostOrder]] = []
        touched: dict[AttemptKey, None] = {}
        slots = BuildSlots(tx, fleet, builds_at_once_max)
        for item, key in zip(orders, keys, strict=True):
            order = item.message
            driver = fleet.get(order.host)
            if driver is None:
                missing.append(item)
                continue
            condition = driver.condition(at_s)
            if isinstance(condition, Dead):
                continue
            before = attempts.get(key)
            after = _ordered(attempts, item, driver, slots, at_s)
            if after is None:
                log.debug("a host refuses an order: it has a later one, or no such attempt")
                # Nothing is saved about it: a host that cannot send now does not answer later, either.
                if condition == WELL and isinstance(order, StopInstance | StartInstance | RespawnInstance):
                    said.append(Tell(refusal_of(before, order), item))
                continue
            if after.ends_s is not None and after.ends_s <= at_s:
                after, answer = looked_at(after, condition, driver.look_at(after, at_s), at_s)
                if answer is not None:
                    said.append(Tell(answer, item))
            slots.changed(before, after)
            attempts[key] = after
            touched[key] = None
        for after in list(slots.begin_waiting(attempts, at_s)):
            attempts[after.key] = after
            touched[after.key] = None
        await tx.save([attempts[key] for key in touched])
        return [*said, *_not_here(fleet, missing)]

    return {**dict.fromkeys(ORDERS, on_orders), CheckHost: partial(_on_checks, fleet)}


async def _on_checks(fleet: Fleet, orders: Sequence[Received[CheckHost]], tx: ComputeStore) -> list[Said]:
    at_s = fleet.clock_s()
    said = _not_here(fleet, [item for item in orders if fleet.get(item.message.host) is None])
    # A host that cannot send now lists its attempts when it can again.
    well = {*fleet.well([item.message.host for item in orders], at_s)}
    attempts = await tx.of_hosts(well)
    said += [
        Tell(holdings(item.message, attempts.get(item.message.host, ())), item)
        for item in orders
        if item.message.host in well
    ]
    return said


def _not_here(fleet: Fleet, orders: Sequence[Received[HostOrder] | Received[CheckHost]]) -> list[Said]:
    """The answer to orders for hosts that this compute does not have: one for all of them, however many orders there are.

    Their conductor reminds a host of what it must destroy until it is set dead or is here again. So it is logged once for each.
    """
    if not orders:
        return []
    hosts = tuple(dict.fromkeys([each.message.host for each in orders]))
    if new := [each for each in hosts if each not in fleet.asked_for]:
        fleet.asked_for.update(new)
        log.warning(
            "there are orders for hosts that this compute does not have, which wait until it has them or they are set dead: %s",
            ", ".join(map(str, new)),
        )
    return [Tell(HostsNotHere(cell=orders[0].message.cell, hosts=hosts), orders[0])]


def _ordered(
    attempts: Mapping[AttemptKey, AttemptRecord],
    item: Received[HostOrder],
    driver: Driver,
    slots: BuildSlots,
    at_s: float,
) -> AttemptRecord | None:
    """The attempt as this order leaves it; None if the host refuses the order.

    `attempts` has the known attempts, and those on the sources of moves.
    """
    order = item.message
    known = attempts.get(key_of(order))
    step = next_step(known, order)
    if step == "begins":
        if isinstance(order, ReceiveInstance) and (
            why := why_not_received(attempts.get(source_key_of(order)), order)
        ):
            return failed(order, why, at_s, cause=item.id, trace=item.trace)
        if isinstance(order, BuildOrder) and not slots.is_free(order.host):
            log.debug("a build waits: its host builds as many as it may")
            return waiting(order, cause=item.id, trace=item.trace)
        return begun(order, driver.begin(order, at_s), at_s, cause=item.id, trace=item.trace)
    if known is None or step == "refused":
        return None
    if step == "later":
        return answered_later(known, order)
    return answered_again(known, order, at_s, cause=item.id, trace=item.trace)


# Looks at attempts whose work ends, and sends their answers, many at once. A driver may say that something has changed on its host,
# before the time that it named: work has ended, or a guest has stopped. Drivers may lose an event, so they also look at their hosts
# regularly, and say so whenever what they see differs from before.
#
# The work of an attempt has not ended until the broker has confirmed its answer. A process that is killed before leaves it to its
# successor, and a process that cannot send retries a little later. One timer serves all attempts; there is no task per
# attempt.


# How many attempts are looked at together: more would keep the process from everything else.
ENDING_AT_ONCE_MAX = 1000
# The number of batches of answers that may wait for their confirms.
SAYING_MAX = 16
_BUSY = frozenset(
    {
        AttemptState.BUILDING,
        AttemptState.RECEIVING,
        AttemptState.STOPPING,
        AttemptState.STARTING,
        AttemptState.REBUILDING,
        AttemptState.DESTROYED,
    }
)
# An attempt whose work has ended: until its answer is confirmed, and after that.
Ended = tuple[AttemptRecord, AttemptRecord]


def _look_at(
    attempt: AttemptRecord, driver: Driver, at_s: float
) -> tuple[AttemptRecord, Message | None] | Exception:
    """The attempt after this look at it, and its answer; or the bug that the look has met, of the driver perhaps."""
    try:
        return looked_at(attempt, driver.condition(at_s), driver.look_at(attempt, at_s), at_s)
    except Exception as bug:
        if operational(bug) is not None:
            raise
        return bug


class Finisher:
    """Looks at attempts whose work ends, and sends their answers, beside the worker that takes the orders."""

    def __init__(
        self,
        fleet: Fleet,
        store: ComputeStore,
        publisher: Publisher,
        builds_at_once_max: int,
        failed: FailedRows,
        *,
        pace: ComputePace = USUAL_PACE,
        chance: random.Random | None = None,
    ) -> None:
        # Its conductor gives up an attempt of which it hears nothing, so nothing is ended here.
        self._rows = failed.of("end attempts that are due", RowWork(self._try_alone))
        self._finishing = Supervised(
            "end attempts that are due", self._finish_until_told, is_cut_short=False, chance=chance
        )
        self._telling = Status("tell of ended attempts", chance=chance)
        self.parts = (self._finishing, self._telling, failed)
        self._fleet = fleet
        self._store = store
        self._publisher = publisher
        self._builds_at_once_max = builds_at_once_max
        self._pace = pace
        self._woken = asyncio.Event()
        self._stop_by_s: float | None = None
        self._saying = Background()
        self._forgot_at_s = 0.0
        # The hosts on which something has changed.
        self._changed: dict[ProviderId, None] = {}
        store.wake_with(self._woken.set)
        for host in fleet:
            fleet[host].wake_with(self._wake)

    async def run(self) -> None:
        # Waits for answers that are being sent; a bug in sending ends the part.
        async with self._saying:
            await self._finishing.run()

    async def _finish_until_told(self) -> None:
        while not self._is_done(next_s := self._store.next_end_s()):
            self._finishing.status.well()
            await self._until(next_s)
            # If the broker accepts nothing, nothing ends until it does.
            await self._saying.until_fewer_than(SAYING_MAX)
            await self._finish()
            if self._changed:
                await self._look_at_hosts()

    def _wake(self, host: ProviderId) -> None:
        self._changed[host] = None
        self._woken.set()

    async def _look_at_hosts(self) -> None:
        """Have the work on changed hosts end now, and tell of guests that have stopped there."""
        hosts, self._changed = self._changed, {}
        try:
            await self._tell_of(hosts)
        except BaseException:
            # A driver says once what it sees: the next look has them, too.
            self._changed = hosts | self._changed
            self._woken.set()
            raise

    async def _tell_of(self, hosts: Collection[ProviderId]) -> None:
        at_s = self._fleet.clock_s()
        told: list[tuple[AttemptRecord, AttemptRecord]] = []
        # Within a transaction, all attempts are saved whose work has begun.
        async with self._store.transaction() as tx:
            for host, attempts in (await tx.of_hosts(hosts)).items():
                busy = [each.key for each in attempts if each.ends_s is not None and each.state in _BUSY]
                tx.end_again(busy, at_s)
                running = [each for each in attempts if each.state is AttemptState.BUILT]
                for stopped in self._fleet[host].stopped(running):
                    if stopped.attempt.ends_s is None:
                        told.append((stopped.attempt, stopped_by_itself(stopped.attempt, stopped.why, at_s)))
                    else:
                        # An answer is on its way that would be lost with the state: later.
                        asyncio.get_running_loop().call_later(self._pace.again_s, self._wake, host)
            await tx.replace(told)

    async def stop(self) -> None:
        """Stop, after sending the answers of work that ends soon."""
        self._stop_by_s = self._fleet.clock_s() + self._pace.drain_s
        self._woken.set()

    def _is_done(self, next_s: float | None) -> bool:
        return self._stop_by_s is not None and (next_s is None or next_s > self._stop_by_s)

    async def _until(self, next_s: float | None) -> None:
        """Wait until the time `next_s`, or until other work ends before it."""
        wait_s = None if next_s is None else max(0.0, next_s - self._fleet.clock_s())
        await wait_at_most(self._woken, wait_s)
        self._woken.clear()

    async def _finish(self) -> None:
        at_s = self._fleet.clock_s()
        looks: list[tuple[AttemptRecord, AttemptRecord, Message | None]] = []
        bugs: dict[AttemptKey, Exception] = {}
        async with self._store.transaction() as tx:
            slots = BuildSlots(tx, self._fleet, self._builds_at_once_max)
            for attempt in await tx.ending(at_s, ENDING_AT_ONCE_MAX):
                driver = self._fleet.get(attempt.host)
                if driver is None:
                    # The host was not started again: its attempt is left to a process that has the host.
                    continue
                look = _look_at(attempt, driver, at_s)
                if isinstance(look, Exception):
                    bugs[attempt.key] = look
                    continue
                looks.append((attempt, *look))
                slots.changed(attempt, look[0])
            # Asked before anything is saved: the slots are those that the store knows, less what was counted here.
            begun = list(slots.begin_waiting({}, at_s))
            ended = [
                (structs.replace(after, ends_s=attempt.ends_s), after)
                for attempt, after, answer in looks
                if answer is not None
            ]
            # Only the time of the next look has changed, which a successor of this process does not need.
            again = {
                attempt.key: after.ends_s
                for attempt, after, answer in looks
                if answer is None
                and after.ends_s is not None
                and structs.replace(after, ends_s=attempt.ends_s) == attempt
            }
            unheard = [after for _, after, answer in looks if answer is None and after.key not in again]
            await tx.remember([before for before, _ in ended])
            await tx.save([*unheard, *begun])
        again |= {key: at_s + await self._rows.met_bug(key, bug) for key, bug in bugs.items()}
        for key, look_s in again.items():
            self._store.end_again((key,), look_s)
        for before, after, _ in looks:
            self._fleet.count_build(before, after)
        answers = [
            Outgoing(answer, after.cause, after.trace) for _, after, answer in looks if answer is not None
        ]
        if answers:
            self._saying.start(self._say(ended, answers))
        if at_s - self._forgot_at_s > self._pace.over_kept_s / 10:
            self._forgot_at_s = at_s
            await self._store.forget(at_s - self._pace.over_kept_s)

    async def _try_alone(self, row: str) -> None:
        """Meet the bug at this attempt again, or have it end at once."""
        host, instance, attempt = map(int, row.strip("()").split(","))
        key, at_s = (host, instance, attempt), self._fleet.clock_s()
        for known in (await self._store.load((key,))).values():
            if (driver := self._fleet.get(known.host)) is not None and known.ends_s is not None:
                looked_at(known, driver.condition(at_s), driver.look_at(known, at_s), at_s)
        self._store.end_again((key,), at_s)

    async def _say(self, ended: Sequence[Ended], answers: Sequence[Outgoing]) -> None:
        """Send the answers, and only when they are confirmed, save that they were sent."""
        try:
            await self._publisher.send_all(answers)
            async with self._store.transaction() as tx:
                # An attempt that got another order meanwhile has another answer to send.
                await tx.replace(ended)
        except Operational as problem:
            self._telling.failed(problem)
            again_s = self._fleet.clock_s() + self._pace.again_s
            self._store.end_again([before.key for before, _ in ended], again_s)
        else:
            self._telling.well()
