"""Orders to move instances: check them, choose hosts in the picture, lock the rows, write, answer.

A move for which no host has room waits, if its order says so: waiting_moves.py tries it again.

Nothing is claimed here. The instance's cell asks placement to swap the claim, since only the cell knows the last
attempt. Until then the picture holds the chosen share (unclaimed_shares.py).
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial

from bus.messages.build import BuildRejected, InstanceId, NoValidHost
from bus.messages.moves import MoveInstance
from bus.workers.handling import Handlers, Received, Said
from scheduler_worker.core.instances.moves import MoveRoom
from scheduler_worker.core.instances.outcomes import in_words
from scheduler_worker.core.instances.rebuilds import refused
from scheduler_worker.core.instances.rows import InstanceRow, KeptRequest
from scheduler_worker.core.instances.waiting_moves import may_wait, move_waits, wait_of
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.companions import Unit
from scheduler_worker.requests.kept_moves import kept_order, source_of
from scheduler_worker.requests.last_filters import LastFilters
from scheduler_worker.requests.locked_rows import follow_several
from scheduler_worker.requests.move_hosts import MoveHost, MoveHostFinder
from scheduler_worker.requests.move_needs import MoveNeeds, MoveNeedsFinder, NeedsFound
from scheduler_worker.requests.move_verdicts import after_order, room_for_moves, why_none_named
from scheduler_worker.requests.unclaimed_shares import UnclaimedShares
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.waiting import WaitingSpecs


class Mover:
    def __init__(
        self,
        needs: MoveNeedsFinder,
        hosts: MoveHostFinder,
        picture: Picture,
        clock: Callable[[], datetime],
        settings: SchedulerSettings,
        *,
        know_hosts: Callable[[], Awaitable[None]],
        waiting: WaitingSpecs,
        unclaimed: UnclaimedShares,
        last_filters: LastFilters,
    ) -> None:
        self._needs = needs
        self._hosts = hosts
        self._picture = picture
        self._clock = clock
        self._settings = settings
        self._know_hosts = know_hosts
        self._waiting = waiting
        self._unclaimed = unclaimed
        self._last_filters = last_filters

    def handlers(self) -> Handlers:
        return {MoveInstance: self._on_moves}

    async def _on_moves(
        self, asks: Sequence[Received[MoveInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        await self._know_hosts()
        units, wanted = await self._needs.find([ask.message for ask in asks])
        chosen = await self._hosts.find(wanted, [unit.is_whole for unit in units])
        room = await room_for_moves(await transaction.begun(), self._settings)
        begun: dict[InstanceId, InstanceRow | None] = {}
        steps_of = []
        for ask, unit, needs, found in zip(asks, units, wanted, chosen, strict=True):
            # Instances that move together count as one move.
            rooms = [room, *(None if unit.is_whole else room for _ in unit.orders[1:])]
            kept = partial(kept_order, unit, ask.message, needs)
            steps_of.append(
                [
                    (
                        order.instance,
                        partial(
                            self._moved, unit, order, (there, _if_needed(each)), kept, room=at, begun=begun
                        ),
                    )
                    for order, each, there, at in zip(unit.orders, needs, found, rooms, strict=True)
                ]
            )
        said = await follow_several(asks, steps_of, transaction, are_whole=[unit.is_whole for unit in units])
        rows = [row for row in begun.values() if row is not None]
        transaction.when_committed(lambda: self._unclaimed.hold([row for row in rows if row.choices]))
        by_id = {
            order.instance: needs_of_one
            for unit, needs in zip(units, wanted, strict=True)
            for order, needs_of_one in zip(unit.orders, needs, strict=True)
        }
        waits = [
            (
                row.id,
                row.kept.digest,
                needs_of_one.spec,
                source_of(row.told, needs_of_one, row.told.move.kind),
            )
            for row in rows
            if row.kept is not None
            and row.told.move is not None
            and isinstance(needs_of_one := by_id[row.id], MoveNeeds)
        ]
        if waits:
            transaction.when_committed(lambda: self._waiting.wrote_moves(waits))
        return said

    def _moved(
        self,
        unit: Unit,
        order: MoveInstance,
        found: tuple[MoveHost, MoveNeeds | None],
        kept: Callable[[MoveInstance], KeptRequest],
        row: InstanceRow | None,
        *,
        room: MoveRoom | None,
        begun: dict[InstanceId, InstanceRow | None],
    ) -> InstanceRow | BuildRejected:
        """The row after the order to move it, or the refusal. A row whose move begins by this order, or waits, is added to
        `begun`. If one of several that move together is refused, None stands there for each of them.
        """
        verdict = unit.refusal or after_order(
            row, order, *found, now=self._clock(), settings=self._settings, together=unit.together
        )
        if isinstance(verdict, NoValidHost):
            assert row is not None, "a row that is not there is refused"
            self._last_filters.no_host(verdict)
            verdict = self._without_host(row, order, verdict, kept, unit.together)
        if isinstance(verdict, InstanceRow) and row is not None and verdict.told is not row.told:
            refusal = None if room is None or verdict.move_waits else room.take(verdict, order)
            if refusal is None:
                if verdict.choices and not verdict.move_waits:
                    verdict = self._with_wait(verdict, order, kept)
                if begun.get(verdict.id, verdict) is not None:
                    begun[verdict.id] = verdict
                return verdict
            verdict = refusal
        if unit.is_whole and isinstance(verdict, BuildRejected):
            begun.update(dict.fromkeys(each.instance for each in unit.orders))
        return verdict

    def _without_host(
        self,
        row: InstanceRow,
        order: MoveInstance,
        found: NoValidHost,
        kept: Callable[[MoveInstance], KeptRequest],
        together: tuple[InstanceId, ...],
    ) -> InstanceRow | BuildRejected:
        """The row of a move that begins to wait, since no host has room; or the refusal of one that does not wait, or that names
        no host to which it may ever go.
        """
        why_none = why_none_named(self._picture, order, row.told)
        why = in_words(found)
        wait = wait_of(order, evacuation_wait_s=self._settings.evacuation_wait_s)
        if why_none or wait is None:
            return refused(order, "instance", order.instance, f"no valid host: {why_none or why}")
        return move_waits(
            row,
            order,
            wait,
            self._clock(),
            kept=kept(order),
            reason=why,
            no_valid_host=found,
            together=together,
        )

    def _with_wait(
        self, row: InstanceRow, order: MoveInstance, kept: Callable[[MoveInstance], KeptRequest]
    ) -> InstanceRow:
        """The row of a move that begins at once; if its order waits for room, it does so should others get this room."""
        wait = wait_of(order, evacuation_wait_s=self._settings.evacuation_wait_s)
        return row if wait is None else may_wait(row, wait, self._clock(), kept(order))


def _if_needed(needs: NeedsFound) -> MoveNeeds | None:
    return needs if isinstance(needs, MoveNeeds) else None
