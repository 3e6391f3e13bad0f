"""Follows the guests of hosts: what stops by itself, what an audit asks about them, and what they write to their consoles."""

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial

import msgspec

from bus.messages.audit import AskHostBooks, BrokenGuest, HostBooksFound, HostEntry
from bus.messages.cell import (
    ConsoleTold,
    TellConsole,
)
from bus.messages.cloud import VALUES_BYTES_MAX
from bus.workers.handlers import Handlers, ReadOnly, Received, Said, Tell, answering
from compute_sim.core.attempts import (
    LABEL_MAX,
    AttemptRecord,
    AttemptState,
    stopped_by_itself,
)
from compute_sim.drivers import NoConsole
from compute_sim.handlers import ComputeStore, Fleet
from compute_sim.settings import USUAL_PACE, ComputePace
from engine.inventories import ProviderId
from kit.parts import Supervised, wait_at_most

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
        pace: ComputePace = USUAL_PACE,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("follow the guests", self._follow, chance=chance)
        self._fleet = fleet
        self._store = store
        self._pace = pace
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
                await wait_at_most(self._woken, self._pace.again_s)
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
                    if stopped.attempt.ends_s is not None:
                        must_wait = True
                    else:
                        told.append((stopped.attempt, stopped_by_itself(stopped.attempt, stopped.why, at_s)))
            await tx.replace(told)
        busy = [
            each.key
            for attempts in of_hosts.values()
            for each in attempts
            if each.ends_s is not None and each.state in _BUSY
        ]
        if busy:
            self._store.end_again(busy, at_s)
        return must_wait


# Obeys a scheduler's order to tell a part of a guest's console.


# The clocks of scheduler and compute may differ. Nobody waits for longer: what was asked while the compute was down is not told.
ASKED_BEFORE_MAX = timedelta(minutes=2)


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
        return msgspec.structs.replace(told, none=str(none)[:LABEL_MAX])
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


# Answers an audit's questions about the instances on hosts.


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
