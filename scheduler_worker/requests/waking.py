"""Tries waiting instances, and waiting moves, again when a host may have room for them: by priority first, then the oldest.

One scheduler at a time does so, by a lease. Another one that sees room waits for the lease to end, and looks again. So
when an instance is deleted somewhere, one search follows, however many schedulers hear of it.

    WaitingSpecs.room           which specs might fit, and how many (waiting.py): no search.
    next_waiting                as many rows as might fit, in their order.
    wake                        mark them, before anything is claimed for them.
    Claimer.find_hosts          the search, as for a new request.
    after_search                its outcome, over rows that still wait.
    WaitingMoves.try_again      for moves, in place of the last two (above).

A worker that dies in between leaves marked rows, some of which may hold a claim already. The next holder of the lease
tries these first, even if no host seems to have room for them: the claim itself may have taken that room.
"""

import asyncio
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from uuid import uuid4

import msgspec
from msgspec import structs

from bus.messages.build import BuildInstance, BuildRejected
from bus.messages.moves import MOVE_LIMITS, MoveInstance
from engine.choosing.explaining import in_words
from engine.choosing.verdicts import SearchRefused
from engine.flavors import InstanceId
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from kit.parts import Periodic
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.core.instances.history import alternatives_in, decoded, specs_in, with_history
from scheduler_worker.core.instances.moves import (
    MoveRoom,
    before_wait,
    begun,
    move_waits_on,
    wait_ended,
    waits_by,
)
from scheduler_worker.core.instances.rows import (
    MOVING,
    WAITING,
    InstanceRow,
    Timeouts,
    after_failed_wake,
    after_search,
)
from scheduler_worker.outbox import FailedInstances, Outbox
from scheduler_worker.requests.move_needs import MoveNeeds, MoveNeedsFinder, NeedsFound, Unit
from scheduler_worker.requests.moving import (
    JUST_CHANGED,
    MoveHost,
    MoveHostFinder,
    UnclaimedShares,
    after_order,
    room_for_moves,
)
from scheduler_worker.requests.reading import Search
from scheduler_worker.settings import PACE, SchedulerPace, SchedulerSettings
from scheduler_worker.store_sql import SchedulerStore, WaitingInstance
from scheduler_worker.waiting import MoveSource, WaitingNeeds, WaitingSpecs, first_that_fit, needs_in

# Tries moves again that wait for room, when a host may have it: as if their orders had just come.
#
# `Waker` says when, and which: moves and builds wait in one list. The host is chosen by the same steps as for a new
# order (move_needs.py, moving.py), over rows that still wait. If there is none, the move waits on; if it
# is not possible any more, it ends.
#
# Nothing is claimed before a row is written, so a worker that dies leaves a row that waits as before, or one whose move has begun.


class WaitingMoves:
    def __init__(
        self,
        needs: MoveNeedsFinder,
        hosts: MoveHostFinder,
        store: SchedulerStore,
        outbox: Outbox,
        *,
        unclaimed: UnclaimedShares,
        specs: WaitingSpecs,
        settings: SchedulerSettings,
        clock: Callable[[], datetime],
    ) -> None:
        self._needs = needs
        self._hosts = hosts
        self._settings = settings
        self._unclaimed = unclaimed
        self._store = store
        self._outbox = outbox
        self._specs = specs
        self._clock = clock

    async def try_again(self, batch: Sequence[tuple[WaitingInstance, MoveInstance]]) -> None:
        rows = await self._store.rows_of(
            [id_ for _, order in batch for id_ in (order.instance, *order.together)]
        )
        orders: dict[object, tuple[bytes, MoveInstance]] = {}
        for one, order in batch:
            if not waits_by(rows.get(order.instance), order):
                continue
            if any(_moves_by(rows.get(each), order) for each in order.together):
                # Those that move now are there first, and this one then follows them.
                self._specs.failed(one.digest, may_pass=True)
                continue
            together = tuple(each for each in order.together if waits_by(rows.get(each), order))
            # One try counts for all instances that move together.
            key = order.request_id if order.together else (order.request_id, order.instance)
            orders.setdefault(key, (one.digest, structs.replace(order, together=together)))
        tried = [order for _, order in orders.values()]
        units, wanted = await self._needs.find(tried, _as_new(tried))
        chosen = await self._hosts.find(wanted)
        digests = [digest for digest, _ in orders.values()]
        await self._write(
            [one.id for one, _ in batch], list(zip(digests, units, wanted, chosen, strict=True))
        )

    async def _write(
        self,
        listed: Sequence[InstanceId],
        tries: Sequence[tuple[bytes, Unit, Sequence[NeedsFound], Sequence[MoveHost]]],
    ) -> None:
        """Write the results of the tries on the rows that still wait; drop the marks of the rows that wait on."""
        ids = {*listed, *(order.instance for _, unit, _, _ in tries for order in unit.orders)}
        problems: list[tuple[bytes, BuildRejected | NoValidHost | None]] = []
        async with self._outbox.transaction() as transaction:
            store = await transaction.begun()
            room = await room_for_moves(store, self._settings)
            rows = await store.lock(sorted(ids))
            changed: list[InstanceRow] = []
            for digest, unit, needs, found in tries:
                problem, after = self._after(unit, needs, found, rows, room)
                problems.append((digest, problem))
                changed += after
            changed = [with_history(rows.get(row.id), row, "") for row in changed]
            await store.save(changed)
            now = {**rows, **{row.id: row for row in changed}}
            waits = {id_ for id_ in listed if id_ in now and now[id_].move_waits}
            await store.let_wait(sorted(waits))
            await store.unlist(sorted({*listed} - waits))
            told = await transaction.say([row for row in changed if row.unsaid])
        self._unclaimed.hold([row for row in changed if row.choices and not row.move_waits])
        for digest, problem in problems:
            if problem is None:
                self._specs.succeeded(digest)
            elif isinstance(problem, NoValidHost) or _may_pass(problem):
                self._specs.failed(digest, may_pass=not isinstance(problem, NoValidHost))
        await self._outbox.publish(told)

    def _after(
        self,
        unit: Unit,
        needs: Sequence[NeedsFound],
        found: Sequence[MoveHost],
        rows: Mapping[InstanceId, InstanceRow],
        room: MoveRoom,
    ) -> tuple[BuildRejected | NoValidHost | None, list[InstanceRow]]:
        """The rows of a unit after the try, and the reason why its instances do not move yet, or never."""
        verdicts: list[tuple[InstanceRow | None, InstanceRow | BuildRejected | NoValidHost]] = []
        if not any(waits_by(rows.get(order.instance), order) for order in unit.orders):
            # Another worker has begun or ended it.
            return None, []
        for order, needed, there in zip(unit.orders, needs, found, strict=True):
            row = rows.get(order.instance)
            waits = row is not None and waits_by(row, order)
            seen = before_wait(row) if row is not None and waits else row
            verdict = unit.refusal or after_order(
                seen,
                order,
                there,
                needed if isinstance(needed, MoveNeeds) else None,
                now=self._clock(),
                settings=self._settings,
                unit=unit,
            )
            is_first = order is unit.orders[0]
            if isinstance(verdict, InstanceRow) and is_first:
                verdict = room.take(verdict, order) or verdict
            verdicts.append((row if waits else None, verdict))
        problem = next((each for _, each in verdicts if not isinstance(each, InstanceRow)), None)
        if problem is None:
            return None, [
                begun(after, waited) if waited is not None else after
                for waited, after in verdicts
                if isinstance(after, InstanceRow) and after is not rows.get(after.id)
            ]
        room.give_back(unit.orders[0])
        after = [self._without_host(waited, problem) for waited, _ in verdicts if waited is not None]
        before = [waited for waited, _ in verdicts if waited is not None]
        return problem, [row for row, was in zip(after, before, strict=True) if row is not was]

    def _without_host(self, row: InstanceRow, problem: BuildRejected | NoValidHost) -> InstanceRow:
        if isinstance(problem, NoValidHost):
            return move_waits_on(row, in_words(problem), problem)
        if _may_pass(problem):
            return move_waits_on(row, problem.reason, row.told.no_valid_host)
        return wait_ended(row, "failed", problem.reason, self._clock())


