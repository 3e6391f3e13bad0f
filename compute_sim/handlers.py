"""Handles orders to hosts: load, decide, save, send. The rules are in core/attempts.py.

A spawn order is acknowledged when it is saved, not when the instance is built. Unacknowledged, it would fill the
prefetch for minutes, could not be delivered to another process (its host is here), and would hold back the other
messages of its parcel. With the store in memory, builds are lost with this process, as on a hypervisor that loses
power. The conductor's attempt then times out and it treats the host as silent. It may order the same attempt again
before that, which does no harm.
"""

from collections.abc import Sequence

from bus.messages.cell import DestroyInstance, SpawnInstance
from bus.workers.handling import Bury, Handlers, Received, Said, Tell
from compute_sim.core.attempts import (
    AttemptKey,
    AttemptRecord,
    Dead,
    destroyed,
    due,
    key_of,
    spawned_again,
    spawning,
)
from compute_sim.drivers import Driver
from compute_sim.fleet import Fleet
from compute_sim.store import ComputeTransaction

HostOrder = SpawnInstance | DestroyInstance


def handlers(fleet: Fleet) -> Handlers:
    async def on_orders(orders: Sequence[Received[HostOrder]], tx: ComputeTransaction) -> list[Said]:
        at_s = fleet.clock_s()
        keys = [key_of(order.message) for order in orders]
        attempts = dict(await tx.load(keys))
        said: list[Said] = []
        touched: dict[AttemptKey, None] = {}
        for item, key in zip(orders, keys, strict=True):
            order = item.message
            driver = fleet.get(order.host)
            if driver is None:
                said.append(Bury(item, f"host is {order.host}, which cell {order.cell!r} does not have here"))
                continue
            condition = driver.condition(at_s)
            if isinstance(condition, Dead):
                continue
            after = _ordered(attempts.get(key), item, driver, at_s)
            if after.due_s is not None and after.due_s <= at_s:
                after, answer = due(after, condition, driver.look_at(after, at_s), at_s)
                if answer is not None:
                    said.append(Tell(answer, item))
            attempts[key] = after
            touched[key] = None
        await tx.save([attempts[key] for key in touched])
        return said

    return {SpawnInstance: on_orders, DestroyInstance: on_orders}


def _ordered(
    known: AttemptRecord | None, item: Received[HostOrder], driver: Driver, at_s: float
) -> AttemptRecord:
    order = item.message
    if isinstance(order, DestroyInstance):
        return destroyed(order, driver.destroy(order, at_s), at_s, cause=item.id, trace=item.trace)
    if known is None:
        return spawning(order, driver.spawn(order, at_s), at_s, cause=item.id, trace=item.trace)
    return spawned_again(known, at_s, cause=item.id, trace=item.trace)
