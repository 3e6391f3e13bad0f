"""Orders to move instances: check them, choose hosts in the picture, lock the rows, write, answer.

A move for which no host has room waits, if its order says so: when a host may have room, waking.py has the order followed again
(`Mover.try_again`), by the same steps.

Nothing is claimed here. The instance's cell asks placement to swap the claim, since only the cell knows the last
attempt. Until then the picture holds the chosen share (`UnclaimedShares`).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

from msgspec import Struct

from bus.messages.build import BuildRejected, InstanceState
from bus.messages.moves import MOVE_LIMITS, MoveInstance
from bus.workers.handlers import Handlers, Received, Said, Tell
from engine.choosing.choosing import Chosen, choose, choose_together
from engine.choosing.explaining import in_words
from engine.choosing.hosts import Occupant, what_if
from engine.choosing.plugins import Plugins
from engine.flavors import InstanceId
from engine.inventories import GroupMember
from engine.picture.picture import NO_HOST, Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from scheduler_worker.core.instances.moves import (
    MoveRoom,
    before_wait,
    begun,
    is_done,
    is_on,
    is_taken,
    may_wait,
    move_waits,
    move_waits_on,
    moved,
    problem_with,
    stays_on_host,
    wait_ended,
    wait_of,
    waits_by,
)
from scheduler_worker.core.instances.resizes import refused, with_order
from scheduler_worker.core.instances.rows import InstanceRow, KeptRequest
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.requests.instance_orders import follow_several
from scheduler_worker.requests.move_needs import (
    ON_THEIR_WAY,
    MoveNeeds,
    MoveNeedsFinder,
    NeedsFound,
    Unit,
    kept_order,
    server_group_of,
)
from scheduler_worker.requests.reading import LastFilters
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store_sql import SchedulerTransaction

# The hosts that are chosen for orders to move instances.


# The host that was chosen, or why there is none; None if none is to be chosen.
MoveHost = Chosen | NoValidHost | BuildRejected | None


class MoveHostFinder:
    def __init__(
        self,
        picture: Picture,
        plugins: Plugins,
        *,
        alternates_max: int,
        make_sure: Callable[[], Awaitable[object]],
        chance: random.Random,
    ) -> None:
        self._picture = picture
        self._plugins = plugins
        self._alternates_max = alternates_max
        self._make_sure = make_sure
        self._salt = chance.getrandbits(32)

    async def find(self, wanted: Sequence[Sequence[NeedsFound]]) -> list[list[MoveHost]]:
        """The chosen host of each instance of each order, or why there is none."""
        found = self._choose(wanted)
        if any(isinstance(each, NoValidHost) for of_order in found for each in of_order):
            await self._make_sure()
            found = self._choose(wanted)
        return found

    def _choose(self, wanted: Sequence[Sequence[NeedsFound]]) -> list[list[MoveHost]]:
        """Choose a host for each move. A resize that may stay on its host is chosen by itself: otherwise another move
        of the batch could be given the room that its instance gives back. So are instances that move together.
        """
        alone = [needs[0] for needs in wanted if len(needs) == 1]
        others = iter(
            self._chosen(
                [each.spec for each in alone if isinstance(each, MoveNeeds) and each.leaving is None]
            )
        )
        found: list[list[MoveHost]] = []
        for first, *more in wanted:
            if more:
                found.append(self._choose_one_host((first, *more)))
            elif not isinstance(first, MoveNeeds):
                found.append([first])
            elif first.leaving is None:
                found.append([next(others)])
            else:
                found.append([*self._chosen([first.spec], first.leaving)])
        return found

    def _choose_one_host(self, needs: Sequence[NeedsFound]) -> list[MoveHost]:
        """Choose one host for instances that move together; none if one of them does not move."""
        refusal = next((each for each in needs if isinstance(each, BuildRejected)), None)
        if refusal is not None:
            return [refusal] * len(needs)
        found_needs = [each for each in needs if isinstance(each, MoveNeeds)]
        if len(found_needs) < len(needs):
            return [None] * len(needs)
        specs = [*(each.spec for each in found_needs), *found_needs[0].followers]
        found = choose_together(self._picture, specs, self._plugins, self._salt, self._alternates_max)
        return [found] * len(needs) if isinstance(found, NoValidHost) else [*found[: len(needs)]]

    def _chosen(self, specs: Sequence[InstanceSpec], *gone: Occupant) -> list[Chosen | NoValidHost]:
        return choose(
            what_if(self._picture, self._plugins.way_judges, gone=gone),
            specs,
            self._plugins,
            self._salt,
            self._alternates_max,
        )


# Verdicts on orders to move instances, over locked rows: the row with the move, or why there is none.


# The reason of a refusal because the instance changed while its host was chosen.
JUST_CHANGED = "it has just changed: ask again"


def after_order(
    row: InstanceRow | None,
    order: MoveInstance,
    chosen: MoveHost,
    needs: MoveNeeds | None,
    *,
    now: datetime,
    settings: SchedulerSettings,
    unit: Unit,
) -> InstanceRow | BuildRejected | NoValidHost:
    """The row with the move to the chosen host, or why there is none: the order is refused, or no host has room."""
    problem = problem_with(row, order)
    if problem is not None:
        return problem
    assert row is not None, "a row that is not there is a problem"
    if is_taken(row, order):
        return row
    # A resize may have been confirmed meanwhile: then the host was chosen for another size.
    is_as_read = needs is None or needs.row.current_spec == row.current_spec
    match chosen:
        case BuildRejected() | NoValidHost():
            return chosen
        case _ if is_done(row, order):
            return with_order(row, order)
        case Chosen(cell=row.told.cell) if is_as_read:
            choices = (chosen.choice, *chosen.alternates)
        case None if stays_on_host(row, order.kind):
            choices = ()
        case _:
            return refused(order, "instance", order.instance, JUST_CHANGED)
    return moved(
        row,
        order,
        choices,
        now,
        timeout_s=settings.move_timeout_s,
        confirm_s=settings.move_confirm_s,
        next_spec=b"" if needs is None else needs.next_spec,
        of=(chosen.hosts, chosen.qualified) if isinstance(chosen, Chosen) else (0, 0),
        together=unit.together,
        leaves=unit.leaves,
    )


def why_none_named(picture: Picture, order: MoveInstance, told: InstanceState) -> str:
    """Why none of the hosts that the order names may be chosen; empty if any of them may."""
    reasons = []
    for name in order.hosts:
        if order.kind != "resize" and is_on(told, name):
            reasons.append(f"it is on host {name} already")
            continue
        cells = picture.cells_named(name)
        if told.cell in cells:
            return ""
        reasons.append(
            f"{name} is in cell {' and '.join(cells)}, and the instance stays in cell {told.cell}"
            if cells
            else f"{name}: {NO_HOST if reasons else picture.no_host(name)}"
        )
    return "; ".join(reasons)


async def room_for_moves(store: SchedulerTransaction, settings: SchedulerSettings) -> MoveRoom:
    """How many more moves the settings allow for each host and cell. With such a limit, the moves that go on are
    locked, so schedulers count one after the other.
    """
    a_host, a_cell = settings.moves_per_host_max, settings.moves_per_cell_max
    going = await store.lock_moves() if a_host or a_cell else ()
    return MoveRoom(going, a_host, a_cell)


# Shares of hosts that a scheduler has chosen, and that an instance's cell is to claim: for moves, and for further alternates.
#
# The scheduler does not see when the cell claims. So the picture counts each share as used for some seconds, and the next
# choices leave it alone.


# How long the picture holds a choice for which no swap is seen.
HELD_S = 30.0


class UnclaimedShares:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        # By the instance and the attempt that will claim it.
        self._held: set[tuple[InstanceId, int]] = set()

    def hold(self, rows: Sequence[InstanceRow]) -> None:
        """Hold the first choice of each row in the picture for some seconds. They count under the attempt that the first
        swap will have, so the change of placement that names this attempt ends the hold earlier.
        """
        held = [(row.id, row.told.attempt + 1, row.choices[0].share) for row in rows]
        self._picture.hold(held)
        for row, (instance, attempt, share) in zip(rows, held, strict=True):
            if (group := server_group_of(row)) is not None:
                # Those that are ordered to leave next follow it there.
                member = GroupMember(group=group.id, consumer=instance, attempt=attempt, host=share.host)
                self._picture.groups.hold(member)
        keys = [(instance, attempt) for instance, attempt, _ in held]
        self._held.update(keys)
        asyncio.get_running_loop().call_later(HELD_S, self._drop, keys)

    def drop_all(self) -> None:
        """Hold none of them any more. This is called before a client is told that there is no host; placement still judges
        whether a swap has room.
        """
        self._picture.drop(self._held)
        self._held.clear()

    def _drop(self, keys: Sequence[tuple[InstanceId, int]]) -> None:
        self._picture.drop(keys)
        self._held.difference_update(keys)


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
        unclaimed: UnclaimedShares,
        last_filters: LastFilters,
    ) -> None:
        self._needs = needs
        self._hosts = hosts
        self._picture = picture
        self._clock = clock
        self._settings = settings
        self._know_hosts = know_hosts
        self._unclaimed = unclaimed
        self._last_filters = last_filters

    def handlers(self) -> Handlers:
        return {MoveInstance: self._on_moves}

    async def _on_moves(
        self, asks: Sequence[Received[MoveInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        await self._know_hosts()
        said, _ = await self._follow(asks, transaction)
        return said

    async def try_again(
        self, orders: Mapping[InstanceId, MoveInstance], transaction: OutboxTransaction
    ) -> tuple[list[Said], Mapping[InstanceId, bool]]:
        """Follow these orders, by which moves of these instances wait, once more. Returns what is to be said, and those that wait on,
        each with whether this may pass without a change of hosts.
        """
        # One try counts for all instances that move together.
        once = {(order.request_id, None if order.together else id_): order for id_, order in orders.items()}
        asks = [Received(order, "", "", "", "", 0) for order in once.values()]
        said, moves = await self._follow(asks, transaction, again=True)
        waits_on = {id_: may_pass for move in moves for id_, may_pass in move.waits_on.items()}
        # Nobody waits for an answer: only the rows have something to say.
        return [each for each in said if isinstance(each, Tell) and each.kept is not None], waits_on

    async def _follow(
        self, asks: Sequence[Received[MoveInstance]], transaction: OutboxTransaction, *, again: bool = False
    ) -> tuple[list[Said], Sequence["_Move"]]:
        units, wanted = await self._needs.find([ask.message for ask in asks], again=again)
        chosen = await self._hosts.find(wanted)
        moves = [
            _Move(ask.message, unit, needs, found, again)
            for ask, unit, needs, found in zip(asks, units, wanted, chosen, strict=True)
        ]
        room = await room_for_moves(await transaction.begun(), self._settings)
        steps = [
            ([order.instance for order in move.unit.orders], partial(self._after, move, room))
            for move in moves
        ]
        said = await follow_several(asks, steps, transaction)
        held = [row for move in moves for row in move.begun if row.choices]
        transaction.when_committed(lambda: self._unclaimed.hold(held))
        return said, moves

    def _after(
        self, move: "_Move", room: MoveRoom, rows: Mapping[InstanceId, InstanceRow]
    ) -> Sequence[InstanceRow] | BuildRejected:
        """The rows of all instances that the order moves, or why it moves none of them."""
        unit, now = move.unit, self._clock()
        verdicts = [
            unit.refusal
            or after_order(
                move.as_new(rows.get(order.instance)),
                order,
                there,
                needs if isinstance(needs, MoveNeeds) else None,
                now=now,
                settings=self._settings,
                unit=unit,
            )
            for order, needs, there in zip(unit.orders, move.needs, move.found, strict=True)
        ]
        problem: BuildRejected | NoValidHost | None = None
        for kind in (NoValidHost, BuildRejected):
            problem = next((each for each in verdicts if isinstance(each, kind)), problem)
        after = [each for each in verdicts if isinstance(each, InstanceRow)]
        if problem is None and after[0].told is not rows[after[0].id].told:
            problem = room.take(after[0], unit.orders[0])
        if problem is not None:
            return self._without_host(move, problem, rows)
        after = [
            self._begun(move, order, rows[row.id], row) for order, row in zip(unit.orders, after, strict=True)
        ]
        move.begun = [row for row in after if row.told is not rows[row.id].told]
        return after

    def _begun(
        self, move: "_Move", order: MoveInstance, before: InstanceRow, row: InstanceRow
    ) -> InstanceRow:
        """The row of a move that begins; if its order waits for room, it does so should others get this room."""
        if move.waits(before):
            return begun(row, before)
        wait = wait_of(order)
        if row.told is before.told or not row.choices or wait is None:
            return row
        return may_wait(row, wait, self._clock(), move.kept(order))

    def _without_host(
        self, move: "_Move", problem: BuildRejected | NoValidHost, rows: Mapping[InstanceId, InstanceRow]
    ) -> Sequence[InstanceRow] | BuildRejected:
        """The rows of moves that wait on, or that begin to; or why the order is refused."""
        orders = move.unit.orders
        if move.again:
            waiting = [row for order in orders if (row := rows.get(order.instance)) and move.waits(row)]
            after = [_waits_on(row, problem, self._clock()) for row in waiting]
            move.waits_on = {row.id: isinstance(problem, BuildRejected) for row in after if row.move_waits}
            return after
        if isinstance(problem, BuildRejected):
            return problem
        after = []
        for order in orders:
            self._last_filters.no_host(problem)
            row, wait = rows[order.instance], wait_of(order)
            why_none, why = why_none_named(self._picture, order, row.told), in_words(problem)
            if why_none or wait is None:
                return refused(order, "instance", order.instance, f"no valid host: {why_none or why}")
            after.append(
                move_waits(
                    row,
                    order,
                    wait,
                    self._clock(),
                    kept=move.kept(order),
                    reason=why,
                    no_valid_host=problem,
                    together=move.unit.together,
                )
            )
        return after


class _Move(Struct):
    """An order to move instances while it is worked on, with what it needs and what was found for each of them. With `again`, they
    may wait by it already.
    """

    asked: MoveInstance
    unit: Unit
    needs: Sequence[NeedsFound]
    found: Sequence[MoveHost]
    again: bool
    # The rows whose moves have begun by it; and those that wait on, each with whether the reason may pass by itself.
    begun: Sequence[InstanceRow] = ()
    waits_on: Mapping[InstanceId, bool] = {}

    def waits(self, row: InstanceRow) -> bool:
        return self.again and waits_by(row, self.asked)

    def as_new(self, row: InstanceRow | None) -> InstanceRow | None:
        return before_wait(row) if row is not None and self.waits(row) else row

    def kept(self, order: MoveInstance) -> KeptRequest:
        return kept_order(self.unit, self.asked, self.needs, order)


def _waits_on(row: InstanceRow, problem: BuildRejected | NoValidHost, now: datetime) -> InstanceRow:
    """The row of a move that waits on after another try; or whose wait ends, since the move is not possible any more."""
    if isinstance(problem, NoValidHost):
        return move_waits_on(row, in_words(problem), problem)
    if problem.field in MOVE_LIMITS or problem.reason in (JUST_CHANGED, ON_THEIR_WAY):
        return move_waits_on(row, problem.reason, row.told.no_valid_host)
    return wait_ended(row, "failed", problem.reason, now)
