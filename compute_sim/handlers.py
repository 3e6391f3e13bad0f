"""Handles the orders of conductors to hosts, and an audit's questions about the instances on them.

The attempts of a batch of orders are loaded, decided and saved together. The rules are in core/attempts.py.

An order is acknowledged when it is saved, not when the instance is built, received or stopped. Unacknowledged, it would fill
the prefetch for minutes, could not be delivered to another process (its host is here), and would hold back the other
messages of its parcel. With the store in memory, instances are lost with this process, as on a hypervisor that loses
power. The conductor's attempt then times out and it treats the host as silent. It may order the same attempt again
before that, which does no harm.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

import msgspec
from msgspec import structs

from bus.messages.audit import AskHostBooks, BrokenGuest, HostBooksFound, HostEntry
from bus.messages.cell import (
    AdoptGuest,
    ConsoleTold,
    DestroyInstance,
    LeaveGuest,
    ReceiveInstance,
    RespawnInstance,
    SpawnInstance,
    StartInstance,
    StopInstance,
    TellConsole,
)
from bus.messages.cloud import VALUES_BYTES_MAX
from bus.messages.hosts import CheckHost, HostsNotHere
from bus.workers.handling import Handler, Handlers, ReadOnly, Received, Said, Tell, answering
from bus.workers.publisher import Outgoing, Publisher
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
    due,
    failed,
    key_of,
    next_step,
    refusal_of,
    source_key_of,
    stopped_by_itself,
    waiting,
    why_not_received,
)
from compute_sim.core.hosts import holdings
from compute_sim.drivers import Driver, NoConsole
from compute_sim.fleet import BuildSlots, Fleet
from compute_sim.settings import ComputeSettings
from compute_sim.store import ComputeStore, ComputeTransaction
from engine.inventories import ProviderId
from kit.errors import Operational
from kit.parts import Background, Status, Supervised, wait_at_most

log = logging.getLogger(__name__)

NotHere = Callable[[Sequence[Received[HostOrder] | Received[CheckHost]]], list[Said]]
ORDERS = (
    *(SpawnInstance, ReceiveInstance, AdoptGuest, StopInstance, StartInstance, RespawnInstance),
    *(DestroyInstance, LeaveGuest),
)


def handlers(fleet: Fleet, builds_at_once_max: int = 0) -> Handlers:
    async def on_orders(orders: Sequence[Received[HostOrder]], tx: ComputeTransaction) -> list[Said]:
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
                # Nothing is saved about it: a host that cannot send now does not answer later, either.
                if condition == WELL and isinstance(order, StopInstance | StartInstance | RespawnInstance):
                    said.append(Tell(refusal_of(before, order), item))
                continue
            if after.due_s is not None and after.due_s <= at_s:
                after, answer = due(after, condition, driver.look_at(after, at_s), at_s)
                if answer is not None:
                    said.append(Tell(answer, item))
            slots.changed(before, after)
            attempts[key] = after
            touched[key] = None
        for after in list(slots.begin_waiting(attempts, at_s)):
            attempts[after.key] = after
            touched[after.key] = None
        await tx.save([attempts[key] for key in touched])
        return [*said, *not_here(missing)]

    not_here = _not_here()
    return {**dict.fromkeys(ORDERS, on_orders), CheckHost: _checks(fleet, not_here)}


def _checks(fleet: Fleet, not_here: NotHere) -> Handler:
    async def on_checks(orders: Sequence[Received[CheckHost]], tx: ComputeTransaction) -> list[Said]:
        at_s = fleet.clock_s()
        said = not_here([item for item in orders if fleet.get(item.message.host) is None])
        # A host that cannot send now lists its attempts when it can again.
        well = {*fleet.well([item.message.host for item in orders], at_s)}
        attempts = await tx.of_hosts(well)
        said += [
            Tell(holdings(item.message, attempts.get(item.message.host, ())), item)
            for item in orders
            if item.message.host in well
        ]
        return said

    return on_checks


def _not_here() -> NotHere:
    """Makes the answer to orders for hosts that this compute does not have: one for all of them, however many orders there are.

    Their conductor reminds a host of what it must destroy until it is set dead or is here again. So it is logged once for each.
    """
    known: set[ProviderId] = set()

    def answer(orders: Sequence[Received[HostOrder] | Received[CheckHost]]) -> list[Said]:
        if not orders:
            return []
        hosts = tuple(dict.fromkeys([each.message.host for each in orders]))
        if new := [each for each in hosts if each not in known]:
            known.update(new)
            log.warning(
                "there are orders for hosts that this compute does not have, which wait until it has them or they are set dead: %s",
                ", ".join(map(str, new)),
            )
        return [Tell(HostsNotHere(cell=orders[0].message.cell, hosts=hosts), orders[0])]

    return answer


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
            return waiting(order, cause=item.id, trace=item.trace)
        return begun(order, driver.begin(order, at_s), at_s, cause=item.id, trace=item.trace)
    if known is None or step == "refused":
        return None
    if step == "later":
        return answered_later(known, order)
    return answered_again(known, order, at_s, cause=item.id, trace=item.trace)


def books_handlers(fleet: Fleet, store: ComputeStore) -> Handlers:
    return {AskHostBooks: answering(partial(_books_found, fleet, store))}


async def _books_found(fleet: Fleet, store: ComputeStore, question: AskHostBooks) -> HostBooksFound:
    """Answer an audit: the attempts on hosts that work. A silent or dead host cannot be asked, and is left out."""
    attempts = await store.living(question.instances, question.after, question.limit)
    at_s = fleet.clock_s()
    named = {*question.hosts, *[each.host for each in attempts]}
    well = {*fleet.well([each for each in named if fleet.get(each) is not None], at_s)}
    there = [each for each in attempts if each.host in well]
    return HostBooksFound(
        entries=tuple(
            [HostEntry(instance=each.instance, host=each.host, attempt=each.attempt) for each in there]
        ),
        broken=tuple(
            [
                BrokenGuest(instance=each.instance, host=each.host, attempt=each.attempt, why=why)
                for each in there
                if (why := fleet[each.host].why_broken(each))
            ]
        ),
        asked=tuple([each for each in question.hosts if each in well]),
        next=attempts[-1].instance if len(attempts) >= question.limit else None,
    )


# Ends attempts that are due, and sends their answers, many at once.
#
# An attempt stays due until the broker has confirmed its answer. A process that is killed before leaves it due for its
# successor, and a process that cannot send retries a little later. One timer serves all attempts; there is no task per
# attempt.


# The number of batches of answers that may wait for their confirms.
SAYING_MAX = 16
# An ended attempt: while its answer is due, and after that was confirmed.
Ended = tuple[AttemptRecord, AttemptRecord]


class Finisher:
    """Ends attempts that are due and sends their answers, beside the worker that takes the orders."""

    def __init__(
        self,
        fleet: Fleet,
        store: ComputeStore,
        publisher: Publisher,
        settings: ComputeSettings,
        chance: random.Random | None = None,
    ) -> None:
        self._finishing = Supervised(
            "end attempts that are due", self._finish_until_told, is_cut_short=False, chance=chance
        )
        self._telling = Status("tell of ended attempts", chance=chance)
        self.parts = (self._finishing, self._telling)
        self._fleet = fleet
        self._store = store
        self._publisher = publisher
        self._settings = settings
        self._woken = asyncio.Event()
        self._stop_by_s: float | None = None
        self._saying = Background()
        self._forgot_at_s = 0.0
        store.wake_with(self._woken.set)

    async def run(self) -> None:
        # Waits for answers that are being sent; a bug in sending ends the part.
        async with self._saying:
            await self._finishing.run()

    async def _finish_until_told(self) -> None:
        while not self._is_done(next_s := await self._store.next_due_s()):
            self._finishing.status.well()
            await self._until(next_s)
            # If the broker accepts nothing, attempts stay due until it does.
            await self._saying.until_fewer_than(SAYING_MAX)
            await self._finish()

    async def stop(self) -> None:
        """Stop, after sending the answers that are due soon."""
        self._stop_by_s = self._fleet.clock_s() + self._settings.drain_s
        self._woken.set()

    def _is_done(self, next_s: float | None) -> bool:
        return self._stop_by_s is not None and (next_s is None or next_s > self._stop_by_s)

    async def _until(self, next_s: float | None) -> None:
        """Wait until the time `next_s`, or until another attempt becomes due before it."""
        wait_s = None if next_s is None else max(0.0, next_s - self._fleet.clock_s())
        await wait_at_most(self._woken, wait_s)
        self._woken.clear()

    async def _finish(self) -> None:
        at_s = self._fleet.clock_s()
        ended: list[Ended] = []
        unheard: list[AttemptRecord] = []
        answers: list[Outgoing] = []
        asked: list[Ended] = []
        async with self._store.transaction() as tx:
            slots = BuildSlots(tx, self._fleet, self._settings.builds_at_once_max)
            for attempt in await tx.due(at_s, self._settings.due_at_once_max):
                driver = self._fleet.get(attempt.host)
                if driver is None:
                    # The host was not started again: its attempt stays due for a process that has the host.
                    continue
                after, answer = due(attempt, driver.condition(at_s), driver.look_at(attempt, at_s), at_s)
                asked.append((attempt, after))
                if answer is None:
                    unheard.append(after)
                else:
                    ended.append((structs.replace(after, due_s=attempt.due_s), after))
                    answers.append(Outgoing(answer, after.cause, after.trace))
                slots.changed(attempt, after)
            # Asked before anything is saved: the slots are those that the store knows, less what was counted here.
            begun = list(slots.begin_waiting({}, at_s))
            await tx.remember([before for before, _ in ended])
            await tx.save([*unheard, *begun])
        for before, after in asked:
            self._fleet.failed_builds.count(before, after)
        if answers:
            self._saying.start(self._say(ended, answers))
        if at_s - self._forgot_at_s > self._settings.over_kept_s / 10:
            self._forgot_at_s = at_s
            await self._store.forget(at_s - self._settings.over_kept_s)

    async def _say(self, ended: Sequence[Ended], answers: Sequence[Outgoing]) -> None:
        """Send the answers, and only when they are confirmed, save that they were sent."""
        try:
            await self._publisher.send_all(answers)
            async with self._store.transaction() as tx:
                # An attempt that got another order meanwhile has another answer due.
                await tx.replace(ended)
        except Operational as problem:
            self._telling.failed(problem)
            again_s = self._fleet.clock_s() + self._settings.again_s
            self._store.due_again([before.key for before, _ in ended], again_s)
        else:
            self._telling.well()


# Looks at a host as soon as its driver says that something has changed there: work that has ended, or a guest that has stopped.
#
# Drivers may lose an event, so hosts are also looked at regularly, by the drivers themselves: they wake this part whenever what they
# see differs from before.


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


class GuestWatch(Supervised):
    """A part of a compute that follows the changes of guests and of work."""

    def __init__(
        self,
        fleet: Fleet,
        store: ComputeStore,
        settings: ComputeSettings,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("follow the guests", self._follow, chance=chance)
        self._fleet = fleet
        self._store = store
        self._settings = settings
        self._woken = asyncio.Event()
        self._changed: dict[ProviderId, None] = {}
        for host in fleet:
            fleet[host].wake_with(self._wake)

    def _wake(self, host: ProviderId) -> None:
        self._changed[host] = None
        self._woken.set()

    async def _follow(self) -> None:
        while True:
            self.status.well()
            await self._woken.wait()
            self._woken.clear()
            hosts = [*self._changed]
            self._changed.clear()
            if await self._look(hosts):
                # An answer is on its way that would be lost with the state: later.
                await wait_at_most(self._woken, self._settings.again_s)
                for host in hosts:
                    self._wake(host)

    async def _look(self, hosts: Sequence[ProviderId]) -> bool:
        """Look at these hosts. Returns whether a guest has stopped of which that cannot be told yet."""
        at_s = self._fleet.clock_s()
        told: list[tuple[AttemptRecord, AttemptRecord]] = []
        must_wait = False
        # Within a transaction, all attempts are saved whose work has begun.
        async with self._store.transaction() as tx:
            of_hosts = await tx.of_hosts(hosts)
            for host, attempts in of_hosts.items():
                running = [each for each in attempts if each.state is AttemptState.BUILT]
                for stopped in self._fleet[host].stopped(running):
                    if stopped.attempt.due_s is not None:
                        must_wait = True
                    else:
                        told.append((stopped.attempt, stopped_by_itself(stopped.attempt, stopped.why, at_s)))
            await tx.replace(told)
        busy = [
            each.key
            for attempts in of_hosts.values()
            for each in attempts
            if each.due_s is not None and each.state in _BUSY
        ]
        if busy:
            self._store.due_again(busy, at_s)
        return must_wait


# Obeys a scheduler's order to tell a part of a guest's console.


# The clocks of scheduler and compute may differ. Nobody waits for longer: what was asked while the compute was down is not told.
ASKED_BEFORE_MAX = timedelta(minutes=2)
_NONE_MAX = 255


def console_handlers(fleet: Fleet, store: ComputeStore, clock: Callable[[], datetime]) -> Handlers:
    async def on_tell(orders: Sequence[Received[TellConsole]]) -> list[Said]:
        since = clock() - ASKED_BEFORE_MAX
        return [
            Tell(await _told(fleet, store, each.message), each)
            for each in orders
            if each.message.asked_at >= since
        ]

    return {TellConsole: ReadOnly(on_tell)}


async def _told(fleet: Fleet, store: ComputeStore, order: TellConsole) -> ConsoleTold:
    """What a guest has written, by the last attempt of the instance here: an earlier one was left by a move."""
    attempts = await store.living((order.instance,), None, 1)
    here = [each for each in attempts if fleet.get(each.host) is not None]
    told = ConsoleTold(cell=order.cell, question=order.question)
    if not here:
        return msgspec.structs.replace(told, none=f"no host of cell {order.cell!r} has the instance")
    attempt = max(here, key=lambda each: each.attempt)
    told = msgspec.structs.replace(told, attempt=attempt.attempt)
    try:
        found = await fleet[attempt.host].console(attempt, order.start, order.limit)
    except NoConsole as none:
        return msgspec.structs.replace(told, none=str(none)[:_NONE_MAX])
    part, text = _that_fits(found.text)
    return msgspec.structs.replace(
        told, text=text, start=found.start, next=found.start + len(part), size=found.size
    )


def _that_fits(part: bytes) -> tuple[bytes, str]:
    """As much of the beginning as one message has room for: characters that cannot be printed take six bytes each there."""
    text = part.decode(errors="replace")
    while len(msgspec.json.encode(text)) > VALUES_BYTES_MAX:
        part = part[: len(part) // 2]
        text = part.decode(errors="replace")
    return part, text
