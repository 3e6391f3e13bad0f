"""An order to move an instance, as the row of the instance keeps it while it waits for room."""

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import structs

from bus.messages.build import InstanceState, MoveKind
from bus.messages.moves import MoveInstance
from scheduler_worker.core.instances.rows import KeptRequest
from scheduler_worker.core.instances.specs import encoded
from scheduler_worker.requests.companions import Unit
from scheduler_worker.requests.move_needs import MoveNeeds, NeedsFound
from scheduler_worker.waiting import MoveSource

_encoded = msgspec.msgpack.Encoder().encode


def kept_order(
    unit: Unit, asked: MoveInstance, needs: Sequence[NeedsFound], order: MoveInstance
) -> KeptRequest:
    """The order for one instance of a unit, as its row keeps it. Orders with one digest need the same hosts: those of instances
    that move together have one of their own, since one try counts for all of them.
    """
    if unit.is_whole:
        others = tuple(each for each in unit.together if each != order.instance)
        order = structs.replace(order, together=others, with_group=asked.with_group)
    same = [order.kind, order.request_id.hex if unit.is_whole else ""]
    # Of an order for several members of a soft group, each instance waits by itself.
    mine = needs if unit.is_whole else [needs[unit.orders.index(order)]]
    for each in mine:
        if isinstance(each, MoveNeeds):
            source = source_of(each.row.told, each, order.kind)
            same += [encoded(each.spec).hex(), source.cell, source.host, str(source.may_stay)]
    return KeptRequest(hashlib.sha256("\n".join(same).encode()).digest(), _encoded(order))


def source_of(told: InstanceState, needs: MoveNeeds, kind: MoveKind) -> MoveSource:
    return MoveSource(told.cell, told.host, kind == "evacuate", needs.leaving is not None)
