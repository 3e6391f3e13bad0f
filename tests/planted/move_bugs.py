"""Planted bugs in moves and rebuilds: what is held, what hosts are told, and in which order."""

from typing import Any

from msgspec import structs

from bus.messages.build import BuildRejected
from bus.messages.cell import RespawnInstance
from cell_conductor.core import decide, move_answers, moving
from cell_conductor.core import moving as move_steps
from cell_conductor.core.rows import HeldClaim
from cell_conductor.core.transition import Transition
from compute_sim.core import attempts
from placement_worker.core import swaps
from scheduler_worker.core.instances import lifecycle
from scheduler_worker.requests.move_needs import MoveNeedsFinder
from tests.planted.replacing import planted, planted_by

# A migration holds the whole share of the source, also what the destination needs of the same provider.
planted_by("a migration holds the whole share", swaps, "_inherited", world="moves")(
    lambda _real: lambda _order, own, _wanted: own
)


# A confirmed move orders the source to clean up, and releases nothing for it.
@planted(
    "a confirmed move forgets its migration", (moving, move_steps, move_answers), "confirm", world="moves"
)
def heir_forgotten(real: Any, transition: Any) -> None:
    real(transition)
    cleanups = [structs.replace(each, release=()) for each in transition.row.cleanups]
    transition.change(cleanups=tuple(cleanups))


# A move comes back from a destination that does not answer, as from one that has destroyed the instance.
@planted_by("a silent destination gives its share back", move_answers, "return_claim", world="moves")
def silent_destination_released(real: Any) -> Any:
    return lambda transition, outcome, reason, **_: real(transition, outcome, reason, was_silent=False)


# After a move that came back, the first host is asked about the attempt of the way back, which it has never heard of.
@planted("a return forgets the attempt of its host", move_answers, "_on_claimed_back", world="moves")
def attempt_of_host_forgotten(real: Any, transition: Any, attempt: int) -> None:
    real(transition, attempt)
    transition.change(kept_attempt=0)


# After a confirmed resize the cell still has the flavor of before.
@planted("the flavor of a resize forgotten", (moving, move_steps, move_answers), "confirm", world="moves")
def new_flavor_forgotten(real: Any, transition: Any) -> None:
    before = transition.row.flavor
    real(transition)
    transition.change(flavor=before)


# The rest of an evacuated host's share is released as soon as the instance runs elsewhere.
@planted("an evacuated host released at once", (moving, move_steps, move_answers), "confirm", world="moves")
def evacuated_host_released_at_once(real: Any, transition: Any) -> None:
    real(transition)
    if transition.row.move.kind == "evacuate":
        transition.release(claim for each in transition.row.cleanups for claim in each.release)
        cleanups = [structs.replace(each, release=()) for each in transition.row.cleanups]
        transition.change(cleanups=tuple(cleanups))


# An instance is evacuated although its host is up.
@planted(
    "an evacuation goes on although its source is up again",
    MoveNeedsFinder,
    "_problem_with_source",
    world="moves that wait",
)
def source_that_is_up_evacuated(real: Any, self: Any, order: Any, told: Any) -> str:
    return "" if order.kind == "evacuate" else str(real(self, order, told))


# An instance that is reported in error is released, though its host has it.
@planted("an instance in error released though its host has it", Transition, "end_broken", world="moves")
def broken_instance_released(real: Any, transition: Any, reason: str) -> None:
    real(transition, reason)
    transition.release((HeldClaim(transition.row.id, transition.row.attempt),))


# The source is believed when it says late that it has stopped the instance, though the move goes back by then.
@planted("a late word of the source believed", decide, "on_stopped", world="moves")
def late_word_of_the_source_believed(real: Any, transition: Any, word: Any) -> None:
    moving = transition.row.moving
    if moving is not None:
        transition.change(state="moving", moving=structs.replace(moving, step="stopping"))
    real(transition, word)


# A move comes back without an order to its destination.
@planted("a move comes back and leaves its destination as it is", moving, "leave", world="moves")
def destination_left_as_it_is(_real: Any, transition: Any, outcome: Any, reason: str) -> None:
    move_steps.return_claim(transition, outcome, reason, was_silent=False)


# When an instance is deleted while it moves, the rest of the source is released at once.
@planted("a delete while it moves releases the source early", decide, "free_both_hosts", world="moves")
def source_released_early(real: Any, transition: Any) -> None:
    real(transition)
    *others, last = transition.row.cleanups
    own = tuple(claim for claim in last.release if claim.consumer == transition.row.id)
    transition.release(claim for claim in last.release if claim not in own)
    transition.change(cleanups=(*others, structs.replace(last, release=own)))


# The way back is claimed as any other share, and the migration keeps what it holds.
@planted_by("a way back without its migration", move_answers, "next_move_swap", world="moves")
def migration_not_returned(real: Any) -> Any:
    return lambda transition: structs.replace(real(transition), returns=None)


# A cold move does not wait until the source has stopped the instance.
planted_by("received while the source runs it", move_answers, "STOPPED_MEANWHILE", world="moves")(
    lambda _real: ()
)


# An evacuation builds with the image of the boot, whatever the instance was rebuilt with since.
@planted_by("an evacuation builds with the first image", move_steps, "spawn_order", world="moves")
def evacuated_with_first_image(real: Any) -> Any:
    return lambda row, order, host: real(structs.replace(row, image=None), order, host)


# A host obeys an order to rebuild whenever it comes, even after a later one.
@planted_by("an earlier rebuild is obeyed after a later one", attempts, "_is_late", world="moves")
def earlier_rebuild_obeyed(real: Any) -> Any:
    return lambda known, order: not isinstance(order, RespawnInstance) and real(known, order)


# The claim of an instance that is offloaded is released before its host has destroyed it.
@planted("an offloaded instance released before it is destroyed", move_answers, "free", world="moves")
def offloaded_early(real: Any, transition: Any, saved: str) -> None:
    real(transition, saved)
    *others, last = transition.row.cleanups
    transition.release(last.release)
    transition.change(cleanups=(*others, structs.replace(last, release=())))
    move_steps.end_freed(transition)


# An offloaded instance is built on the first host that was chosen for it, and placement is not asked.
@planted("unshelved without a claim", moving, "unshelve", world="moves")
def unshelved_without_claim(real: Any, transition: Any, order: Any) -> None:
    real(transition, order)
    row = transition.row
    if row.is_unshelving and row.host is None:
        transition.change(attempt=row.attempt + 1, host=order.choices[0])
        transition.spawn()


# The share of a resize has no memory, though its flavor asks for some.
@planted("a resize drops memory", MoveNeedsFinder, "_needs", world="moves")
def memory_of_resize_dropped(real: Any, self: Any, order: Any, *others: Any) -> Any:
    wanted = real(self, order, *others)
    if order.kind != "resize" or isinstance(wanted, BuildRejected):
        return wanted
    amounts = tuple(each for each in wanted.spec.amounts if each[0] != "MEMORY_MB")
    return structs.replace(wanted, spec=structs.replace(wanted.spec, amounts=amounts))


# After a confirmed resize the row at API level still asks for the size of before.
planted_by(
    "a row keeps the size of before a confirmed resize", lifecycle, "resized_spec_after", world="moves"
)(lambda _real: lambda row, _said: row.resized_spec)
