"""Decides what happens when an instance of another cloud is taken over.

Its host has the guest already, so the row begins in the state that the instance has. Nothing waits for the host's answer, and
nothing is destroyed if it does not come: a silent host may run the guest all the same.
"""

from bus.messages.cell import AdoptGuest, AdoptInCell, SpawnFailed
from cell_conductor.core.instance import ADOPTS, HeldClaim, Instance, flavor_of
from cell_conductor.core.transition import Transition


def on_adopt(transition: Transition, order: AdoptInCell) -> None:
    row = transition.row
    if row.order is not None:
        if row.state != "deleted" or row.cleanups or order.attempt <= row.attempt:
            return
        # It was given back before, and comes again.
        transition.row = row = Instance(
            id=row.id,
            request_id=row.request_id,
            state="unknown",
            changed_at=transition.now,
            sequence=row.sequence,
            outbox=row.outbox,
        )
    transition.change(
        sequence=max(row.sequence, order.sequence), order=order, attempt=order.attempt, host=order.chosen
    )
    transition.send(_guest_order(transition, order))
    if row.state in ("deleting", "deleted"):
        # The delete overtook the order: the host adopts the guest, and then destroys or leaves it.
        transition.clean_up(HeldClaim(row.id, order.attempt))
    else:
        transition.end_as(order.state, reason=order.reason)


def on_adoption_failed(transition: Transition, failed: SpawnFailed) -> None:
    """The host has no such guest. If that was a mistake, the instance is still there: its share stays."""
    row, order = transition.row, transition.row.order
    if not isinstance(order, AdoptInCell) or failed.attempt != order.attempt:
        return
    transition.withdraw(ADOPTS, attempt=failed.attempt)
    if row.state in ("active", "stopped", "shelved"):
        transition.end_broken(failed.reason)


def _guest_order(transition: Transition, order: AdoptInCell) -> AdoptGuest:
    row = transition.row
    return AdoptGuest(
        cell=order.cell,
        instance=row.id,
        attempt=order.attempt,
        host=order.chosen.share.host,
        flavor=flavor_of(row, order),
        share=order.chosen.share,
        name=order.name,
        stopped=order.state != "active",
    )
