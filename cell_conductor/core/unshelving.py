"""An offloaded instance runs again, on any host. It is built like a new one (swapping.py), from its image.

    offloaded ──▶ swapping ◀──▶ building ──▶ active      done
                      └────────────┴──▶ offloaded        no host took it in time, or the move was aborted

An offloaded instance holds nothing. So the first host is claimed, and each further one is asked for by a swap. Each claim
has an attempt that no earlier one had: placement has ended the last attempt, and refuses late copies of questions for it.

If the instance is offloaded again while a silent host may have it, its last attempt holds the share until that host has
cleaned up. The next move that unshelves it then begins with a swap, as if there had always been another alternate.
"""

from msgspec import structs

from bus.messages.build import InstanceId
from bus.messages.cell import MoveInCell
from cell_conductor.core.instance import Cleanup, HeldClaim
from cell_conductor.core.transition import Transition


def unshelve(transition: Transition, order: MoveInCell) -> None:
    row = transition.row
    if transition.now >= order.move.ends_by or not order.choices:
        why = (
            "there is no host for it"
            if not order.choices
            else "the order reached its cell after the deadline"
        )
        end_unshelve(transition, "failed", why)
        return
    cleanups = row.cleanups
    if row.keeps_share:
        heir = transition.name_heir()
        cleanups = tuple(_hand_over(each, row.id, heir) for each in cleanups)
    transition.change(
        cleanups=cleanups,
        state="swapping",
        alternates=order.choices,
        was_silent=row.keeps_share,
        tries=0,
        state_ends_at=transition.now,
    )


def _hand_over(cleanup: Cleanup, instance: InstanceId, heir: HeldClaim) -> Cleanup:
    """Change the cleanup of a host: at its end the claim of the heir is released, and not that of the instance.

    The heir holds what the instance held on that host, so that the instance can hold a share elsewhere.
    """
    release = [heir if held.consumer == instance else held for held in cleanup.release]
    return structs.replace(cleanup, release=tuple(dict.fromkeys(release)))


def note_unshelved(transition: Transition) -> None:
    """Note that the move which unshelves the instance is done: its host has built it."""
    done = structs.replace(transition.move, outcome="done", destination=transition.host.name)
    # Its last attempt but one is over everywhere, so the order to destroy that removes the image alone.
    transition.forget_saved(transition.row.attempt - 1)
    transition.change(move=done, saved="")


def end_unbuilt(transition: Transition, reason: str) -> None:
    """End a build that no host could do: the instance ends in error, or stays offloaded if it was unshelved."""
    if transition.row.saved:
        end_unshelve(transition, "failed", reason)
    else:
        transition.end_in_error(reason)


def abort_unshelve(transition: Transition) -> None:
    transition.free_share()
    end_unshelve(transition, "aborted", "")


def end_unshelve(transition: Transition, outcome: str, reason: str) -> None:
    row = transition.row
    transition.change(move=structs.replace(transition.move, outcome=outcome, failure=reason))
    if not row.keeps_share:
        transition.hold_nothing(row.last_attempt)
    transition.end_offloaded()
