"""Tries moves again that wait for room, when a host may have it: as if their orders had just come.

requests/waking.py says when, and which: moves and builds wait in one list. The host is chosen by the same steps as for a new
order (move_needs.py, move_hosts.py, move_verdicts.py), over rows that still wait. If there is none, the move waits on; if it
is not possible any more, it ends.

Nothing is claimed before a row is written, so a worker that dies leaves a row that waits as before, or one whose move has begun.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from msgspec import structs

from bus.messages.build import BuildRejected, InstanceId, NoValidHost
from bus.messages.moves import MOVE_LIMITS, MoveInstance
from bus.workers.publisher import Publisher
from scheduler_worker.core.instances.history import changes_between
from scheduler_worker.core.instances.moves import MoveRoom
from scheduler_worker.core.instances.outcomes import in_words
from scheduler_worker.core.instances.rows import MOVING, InstanceRow
from scheduler_worker.core.instances.specs import decoded
from scheduler_worker.core.instances.waiting_moves import (
    before_wait,
    begun,
    move_waits_on,
    wait_ended,
    waits_by,
)
from scheduler_worker.core.requests import InstanceSpec
from scheduler_worker.outbox.outbox import Outbox
from scheduler_worker.requests.companions import Unit
from scheduler_worker.requests.kept_moves import source_of
from scheduler_worker.requests.move_hosts import MoveHost, MoveHostFinder
from scheduler_worker.requests.move_needs import MoveNeeds, MoveNeedsFinder, NeedsFound
from scheduler_worker.requests.move_verdicts import JUST_CHANGED, after_order, room_for_moves
from scheduler_worker.requests.unclaimed_shares import UnclaimedShares
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import InstanceQuery, SchedulerStore, WaitingInstance
from scheduler_worker.waiting import MoveSource, WaitingSpecs


class WaitingMoves:
    def __init__(
        self,
        needs: MoveNeedsFinder,
        hosts: MoveHostFinder,
        store: SchedulerStore,
        outbox: Outbox,
        publisher: Publisher,
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
        self._publisher = publisher
        self._specs = specs
        self._clock = clock

    async def needs_of(self, order: MoveInstance, row: InstanceRow) -> tuple[InstanceSpec, MoveSource] | None:
        """What a waiting move needs of a host, and where its instance is. None if it does not wait by this order."""
        if not waits_by(row, order):
            return None
        _, ((needs, *_),) = await self._needs.find([order], _as_new([order]))
        if isinstance(needs, MoveNeeds):
            return needs.spec, source_of(row.told, needs, order.kind)
        # It is not possible now. When a host seems to have room, it is tried, and ends.
        spec = decoded(row.current_spec)
        if spec is None:
            return None
        return spec, MoveSource(row.told.cell, row.told.host, order.kind == "evacuate")

    async def try_again(self, batch: Sequence[tuple[WaitingInstance, MoveInstance]]) -> None:
        rows = await self._rows([id_ for _, order in batch for id_ in (order.instance, *order.together)])
        orders: dict[object, tuple[bytes, MoveInstance]] = {}
        for one, order in batch:
            if not waits_by(rows.get(order.instance), order):
                continue
            if any(_moves_by(rows.get(each), order) for each in order.together):
                # Others got their room, so they wait again. What their cell says of the last of them is under way.
                self._specs.failed(one.digest, may_pass=True)
                continue
            together = tuple(each for each in order.together if waits_by(rows.get(each), order))
            # One try counts for all instances that move together.
            key = order.request_id if order.together else (order.request_id, order.instance)
            orders.setdefault(key, (one.digest, structs.replace(order, together=together)))
        tried = [order for _, order in orders.values()]
        units, wanted = await self._needs.find(tried, _as_new(tried))
        chosen = await self._hosts.find(wanted, [unit.is_whole for unit in units])
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
            changed = [
                structs.replace(row, history=changes_between(rows.get(row.id), row, "")) for row in changed
            ]
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
        await self._outbox.publish(told, self._publisher)

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
                together=unit.together,
            )
            is_first = order is unit.orders[0]
            if isinstance(verdict, InstanceRow) and (is_first or not unit.is_whole):
                verdict = room.take(verdict, order) or verdict
            verdicts.append((row if waits else None, verdict))
        problem = next((each for _, each in verdicts if not isinstance(each, InstanceRow)), None)
        if problem is None:
            return None, [
                begun(after, waited) if waited is not None else after
                for waited, after in verdicts
                if isinstance(after, InstanceRow) and after is not rows.get(after.id)
            ]
        after = [self._without_host(waited, problem) for waited, _ in verdicts if waited is not None]
        before = [waited for waited, _ in verdicts if waited is not None]
        return problem, [row for row, was in zip(after, before, strict=True) if row is not was]

    def _without_host(self, row: InstanceRow, problem: BuildRejected | NoValidHost) -> InstanceRow:
        if isinstance(problem, NoValidHost):
            return move_waits_on(row, in_words(problem), problem)
        if _may_pass(problem):
            return move_waits_on(row, problem.reason, row.told.no_valid_host)
        return wait_ended(row, "failed", problem.reason, self._clock())

    async def _rows(self, ids: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        wanted = tuple(dict.fromkeys(ids))
        found = await self._store.instances(InstanceQuery(instances=wanted, limit=len(wanted)))
        return {row.id: row for row in found}


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
