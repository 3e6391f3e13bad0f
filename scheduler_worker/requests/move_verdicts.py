"""Verdicts on orders to move instances, over locked rows: the row with the move, or why there is none."""

from datetime import datetime

from bus.messages.build import BuildRejected, InstanceId, InstanceState, NoValidHost
from bus.messages.moves import MoveInstance
from scheduler_worker.core.choosing.choosing import Chosen
from scheduler_worker.core.instances.moves import (
    MoveRoom,
    is_done,
    is_on,
    is_taken,
    moved,
    problem_with,
    stays_on_host,
)
from scheduler_worker.core.instances.rebuilds import refused, with_order
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.requests.move_hosts import MoveHost
from scheduler_worker.requests.move_needs import MoveNeeds
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import SchedulerTransaction

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
    together: tuple[InstanceId, ...] = (),
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
        together=together,
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
            else f"no host {name} is known"
        )
    return "; ".join(reasons)


async def room_for_moves(store: SchedulerTransaction, settings: SchedulerSettings) -> MoveRoom:
    """How many more moves the settings allow for each host and cell. With such a limit, the moves that go on are
    locked, so schedulers count one after the other.
    """
    a_host, a_cell = settings.moves_per_host_max, settings.moves_per_cell_max
    going = await store.lock_moves() if a_host or a_cell else ()
    return MoveRoom(going, a_host, a_cell)
