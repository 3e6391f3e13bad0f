"""Wakes what waits: has the orders of waiting instances, and of waiting moves, carried out again when a host may have room for them,
by priority first, then the oldest.

One scheduler at a time does so, by a lease. Another one that sees room waits for the lease to end, and looks again. So
when an instance is deleted somewhere, one search follows, however many schedulers hear of it.

    WaitingSpecs.room           which specs might fit, and how many (waiting.py): no search.
    next_waiting                as many rows as might fit, in their order.
    wake                        mark them, before anything is claimed for them.
    Builder.try_again           a build: the same steps as for a new one after it is accepted (building.py).
    Mover.try_again             a move: the same steps as for a new order (moving.py).
    end_wakes                   drop the marks, in the transaction of the outcome.

A worker that dies in between leaves marked rows, some of which may hold a claim already. The next holder of the lease
tries these first, even if no host seems to have room for them: the claim itself may have taken that room.
"""

import asyncio
import operator
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any
from uuid import uuid4

import msgspec

from bus.messages.build import BuildInstance
from bus.messages.moves import MoveInstance
from bus.workers.handlers import Said, Tell
from engine.flavors import InstanceId
from engine.requests import InstanceSpec
from kit.parts import Periodic
from scheduler_worker.core.instances.history import specs_in
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.outbox import FailedInstances, Outbox, OutboxTransaction
from scheduler_worker.settings import PACE, SchedulerPace
from scheduler_worker.store_sql import SchedulerStore, WaitingInstance
from scheduler_worker.waiting import MoveSource, WaitingNeeds, WaitingSpecs, first_that_fit, needs_in

# Carries out the orders of these instances again. Returns what is to be said, and which of them wait on, each with whether its reason may
# pass without a change of hosts.
TryAgain = Callable[
    [Mapping[InstanceId, Any], OutboxTransaction],
    Awaitable[tuple[Sequence[Said], Mapping[InstanceId, bool]]],
]

AT_ONCE = 100
# Nothing waits: only news end this pause.
QUIET_S = 24 * 3600.0
REST_S_MIN = 0.01

_kept = msgspec.msgpack.Decoder(BuildInstance | MoveInstance).decode
_id_of = operator.attrgetter("id")


