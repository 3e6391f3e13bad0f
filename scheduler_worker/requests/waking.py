"""Tries waiting instances, and waiting moves, again when a host may have room for them: by priority first, then the oldest.

One scheduler at a time does so, by a lease. Another one that sees room waits for the lease to end, and looks again. So
when an instance is deleted somewhere, one search follows, however many schedulers hear of it.

    WaitingSpecs.room           which specs might fit, and how many (waiting.py): no search.
    next_waiting                as many rows as might fit, in their order.
    wake                        mark them, before anything is claimed for them.
    Claimer.find_hosts          the search, as for a new request.
    after_search                its outcome, over rows that still wait.
    WaitingMoves.try_again      for moves, in place of the last two (waiting_moves.py).

A worker that dies in between leaves marked rows, some of which may hold a claim already. The next holder of the lease
tries these first, even if no host seems to have room for them: the claim itself may have taken that room.
"""

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from uuid import uuid4

import msgspec

from bus.messages.build import BuildInstance, NoValidHost
from bus.messages.moves import MoveInstance
from bus.parts import Periodic
from bus.workers.publisher import Publisher
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.claiming.search import Search
from scheduler_worker.core.choosing.waking import first_that_fit
from scheduler_worker.core.instances.outcomes import SearchRefused
from scheduler_worker.core.instances.placing import Timeouts, after_failed_wake, after_search
from scheduler_worker.core.instances.rows import WAITING, InstanceRow
from scheduler_worker.core.instances.specs import alternatives_in, decoded, specs_in
from scheduler_worker.outbox.outbox import Outbox
from scheduler_worker.requests.waiting_moves import WaitingMoves
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import InstanceQuery, SchedulerStore, WaitingInstance
from scheduler_worker.waiting import WaitingSpecs

AT_ONCE = 100
# Nothing waits: only news end this pause.
QUIET_S = 24 * 3600.0
REST_S_MIN = 0.01

_kept = msgspec.msgpack.Decoder(BuildInstance | MoveInstance).decode


