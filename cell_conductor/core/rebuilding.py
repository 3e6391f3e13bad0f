"""Orders about an instance where it is: to rebuild it from another image, and to take it over from another cloud."""

from msgspec import structs

from bus.messages.cell import (
    AdoptDeployed,
    AdoptGuest,
    AdoptInCell,
    InstanceRedeployed,
    RebuildInCell,
    SpawnFailed,
)
from cell_conductor.core.rows import ADOPTS, MOVES, REBUILDS, Adopt, HeldClaim, Instance, flavor_of
from cell_conductor.core.transition import Transition, rebuild_order
from engine.hosts import NODE

# Rebuilds: an instance gets another image on its host. Attempt, host and share stay.
#
#     active, broken ──▶ rebuilding ──▶ active   done; or it failed, and the old instance still runs
#                                  └──▶ broken   it failed, and nothing runs there; or its host is silent or lost
#
# Rebuilds of an instance are numbered. The API level orders the next one only when it knows the result of the last one.
# So a later number counts, and messages about an earlier rebuild change nothing. If no answer comes, the rebuild is given
# up, but its host is asked again and again. It may still be done, or turn out never to have begun: then the instance is
# active after all. This asking ends with the next order to rebuild or to move the instance. A delete ends a rebuild at
# any time.


def on_rebuild(transition: Transition, order: RebuildInCell) -> None:
    row, rebuild = transition.row, order.rebuild
    if row.state not in ("active", "rebuilding", "broken"):
        return
    if row.rebuild is not None and rebuild.number <= row.rebuild.number:
        return
    was_active = row.state == "active"
    transition.withdraw(REBUILDS, attempt=row.host_attempt)
    transition.continue_from(rebuild.number)
    transition.change(rebuild=rebuild, reason="")
    if why := transition.why_not_begun(rebuild.ends_by):
        _end_failed(transition, why, is_active=was_active)
        if row.moving is not None:
            # The host is still asked to run it again.
            transition.change(state_ends_at=row.state_ends_at)
    elif row.is_stranded:
        _end_failed(transition, "placement refuses its way back from a move", is_active=False)
        transition.change(state_ends_at=transition.now)
    elif was_active and (why := transition.hosts.why_lost(transition.host)):
        _end_failed(transition, why, is_active=True)
    else:
        # A move that left it broken waits no more for the instance to run again.
        transition.withdraw(MOVES, attempt=row.host_attempt)
        transition.change(state="rebuilding", moving=None)
        _send_order(transition)
        transition.wait_longer(rebuild.ends_by)


def _send_order(transition: Transition) -> None:
    transition.send(rebuild_order(transition.row, transition.order, transition.host, transition.rebuild))


def on_redeployed(transition: Transition, word: InstanceRedeployed) -> None:
    row = transition.row
    is_known = row.host_attempt == word.attempt and row.host is not None and row.host.share.host == word.host
    if not is_known or row.moving is not None or row.rebuild is None or row.rebuild.number != word.number:
        return
    is_asked = row.state == "rebuilding" or (row.state == "broken" and row.state_ends_at is not None)
    if not is_asked and not (row.state == "broken" and word.is_active):
        return
    if word.failure:
        _end_failed(transition, word.failure, is_active=word.is_active)
    else:
        transition.withdraw(REBUILDS, attempt=row.host_attempt)
        done = structs.replace(row.rebuild, failure="")
        transition.change(rebuild=done, image=done.image, image_properties=done.image_properties, reason="")
        transition.end_as("active")


def on_rebuild_time_up(transition: Transition) -> None:
    if transition.row.state == "broken":
        transition.withdraw(REBUILDS, attempt=transition.row.host_attempt)
        _send_order(transition)
        transition.change(state_ends_at=transition.now + transition.rules.remind_every)
    elif transition.now >= transition.rebuild.ends_by:
        leave_rebuild(transition, "not rebuilt by its deadline")
    else:
        leave_rebuild(transition, transition.why_silent())


def leave_rebuild(transition: Transition, reason: str) -> None:
    """Give up a rebuild of which nobody knows how it has ended. The host is asked again and again until it says so."""
    _end_failed(transition, reason, is_active=False)
    transition.change(state_ends_at=transition.now + transition.rules.remind_every)


def _end_failed(transition: Transition, failure: str, *, is_active: bool) -> None:
    transition.withdraw(REBUILDS, attempt=transition.row.host_attempt)
    transition.change(rebuild=structs.replace(transition.rebuild, failure=failure), reason="")
    if is_active:
        transition.end_as("active")
    else:
        transition.end_broken(f"its rebuild failed: {failure}")


# Decides what happens when an instance of another cloud is taken over.
#
# Its host has the guest already, so the row begins in the state that the instance has. Nothing waits for the host's answer, and
# nothing is destroyed if it does not come: a silent host may run the guest all the same.


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


def _guest_order(transition: Transition, order: AdoptInCell) -> Adopt:
    row = transition.row
    if order.chosen.kind == NODE:
        return AdoptDeployed(
            cell=order.cell, instance=row.id, attempt=order.attempt, host=order.chosen.share.host
        )
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