class Waker(Periodic):
    def __init__(
        self,
        store: SchedulerStore,
        outbox: Outbox,
        specs: WaitingSpecs,
        again: Mapping[type[BuildInstance | MoveInstance], TryAgain],
        *,
        failed: FailedInstances,
        clock: Callable[[], datetime],
        chance: random.Random,
        pace: SchedulerPace = PACE,
    ) -> None:
        super().__init__("wake waiting instances", self._look, self._rest_s, chance=chance)
        self._store = store
        self._outbox = outbox
        self._specs = specs
        self._again = again
        self._rows_tried = failed.of("wake waiting instances", self._try_alone)
        self._lease = timedelta(seconds=pace.wake_lease_s)
        self._clock = clock
        self._name = uuid4()
        self._lease_ends: datetime | None = None
        specs.tell(self.wake)

    def _rest_s(self) -> float:
        """The seconds until the next look for room. If another worker has the lease, they last until it ends. While
        anything waits, they are never longer than a lease lasts, since that worker may have died.
        """
        if not self._specs:
            return QUIET_S
        if self._lease_ends is None:
            until_s = self._specs.rest_s()
        else:
            until_s = (self._lease_ends - self._clock()).total_seconds()
        return min(self._lease.total_seconds(), max(until_s, REST_S_MIN))

    async def _look(self) -> None:
        self._lease_ends = None
        await self._read()
        if not self._specs:
            return
        room = await self._room()
        if not room and not await self._store.some_are_woken():
            return
        while await self._wake_some(room):
            room = await self._room()
        if self._lease_ends is None:
            async with self._store.transaction() as transaction:
                await transaction.release_waking(self._name)

    async def _room(self) -> dict[bytes, int]:
        """Judge piece after piece, and let other tasks run in between, until some have room or nothing is left to judge."""
        room = self._specs.room()
        while not room and self._specs.is_judging:
            await asyncio.sleep(0)
            room = self._specs.room()
        return room

    async def _read(self) -> None:
        """Learn the needs of the waiting rows of which this worker has heard; or of one row of each digest, if it may have missed some."""
        heard, self._specs.unread = self._specs.unread, set()
        try:
            async for some in self._pages(heard):
                await self._rows_tried.each(some, self._learn, _id_of)
        except BaseException:
            self._specs.unread = None
            raise

    async def _pages(self, heard: Collection[InstanceId] | None) -> AsyncIterator[Sequence[WaitingInstance]]:
        ids, digests = sorted(heard or ()), [] if heard is not None else await self._store.waiting_digests()
        for start in range(0, len(ids), AT_ONCE):
            yield await self._store.find_waiting(ids[start : start + AT_ONCE])
        for start in range(0, len(digests), AT_ONCE):
            yield await self._store.one_waiting_of_each(digests[start : start + AT_ONCE])

    async def _wake_some(self, room: dict[bytes, int]) -> bool:
        """Search hosts for some of the waiting instances. Returns whether to go on, because some were tried."""
        goes_on = False
        limit = min(AT_ONCE, sum(room.values()))
        found: Sequence[WaitingInstance] = ()
        async with self._store.transaction() as transaction:
            now = self._clock()
            self._lease_ends = await transaction.lease_waking(self._name, now, now + self._lease)
            if self._lease_ends is not None:
                return False
            resting = len(self._rows_tried)
            batch = self._rows_tried.awake(await transaction.woken(AT_ONCE + resting), _id_of)
            if not batch and room:
                limit += resting
                found = await transaction.next_waiting(sorted(room), limit)
                self._specs.read(found)
                ready = [each for each in found if self._specs.may_be_tried(each.turn)]
                goes_on = len(ready) < len(found)
                awake = self._rows_tried.awake(ready, _id_of)
                batch = awake[: first_that_fit([each.digest for each in awake], room)]
                await transaction.wake([each.id for each in batch])
                gone = room.keys() - {each.digest for each in found} if len(found) < limit else set()
            else:
                gone = set()
        if gone:
            # A row that another worker has locked was passed over, and may wait still.
            still = {each.digest for each in await self._store.one_waiting_of_each(sorted(gone))}
            for digest in gone - still:
                self._specs.forget(digest)
        await self._rows_tried.each(batch, self._try, _id_of)
        for digest in {each.digest for each in (*found, *batch) if self._rows_tried.rests(each.id)}:
            # Room for what rests is no reason to look again at once.
            self._specs.failed(digest, may_pass=True)
        return bool(batch) or goes_on

    async def _try_alone(self, instance: InstanceId) -> None:
        """Try one row, as the holder of the lease would: another try at the same time makes the same claim."""
        if batch := await self._store.find_waiting((instance,)):
            async with self._store.transaction() as transaction:
                await transaction.wake((instance,))
            await self._learn(batch)
            await self._try(batch)

    async def _learn(self, some: Sequence[WaitingInstance]) -> None:
        found = {each.id: needs_in(each.needs) for each in some}
        rows = await self._store.rows_of([id_ for id_, needs in found.items() if needs is None])
        for one in some:
            needs = found[one.id]
            if needs is None and (row := rows.get(one.id)) is not None:
                needs = _needs_of_row(row, _kept(one.build))
            if needs is not None and needs.specs:
                self._specs.learn(one.digest, needs.specs, one.turn, needs.source)

    async def _try(self, woken: Sequence[WaitingInstance]) -> None:
        """Have the orders of these carried out again, in their order: those of builds together, and those of moves."""
        digests = {each.id: each.digest for each in woken}
        orders = [(each.id, _kept(each.build)) for each in woken]
        for kind, some in groupby(orders, lambda each: type(each[1])):
            tried = dict(some)
            async with self._outbox.transaction() as transaction:
                said, waits_on = await self._again[kind](tried, transaction)
                await (await transaction.begun()).end_wakes([*tried])
            failed = {digests[id_]: may_pass for id_, may_pass in waits_on.items()}
            for digest in {digests[id_] for id_ in tried}:
                if digest in failed:
                    self._specs.failed(digest, may_pass=failed[digest])
                else:
                    self._specs.succeeded(digest)
            await self._outbox.publish([each for each in said if isinstance(each, Tell)])


def _needs_of_row(row: InstanceRow, order: BuildInstance | MoveInstance) -> WaitingNeeds:
    """The needs of what release 0.1.0 has written as waiting. A move is tried when a host of its cell has any room."""
    specs = specs_in(row.current_spec)
    if isinstance(order, BuildInstance):
        return WaitingNeeds(specs)
    any_room = [
        InstanceSpec(tuple([(each, 1) for each in spec.classes]), cell=row.told.cell) for spec in specs[:1]
    ]
    return WaitingNeeds(tuple(any_room), MoveSource(row.told.cell, row.told.host, order.kind == "evacuate"))
