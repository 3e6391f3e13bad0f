"""Orders to move several instances at once: which instances one order moves, and why they may not move that way.

Members of an affinity group leave their host together, or not at all: an order for one of them names the others, or asks for
the whole group. They move to one host (core/choosing/one_host_for_all.py). Members of a soft group each get their own host: chosen in
one batch, they follow each other.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, structs

from bus.message import ConsumerId
from bus.messages.build import BuildRejected, InstanceId, MoveKind
from bus.messages.moves import TOGETHER_MAX, MoveInstance
from bus.messages.placement import ServerGroup
from scheduler_worker.core.instances.moves import is_taken, problem_with
from scheduler_worker.core.instances.rebuilds import refused
from scheduler_worker.core.instances.rows import DELETED, DELETING, InstanceRow, is_of
from scheduler_worker.core.instances.specs import decoded
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.store import InstanceQuery, SchedulerStore

# Of these all instances come back if the destination fails for one of them. A live migration that arrived cannot.
TOGETHER_KINDS: tuple[MoveKind, ...] = ("migrate", "evacuate")
Rows = Mapping[ConsumerId, InstanceRow]


class Unit(Struct, frozen=True):
    """What one order asks for: an order for each instance, the one that it names first. With `is_whole`, all of them move
    to one host, or none moves.
    """

    orders: tuple[MoveInstance, ...]
    is_whole: bool = False
    refusal: BuildRejected | None = None
    # Members that are deleted: their cell has them leave the group.
    deleted: tuple[InstanceId, ...] = ()

    @property
    def leaving(self) -> set[ConsumerId]:
        """The members of a group that are not left behind."""
        orders = self.orders if self.is_whole else self.orders[:1]
        return {*self.deleted, *(each.instance for each in orders)}

    @property
    def together(self) -> tuple[InstanceId, ...]:
        """The instances that move together, in the order of their ids; empty if it is one alone."""
        if not self.is_whole:
            return ()
        return tuple(sorted(each.instance for each in self.orders))


async def units_of(
    orders: Sequence[MoveInstance],
    store: SchedulerStore,
    picture: Picture,
    as_seen: Callable[[InstanceRow], InstanceRow],
) -> tuple[list[Unit], Rows]:
    """What each order asks for, and the rows of all instances that it names or means, each as `as_seen` makes it."""
    ids = [id_ for order in orders for id_ in (order.instance, *order.together)]
    rows = {id_: as_seen(row) for id_, row in (await _rows_of(store, ids)).items()}
    members = [
        _members_beside(rows.get(order.instance), picture) if order.with_group else [] for order in orders
    ]
    new = [id_ for of_order in members for id_ in of_order if id_ not in rows]
    rows |= {id_: as_seen(row) for id_, row in (await _rows_of(store, new)).items()}
    return [_unit(order, rows, beside) for order, beside in zip(orders, members, strict=True)], rows


async def _rows_of(store: SchedulerStore, ids: Sequence[InstanceId]) -> dict[InstanceId, InstanceRow]:
    wanted = tuple(dict.fromkeys(ids))
    if not wanted:
        return {}
    found = await store.instances(InstanceQuery(instances=wanted, limit=len(wanted)))
    return {row.id: row for row in found}


def _unit(order: MoveInstance, rows: Rows, members: Sequence[InstanceId]) -> Unit:
    alone = structs.replace(order, together=(), with_group=False)
    row = rows.get(order.instance)
    if not order.together and not order.with_group:
        return Unit((order,))
    if row is not None and is_taken(row, order):
        move = row.told.move
        known = move.together if move is not None and move.request_id == order.request_id else ()
        return _whole(alone, known)
    there = [
        each
        for id_ in members
        if (each := rows.get(id_)) is not None
        and row is not None
        and (each.told.host, each.told.cell) == (row.told.host, row.told.cell)
        and is_of(each, order.project)
    ]
    deleted = tuple([each.id for each in there if each.told.state in (DELETING, DELETED)])
    there = [each for each in there if each.id not in deleted]
    group = group_of(row)
    if order.together or (group is not None and group.policy == "affinity" and there):
        unit = _whole(alone, (*order.together, *(each.id for each in there)))
        return structs.replace(unit, refusal=_refusal(order, unit), deleted=deleted)
    others = [structs.replace(alone, instance=each.id) for each in there]
    able = [each for each in others if problem_with(rows[each.instance], each) is None]
    return Unit((alone, *able), deleted=deleted)


def _whole(alone: MoveInstance, others: Sequence[InstanceId]) -> Unit:
    ids = dict.fromkeys((alone.instance, *others))
    return Unit(tuple(structs.replace(alone, instance=id_) for id_ in ids), is_whole=len(ids) > 1)


def _refusal(order: MoveInstance, unit: Unit) -> BuildRejected | None:
    count = len(unit.orders)
    if not unit.is_whole:
        return None
    if order.kind not in TOGETHER_KINDS:
        reason = (
            f"{count} instances move together only by {' or '.join(TOGETHER_KINDS)}: of those all come back if the "
            f"destination fails for one, and by {order.kind} one that has arrived cannot"
        )
        return refused(order, "kind", order.kind, reason)
    if count > TOGETHER_MAX:
        return refused(order, "together", count, f"at most {TOGETHER_MAX} instances move together")
    if order.confirm_s:
        reason = "instances that move together are confirmed when all have arrived: give 0, or leave it out"
        return refused(order, "confirm_s", order.confirm_s, reason)
    return None


def group_of(row: InstanceRow | None) -> ServerGroup | None:
    spec = None if row is None else decoded(row.current_spec)
    return None if spec is None else spec.server_group


def _members_beside(row: InstanceRow | None, picture: Picture) -> list[InstanceId]:
    """The other members of the instance's server group that are on its host, as far as the picture knows. Heirs of moves
    may be among them: these have no rows.
    """
    group = group_of(row)
    if row is None or group is None or group.policy not in ("affinity", "soft-affinity"):
        return []
    return [
        InstanceId(each.consumer)
        for each in sorted(picture.groups.of_group(group.id), key=lambda each: each.consumer)
        if each.consumer != row.id
    ]


def why_others_stay(
    order: MoveInstance, group: ServerGroup, stay: Sequence[InstanceId], host: str
) -> BuildRejected:
    """The refusal of an order that would take a member away from the others of its affinity group."""
    ids = " ".join(str(each) for each in sorted(stay)[:10])
    reason = (
        f"server group {group.id} (affinity) keeps its members on one host, and {len(stay)} would stay on {host}: {ids}. "
        f"Move all of them by one order: name the others in `together`, or set `with_group` (`moor {order.kind} --group`)"
    )
    return refused(order, "together", "", reason)