class Waker(Periodic):
    def __init__(
        self,
        store: SchedulerStore,
        outbox: Outbox,
        publisher: Publisher,
        claimer: Claimer,
        specs: WaitingSpecs,
        *,
        moves: WaitingMoves,
        settings: SchedulerSettings,
        clock: Callable[[], datetime],
        chance: random.Random,
    ) -> None:
        super().__init__("wake waiting instances", self._look, self._rest_s, chance=chance)
        self._store = store
        self._outbox = outbox
        self._publisher = publisher
        self._claimer = claimer
        self._specs = specs
        self._moves = moves
        self._row_wait = timedelta(seconds=settings.host_row_wait_s)
        self._lease = timedelta(seconds=settings.wake_lease_s)
        self._timeouts = Timeouts(settings.request_timeout_s, settings.node_request_timeout_s)
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
        room = self._specs.room()
        if not room and not await self._store.some_are_woken():
            return
        while await self._wake_some(room):
            room = self._specs.room()
        if self._lease_ends is None:
            async with self._store.transaction() as transaction:
                await transaction.release_waking(self._name)

    async def _read(self) -> None:
        """Learn the specs of the waiting rows that other workers wrote."""
        heard, self._specs.unread = self._specs.unread, set()
        if heard is not None and not heard:
            return
        try:
            digests = sorted(await self._store.waiting_digests(heard))
            for start in range(0, len(digests), AT_ONCE):
                some = await self._store.one_waiting_of_each(digests[start : start + AT_ONCE])
                by_id = {each.id: each for each in some}
                for row in await self._rows(some):
                    one = by_id[row.id]
                    if isinstance(order := _kept(one.build), MoveInstance):
                        if (needs := await self._moves.needs_of(order, row)) is not None:
                            self._specs.learn(one.digest, (needs[0],), needs[1])
                    elif specs := specs_in(row.spec):
                        self._specs.learn(one.digest, specs)
        except BaseException:
            # What was heard meanwhile is read with the next try, and so are all rows, if some may be missing by now.
            later = self._specs.unread
            self._specs.unread = None if heard is None or later is None else heard | later
            raise

    async def _wake_some(self, room: dict[bytes, int]) -> bool:
        """Search hosts for some of the waiting instances. Returns whether to go on, because some were tried."""
        learned = self._specs.learned()
        limit = min(AT_ONCE, sum(room.values()))
        async with self._store.transaction() as transaction:
            now = self._clock()
            self._lease_ends = await transaction.lease_waking(self._name, now, now + self._lease)
            if self._lease_ends is not None:
                return False
            batch = await transaction.woken(AT_ONCE)
            if not batch and room:
                found = await transaction.next_waiting(sorted(room), limit)
                batch = found[: first_that_fit([each.digest for each in found], room)]
                await transaction.wake([each.id for each in batch])
                gone = room.keys() - {each.digest for each in found} if len(found) < limit else set()
            else:
                gone = set()
        if gone:
            # A row that another worker has locked was passed over, and may wait still.
            still = {each.digest for each in await self._store.one_waiting_of_each(sorted(gone))}
            for digest in gone - still:
                self._specs.forget(digest, learned)
        if batch:
            await self._try(batch)
        return bool(batch)

    async def _try(self, woken: Sequence[WaitingInstance]) -> None:
        """Try the first of these, and those after it up to a move among builds, or a build among moves. The others stay woken, so
        that their turn is next.
        """
        kept = [(each, _kept(each.build)) for each in woken]
        are_moves = isinstance(kept[0][1], MoveInstance)
        first = [*takewhile(lambda each: isinstance(each[1], MoveInstance) is are_moves, kept)]
        if are_moves:
            moves = [(each, order) for each, order in first if isinstance(order, MoveInstance)]
            await self._moves.try_again(moves)
        else:
            await self._build([(each, order) for each, order in first if isinstance(order, BuildInstance)])

    async def _build(self, kept: Sequence[tuple[WaitingInstance, BuildInstance]]) -> None:
        batch = [each for each, _ in kept]
        builds = {each.id: (each.digest, build) for each, build in kept}
        searches = []
        for row in await self._rows(batch):
            digest, build = builds[row.id]
            if row.told.state == WAITING and (spec := decoded(row.spec)) is not None:
                alternatives = alternatives_in(row.spec)
                search = Search(row.id, self._claimed_at(row), build, spec, alternatives)
                searches.append((digest, search))
        await self._claimer.find_hosts([search for _, search in searches])
        await self._decide(batch, [search for _, search in searches])
        for digest, search in searches:
            match search.outcome:
                case NoValidHost():
                    self._specs.failed(digest, may_pass=False)
                case SearchRefused(may_pass=True):
                    self._specs.failed(digest, may_pass=True)
                case _:
                    self._specs.succeeded(digest)

    async def _decide(self, batch: Sequence[WaitingInstance], searches: Sequence[Search]) -> None:
        """Write the results of the searches on the rows that still wait. Another worker has decided a row that no longer waits;
        then the messages that this row sends release what the search has claimed for it.
        """
        ids = sorted(each.id for each in batch)
        by_id = {search.instance: search for search in searches}
        async with self._outbox.transaction() as transaction:
            store = await transaction.begun()
            rows = await store.lock(ids)
            changed = []
            for id_ in ids:
                search, row = by_id.get(id_), rows.get(id_)
                if row is None or search is None:
                    continue
                if (after := self._after(row, search)) is not None:
                    changed.append(after)
            await store.save(changed)
            waiting = {row.id for row in rows.values() if row.told.state == WAITING}
            ended = {row.id for row in changed if row.told.state != WAITING}
            await store.let_wait(sorted(waiting - ended))
            # Whatever has ended it, it is not tried again.
            await store.unlist([id_ for id_ in ids if id_ not in waiting])
            told = await transaction.say(changed)
        await self._outbox.publish(told, self._publisher)

    def _claimed_at(self, row: InstanceRow) -> datetime:
        """The time that a claim for this waiting instance names as its beginning. The moment of its acceptance may be
        older than placement accepts. The time is at least `host_row_wait_s` ago, so nothing waits for the row of a host
        that is unknown here.
        """
        return max(row.issued_at, self._clock() - self._row_wait)

    def _after(self, row: InstanceRow, search: Search) -> InstanceRow | None:
        """The row after the search for its instance. None if nothing changes, or if the instance does not wait any
        more, because another worker has decided it.
        """
        outcome = search.outcome
        if row.told.state != WAITING:
            return None
        if isinstance(outcome, NoValidHost) or (isinstance(outcome, SearchRefused) and outcome.may_pass):
            return after_failed_wake(row, outcome, search.refusals, search.found)
        return after_search(
            row,
            search.build,
            outcome,
            search.refusals,
            self._clock(),
            timeouts=self._timeouts,
            group=search.spec.server_group,
            found=search.found,
        )

    async def _rows(self, waiting: Sequence[WaitingInstance]) -> Sequence[InstanceRow]:
        ids = tuple(each.id for each in waiting)
        by_id = {
            row.id: row for row in await self._store.instances(InstanceQuery(instances=ids, limit=len(ids)))
        }
        # In the order of their turns.
        return [by_id[id_] for id_ in ids if id_ in by_id]
