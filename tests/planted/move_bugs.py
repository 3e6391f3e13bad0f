"""Planted bugs in moves and rebuilds: what is held, what hosts are told, and in which order."""

from contextlib import AbstractContextManager
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
from tests.planted.replacing import replaced, replaced_in


def heir_holds_all() -> AbstractContextManager[None]:
    """A migration holds the whole share of the source, also what the destination needs of the same provider."""
    return replaced(swaps, "_inherited", lambda _real: lambda _order, own, _wanted: own)


def heir_forgotten() -> AbstractContextManager[None]:
    """A confirmed move orders the source to clean up, and releases nothing for it."""

    def planted(real: Any) -> Any:
        def confirm(transition: Any) -> None:
            real(transition)
            cleanups = [structs.replace(each, release=()) for each in transition.row.cleanups]
            transition.change(cleanups=tuple(cleanups))

        return confirm

    return replaced_in((moving, move_steps, move_answers), "confirm", planted)


def silent_destination_released() -> AbstractContextManager[None]:
    """A move comes back from a destination that does not answer, as from one that has destroyed the instance."""

    def planted(real: Any) -> Any:
        return lambda transition, outcome, reason, **_: real(transition, outcome, reason, was_silent=False)

    return replaced(move_answers, "return_claim", planted)


def attempt_of_host_forgotten() -> AbstractContextManager[None]:
    """After a move that came back, the first host is asked about the attempt of the way back, which it has never heard of."""

    def planted(real: Any) -> Any:
        def on_claimed_back(transition: Any, attempt: int) -> None:
            real(transition, attempt)
            transition.change(kept_attempt=0)

        return on_claimed_back

    return replaced(move_answers, "_on_claimed_back", planted)


def new_flavor_forgotten() -> AbstractContextManager[None]:
    """After a confirmed resize the cell still has the flavor of before."""

    def planted(real: Any) -> Any:
        def confirm(transition: Any) -> None:
            before = transition.row.flavor
            real(transition)
            transition.change(flavor=before)

        return confirm

    return replaced_in((moving, move_steps, move_answers), "confirm", planted)


def evacuated_host_released_at_once() -> AbstractContextManager[None]:
    """The rest of an evacuated host's share is released as soon as the instance runs elsewhere."""

    def planted(real: Any) -> Any:
        def confirm(transition: Any) -> None:
            real(transition)
            if transition.row.move.kind == "evacuate":
                transition.release(claim for each in transition.row.cleanups for claim in each.release)
                cleanups = [structs.replace(each, release=()) for each in transition.row.cleanups]
                transition.change(cleanups=tuple(cleanups))

        return confirm

    return replaced_in((moving, move_steps, move_answers), "confirm", planted)


def source_that_is_up_evacuated() -> AbstractContextManager[None]:
    """An instance is evacuated although its host is up."""

    def planted(real: Any) -> Any:
        def problem_with_source(self: Any, order: Any, told: Any) -> str:
            return "" if order.kind == "evacuate" else str(real(self, order, told))

        return problem_with_source

    return replaced(MoveNeedsFinder, "_problem_with_source", planted)


def broken_instance_released() -> AbstractContextManager[None]:
    """An instance that is reported in error is released, though its host has it."""

    def planted(real: Any) -> Any:
        def end_broken(transition: Any, reason: str) -> None:
            real(transition, reason)
            transition.release((HeldClaim(transition.row.id, transition.row.attempt),))

        return end_broken

    return replaced(Transition, "end_broken", planted)


def late_word_of_the_source_believed() -> AbstractContextManager[None]:
    """The source is believed when it says late that it has stopped the instance, though the move goes back by then."""

    def planted(real: Any) -> Any:
        def on_stopped(transition: Any, word: Any) -> None:
            moving = transition.row.moving
            if moving is not None:
                transition.change(state="moving", moving=structs.replace(moving, step="stopping"))
            real(transition, word)

        return on_stopped

    return replaced(decide, "on_stopped", planted)