def _as_new(orders: Sequence[MoveInstance]) -> Callable[[InstanceRow], InstanceRow]:
    """A function that shows a row that waits by one of these orders as it would be without the order."""
    requests = {order.request_id for order in orders}

    def seen(row: InstanceRow) -> InstanceRow:
        move = row.told.move
        return before_wait(row) if row.move_waits and move and move.request_id in requests else row

    return seen


def _moves_by(row: InstanceRow | None, order: MoveInstance) -> bool:
    """Has its cell the move of this order, as far as is known here?"""
    if row is None or row.told.state != MOVING or row.told.move is None:
        return False
    return row.told.move.request_id == order.request_id


def _may_pass(problem: BuildRejected) -> bool:
    """May the same try succeed later, although it is refused now?"""
    return problem.field in MOVE_LIMITS or problem.reason == JUST_CHANGED


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
        claimer: Claimer,
        specs: WaitingSpecs,
        *,
        moves: WaitingMoves,
        failed: FailedInstances,
        settings: SchedulerSettings,
        clock: Callable[[], datetime],
        chance: random.Random,
        pace: SchedulerPace = PACE,
    ) -> None:
        super().__init__("wake waiting instances", self._look, self._rest_s, chance=chance)
        self._store = store
        self._outbox = outbox
        self._claimer = claimer
        self._specs = specs
        self._moves = moves
        self._rows_tried = failed.of("wake waiting instances", self._try_alone)
        self._row_wait = timedelta(seconds=pace.host_row_wait_s)
        self._lease = timedelta(seconds=pace.wake_lease_s)
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
        """Learn the specs of the waiting rows that other workers wrote."""
        heard, self._specs.unread = self._specs.unread, set()
        if heard is not None and not heard:
            return
        try:
            digests = sorted(await self._store.waiting_digests(heard))
            for start in range(0, len(digests), AT_ONCE):
                some = await self._store.one_waiting_of_each(digests[start : start + AT_ONCE])
                await self._rows_tried.each(some, self._learn, _id_of)
        except BaseException:
            # What was heard meanwhile is read with the next try, and so are all rows, if some may be missing by now.
            later = self._specs.unread
            self._specs.unread = None if heard is None or later is None else heard | later
            raise

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
        await self._outbox.publish(told)

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
        by_id = await self._store.rows_of(each.id for each in waiting)
        # In the order of their turns.
        return [by_id[each.id] for each in waiting if each.id in by_id]


def _needs_of_row(row: InstanceRow, order: BuildInstance | MoveInstance) -> WaitingNeeds:
    """The needs of what release 0.1.0 has written as waiting. A move is tried when a host of its cell has any room."""
    specs = specs_in(row.current_spec)
    if isinstance(order, BuildInstance):
        return WaitingNeeds(specs)
    any_room = [
        InstanceSpec(tuple([(each, 1) for each in spec.classes]), cell=row.told.cell) for spec in specs[:1]
    ]
    return WaitingNeeds(tuple(any_room), MoveSource(row.told.cell, row.told.host, order.kind == "evacuate"))
