"""Orders to move instances: check them, choose hosts in the picture, lock the rows, write, answer.

A move for which no host has room waits, if its order says so: waking.py tries it again.

Nothing is claimed here. The instance's cell asks placement to swap the claim, since only the cell knows the last
attempt. Until then the picture holds the chosen share (`UnclaimedShares`).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial

from bus.messages.build import BuildRejected, InstanceState
from bus.messages.moves import MoveInstance
from bus.workers.handlers import Handlers, Received, Said
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
    is_done,
    is_on,
    is_taken,
    may_wait,
    move_waits,
    moved,
    problem_with,
    stays_on_host,
    wait_of,
)
from scheduler_worker.core.instances.resizes import refused, with_order
from scheduler_worker.core.instances.rows import InstanceRow, KeptRequest
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.requests.instance_orders import follow_several
from scheduler_worker.requests.move_needs import (
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
        units, wanted = await self._needs.find([ask.message for ask in asks])
        chosen = await self._hosts.find(wanted)
        room = await room_for_moves(await transaction.begun(), self._settings)
        begun: dict[InstanceId, InstanceRow | None] = {}
        steps_of = []
        for ask, unit, needs, found in zip(asks, units, wanted, chosen, strict=True):
            kept = partial(kept_order, unit, ask.message, needs)
            steps_of.append(
                [
                    (
                        order.instance,
                        partial(
                            self._moved,
                            unit,
                            order,
                            (there, each if isinstance(each, MoveNeeds) else None),
                            kept,
                            room=room,
                            begun=begun,
                        ),
                    )
                    for order, each, there in zip(unit.orders, needs, found, strict=True)
                ]
            )
        said = await follow_several(asks, steps_of, transaction)
        rows = [each for each in begun.values() if each is not None]
        transaction.when_committed(lambda: self._unclaimed.hold([row for row in rows if row.choices]))
        return said

    def _moved(
        self,
        unit: Unit,
        order: MoveInstance,
        found: tuple[MoveHost, MoveNeeds | None],
        kept: Callable[[MoveInstance], KeptRequest],
        row: InstanceRow | None,
        *,
        room: MoveRoom,
        begun: dict[InstanceId, InstanceRow | None],
    ) -> InstanceRow | BuildRejected:
        """The row after the order to move it, or the refusal. A row whose move begins by this order, or waits, is added to
        `begun`. If one of several that move together is refused, None stands there for each of them.
        """
        verdict = unit.refusal or after_order(
            row, order, *found, now=self._clock(), settings=self._settings, unit=unit
        )
        if isinstance(verdict, NoValidHost):
            assert row is not None, "a row that is not there is refused"
            self._last_filters.no_host(verdict)
            verdict = self._without_host(row, order, verdict, kept, unit.together)
        if isinstance(verdict, InstanceRow) and row is not None and verdict.told is not row.told:
            # Instances that move together count as one move.
            counts = order is unit.orders[0] and not verdict.move_waits
            refusal = room.take(verdict, order) if counts else None
            if refusal is None:
                if verdict.choices and not verdict.move_waits:
                    verdict = self._with_wait(verdict, order, kept)
                if begun.get(verdict.id, verdict) is not None:
                    begun[verdict.id] = verdict
                return verdict
            verdict = refusal
        if unit.is_of_several and isinstance(verdict, BuildRejected):
            room.give_back(unit.orders[0])
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
        wait = wait_of(order)
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
        wait = wait_of(order)
        return row if wait is None else may_wait(row, wait, self._clock(), kept(order))
