"""Handles the orders of conductors to hosts, and an audit's questions about the instances on them.

The attempts of a batch of orders are loaded, decided and saved together. The rules are in core/attempts.py.

An order is acknowledged when it is saved, not when the instance is built, received or stopped. Unacknowledged, it would fill
the prefetch for minutes, could not be delivered to another process (its host is here), and would hold back the other
messages of its parcel. With the store in memory, instances are lost with this process, as on a hypervisor that loses
power. The conductor's attempt then times out and it treats the host as silent. It may order the same attempt again
before that, which does no harm.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bus.messages.books import AskHostBooks, BrokenGuest, HostBooksFound, HostEntry
from bus.messages.cell import (
    AdoptGuest,
    DestroyInstance,
    LeaveGuest,
    ReceiveInstance,
    RespawnInstance,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from bus.messages.host_modes import CheckHost, HostsNotHere
from bus.workers.handling import Handler, Handlers, Received, Said, Tell, answering
from compute_sim.core.attempts import (
    WELL,
    AttemptKey,
    AttemptRecord,
    BuildOrder,
    Dead,
    HostOrder,
    answered_again,
    answered_later,
    begun,
    due,
    failed,
    key_of,
    next_step,
    refusal_of,
    source_key_of,
    waiting,
    why_not_received,
)
from compute_sim.core.holding import holdings
from compute_sim.drivers import Driver
from compute_sim.fleet import BuildSlots, Fleet
from compute_sim.store import ComputeStore, ComputeTransaction

if TYPE_CHECKING:
    from bus.message import ProviderId

log = logging.getLogger(__name__)

NotHere = Callable[[Sequence[Received[HostOrder] | Received[CheckHost]]], list[Said]]
ORDERS = (
    *(SpawnInstance, ReceiveInstance, AdoptGuest, StopInstance, StartInstance, RespawnInstance),
    *(DestroyInstance, LeaveGuest),
)


def handlers(fleet: Fleet, builds_at_once_max: int = 0) -> Handlers:
    async def on_orders(orders: Sequence[Received[HostOrder]], tx: ComputeTransaction) -> list[Said]:
        at_s = fleet.clock_s()
        keys = [key_of(order.message) for order in orders]
        sources = [
            source_key_of(each.message) for each in orders if isinstance(each.message, ReceiveInstance)
        ]
        attempts = dict(await tx.load([*keys, *sources]))
        said: list[Said] = []
        missing: list[Received[HostOrder]] = []
        touched: dict[AttemptKey, None] = {}
        slots = BuildSlots(tx, fleet, builds_at_once_max)
        for item, key in zip(orders, keys, strict=True):
            order = item.message
            driver = fleet.get(order.host)
            if driver is None:
                missing.append(item)
                continue
            condition = driver.condition(at_s)
            if isinstance(condition, Dead):
                continue
            before = attempts.get(key)
            after = _ordered(attempts, item, driver, slots, at_s)
            if after is None:
                # Nothing is saved about it: a host that cannot send now does not answer later, either.
                if condition == WELL and isinstance(order, StopInstance | StartInstance | RespawnInstance):
                    said.append(Tell(refusal_of(before, order), item))
                continue
            if after.due_s is not None and after.due_s <= at_s:
                after, answer = due(after, condition, driver.look_at(after, at_s), at_s)
                if answer is not None:
                    said.append(Tell(answer, item))
            slots.changed(before, after)
            attempts[key] = after
            touched[key] = None
        for after in list(slots.begin_waiting(attempts, at_s)):
            attempts[after.key] = after
            touched[after.key] = None
        await tx.save([attempts[key] for key in touched])
        return [*said, *not_here(missing)]

    not_here = _not_here()
    return {**dict.fromkeys(ORDERS, on_orders), CheckHost: _checks(fleet, not_here)}


def _checks(fleet: Fleet, not_here: NotHere) -> Handler:
    async def on_checks(orders: Sequence[Received[CheckHost]], tx: ComputeTransaction) -> list[Said]:
        at_s = fleet.clock_s()
        said = not_here([item for item in orders if fleet.get(item.message.host) is None])
        # A host that cannot send now lists its attempts when it can again.
        well = {*fleet.well([item.message.host for item in orders], at_s)}
        attempts = await tx.of_hosts(well)
        said += [
            Tell(holdings(item.message, attempts.get(item.message.host, ())), item)
            for item in orders
            if item.message.host in well
        ]
        return said

    return on_checks


def _not_here() -> NotHere:
    """Makes the answer to orders for hosts that this compute does not have: one for all of them, however many orders there are.

    Their conductor reminds a host of what it must destroy until it is set dead or is here again. So it is logged once for each.
    """
    known: set[ProviderId] = set()

    def answer(orders: Sequence[Received[HostOrder] | Received[CheckHost]]) -> list[Said]:
        if not orders:
            return []
        hosts = tuple(dict.fromkeys([each.message.host for each in orders]))
        if new := [each for each in hosts if each not in known]:
            known.update(new)
            log.warning(
                "there are orders for hosts that this compute does not have, which wait until it has them or they are set dead: %s",
                ", ".join(map(str, new)),
            )
        return [Tell(HostsNotHere(cell=orders[0].message.cell, hosts=hosts), orders[0])]

    return answer


def _ordered(
    attempts: Mapping[AttemptKey, AttemptRecord],
    item: Received[HostOrder],
    driver: Driver,
    slots: BuildSlots,
    at_s: float,
) -> AttemptRecord | None:
    """The attempt as this order leaves it; None if the host refuses the order.

    `attempts` has the known attempts, and those on the sources of moves.
    """
    order = item.message
    known = attempts.get(key_of(order))
    step = next_step(known, order)
    if step == "begins":
        if isinstance(order, ReceiveInstance) and (
            why := why_not_received(attempts.get(source_key_of(order)), order)
        ):
            return failed(order, why, at_s, cause=item.id, trace=item.trace)
        if isinstance(order, BuildOrder) and not slots.is_free(order.host):
            return waiting(order, cause=item.id, trace=item.trace)
        return begun(order, driver.begin(order, at_s), at_s, cause=item.id, trace=item.trace)
    if known is None or step == "refused":
        return None
    if step == "later":
        return answered_later(known, order)
    return answered_again(known, order, at_s, cause=item.id, trace=item.trace)


def books_handlers(fleet: Fleet, store: ComputeStore) -> Handlers:
    return {AskHostBooks: answering(partial(_books_found, fleet, store))}


async def _books_found(fleet: Fleet, store: ComputeStore, question: AskHostBooks) -> HostBooksFound:
    """Answer an audit: the attempts on hosts that work. A silent or dead host cannot be asked, and is left out."""
    attempts = await store.living(question.instances, question.after, question.limit)
    at_s = fleet.clock_s()
    named = {*question.hosts, *[each.host for each in attempts]}
    well = {*fleet.well([each for each in named if fleet.get(each) is not None], at_s)}
    there = [each for each in attempts if each.host in well]
    return HostBooksFound(
        entries=tuple(
            [HostEntry(instance=each.instance, host=each.host, attempt=each.attempt) for each in there]
        ),
        broken=tuple(
            [
                BrokenGuest(instance=each.instance, host=each.host, attempt=each.attempt, why=why)
                for each in there
                if (why := fleet[each.host].why_broken(each))
            ]
        ),
        asked=tuple([each for each in question.hosts if each in well]),
        next=attempts[-1].instance if len(attempts) >= question.limit else None,
    )