def destination_left_as_it_is() -> AbstractContextManager[None]:
    """A move comes back without an order to its destination."""

    def planted(_real: Any) -> Any:
        def leave(transition: Any, outcome: Any, reason: str) -> None:
            move_steps.return_claim(transition, outcome, reason, was_silent=False)

        return leave

    return replaced(moving, "leave", planted)


def source_released_early() -> AbstractContextManager[None]:
    """When an instance is deleted while it moves, the rest of the source is released at once."""

    def planted(real: Any) -> Any:
        def free_both_hosts(transition: Any) -> None:
            real(transition)
            *others, last = transition.row.cleanups
            own = tuple(claim for claim in last.release if claim.consumer == transition.row.id)
            transition.release(claim for claim in last.release if claim not in own)
            transition.change(cleanups=(*others, structs.replace(last, release=own)))

        return free_both_hosts

    return replaced(decide, "free_both_hosts", planted)


def migration_not_returned() -> AbstractContextManager[None]:
    """The way back is claimed as any other share, and the migration keeps what it holds."""

    def planted(real: Any) -> Any:
        return lambda transition: structs.replace(real(transition), returns=None)

    return replaced(move_answers, "next_move_swap", planted)


def received_while_it_runs() -> AbstractContextManager[None]:
    """A cold move does not wait until the source has stopped the instance."""
    return replaced(move_answers, "STOPPED_MEANWHILE", lambda _real: ())


def evacuated_with_first_image() -> AbstractContextManager[None]:
    """An evacuation builds with the image of the boot, whatever the instance was rebuilt with since."""

    def planted(real: Any) -> Any:
        return lambda row, order, host: real(structs.replace(row, image=None), order, host)

    return replaced(move_steps, "spawn_order", planted)


def earlier_rebuild_obeyed() -> AbstractContextManager[None]:
    """A host obeys an order to rebuild whenever it comes, even after a later one."""

    def planted(real: Any) -> Any:
        return lambda known, order: not isinstance(order, RespawnInstance) and real(known, order)

    return replaced(attempts, "_is_late", planted)


def offloaded_early() -> AbstractContextManager[None]:
    """The claim of an instance that is offloaded is released before its host has destroyed it."""

    def planted(real: Any) -> Any:
        def free(transition: Any, saved: str) -> None:
            real(transition, saved)
            *others, last = transition.row.cleanups
            transition.release(last.release)
            transition.change(cleanups=(*others, structs.replace(last, release=())))
            move_steps.end_freed(transition)

        return free

    return replaced(move_answers, "free", planted)


def unshelved_without_claim() -> AbstractContextManager[None]:
    """An offloaded instance is built on the first host that was chosen for it, and placement is not asked."""

    def planted(real: Any) -> Any:
        def unshelve(transition: Any, order: Any) -> None:
            real(transition, order)
            row = transition.row
            if row.is_unshelving and row.host is None:
                transition.change(attempt=row.attempt + 1, host=order.choices[0])
                transition.spawn()

        return unshelve

    return replaced(moving, "unshelve", planted)


def memory_of_resize_dropped() -> AbstractContextManager[None]:
    """The share of a resize has no memory, though its flavor asks for some."""

    def planted(real: Any) -> Any:
        def needs(self: Any, order: Any, *others: Any) -> Any:
            wanted = real(self, order, *others)
            if order.kind != "resize" or isinstance(wanted, BuildRejected):
                return wanted
            amounts = tuple(each for each in wanted.spec.amounts if each[0] != "MEMORY_MB")
            return structs.replace(wanted, spec=structs.replace(wanted.spec, amounts=amounts))

        return needs

    return replaced(MoveNeedsFinder, "_needs", planted)


def confirmed_size_not_kept() -> AbstractContextManager[None]:
    """After a confirmed resize the row at API level still asks for the size of before."""
    return replaced(lifecycle, "resized_spec_after", lambda _real: lambda row, _said: row.resized_spec)
