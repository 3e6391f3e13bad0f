"""Orders to hosts: load, decide, save, say. The rules live in core/attempts.py.

A spawn is acknowledged when it is written down, not when it is built. Kept unacknowledged it would fill the prefetch for
minutes, be delivered to nobody else (its host is here), and take a parcel's neighbours with it. Where it is written down
in memory, what is being built is lost with this process, as it is with a hypervisor that loses power; its conductor,
whose attempt has a deadline, treats the host as silent, and may order the same attempt again before that, which does no
harm.
"""

from collections.abc import Sequence

from bus.handling import Bury, Handlers, Received, Said, Tell
from bus.messages.cell import DestroyInstance, SpawnInstance
from compute_sim.core.attempts import Attempted, AttemptKey, destroyed, due, key_of, spawned
from compute_sim.core.faults import Dead
from compute_sim.fleet import Fleet, PretendedHost
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
            host = fleet.get(order.host)
            if host is None:
                said.append(Bury(item, f"host: cell {order.cell!r} has no host {order.host} here"))
                continue
            condition = host.condition(at_s)
            if isinstance(condition, Dead):
                continue
            after = _ordered(attempts.get(key), item, host, at_s)
            if after.due_s is not None and after.due_s <= at_s:
                after, answer = due(after, condition)
                if answer is not None:
                    said.append(Tell(answer, item))
            attempts[key] = after
            touched[key] = None
        await tx.save([attempts[key] for key in touched])
        return said

    return {SpawnInstance: on_orders, DestroyInstance: on_orders}


def _ordered(
    known: Attempted | None, item: Received[HostOrder], host: PretendedHost, at_s: float
) -> Attempted:
    order = item.message
    if isinstance(order, DestroyInstance):
        return destroyed(order, at_s, cause=item.id, trace=item.trace)
    return spawned(known, order, host.fate(order, at_s), at_s, cause=item.id, trace=item.trace)
