"""Moves: an instance goes to another host, or comes back.

    active ──▶ moving ──▶ moved ──▶ active           confirmed, by the client or after a time
                  │         └─▶ moving ──▶ active    reverted: it runs on the first host again
                  ├──▶ active, broken                no host took it, or the move was aborted
                  ├──▶ broken                        placement refuses its way back, for a reason that does not change
                  ├──▶ stopped, shelved ──▶ moving ──▶ active
                  │                                  switched off on its host, and started again; a reboot does both
                  └──▶ offloaded ──▶ swapping, building ──▶ active
                                                     saved as an image, and built from it anywhere (unshelving.py)

    step        what the cell waits for              then
    claiming    placement moves the claim            stopping; receiving if it is not stopped; the next choice
    stopping    the source stops the instance        receiving; stopped; shelved; restarting; returning; freeing if it is saved
    freeing     the source destroys it               offloaded: it holds nothing
    receiving   the destination has the instance     moved; arrived if others move with it; returning
    arrived     the others have arrived, too         active
    leaving     the destination destroys it          returning
    returning   placement moves the claim back       claiming the next choice; restarting if it was stopped; the end
    restarting  the source runs it again             the end; broken until it does

The instance holds what the destination needs. The rest of the source's share is held by the heir of the attempt there, a
consumer of type migration, so the way back is always free. A confirmed move leaves the heir until the source has cleaned up.

A late copy of a question may be granted although placement refused it before. So a move that was refused everywhere claims its
own share again, by the refused attempt: no copy is granted after that. If one was granted before, its share comes back.

An evacuation spawns the instance at its destination: its source is down. The source gets the order to destroy what it has
only after that, and does so when it returns. A host that keeps silent about a step is given up, as in a build; only one that
is freeing its share is waited for, until it has destroyed the instance or is dead. So an instance that is offloaded is nowhere.

A stopped instance stays stopped when it moves: its destination takes it over, or builds it, without running it, and it ends its move
as stopped, wherever it is then.

Instances that move together wait for each other at the steps that ask placement, and when they have arrived (moving_together.py).
"""

from typing import assert_never

from msgspec import structs

from bus.messages.build import Move, MoveKind
from bus.messages.cell import EndMoveInCell, MoveInCell
from bus.messages.hosts import NODE
from cell_conductor.core.instance import MOVES, REBUILDS, HeldClaim, Moving, State
from cell_conductor.core.move_steps import (
    confirm,
    decide_end,
    end,
    go_on,
    leave,
    restart,
    return_claim,
    stop,
    tell_again,
    tell_end,
)
from cell_conductor.core.transition import Transition
from cell_conductor.core.unshelving import abort_unshelve, unshelve

# The states in which a move begins.
_EXISTS = ("active", "broken")
_BEGIN_IN: dict[MoveKind, tuple[str, ...]] = {
    "migrate": (*_EXISTS, "stopped"),
    "resize": (*_EXISTS, "stopped"),
    "evacuate": (*_EXISTS, "stopped", "shelved"),
    "start": ("stopped",),
    "offload": (*_EXISTS, "shelved"),
    "unshelve": ("shelved", "offloaded"),
}
STRANDED = "placement refuses its way back from an earlier move"
ON_NODE = "an instance on a bare-metal node has its disk there, and cannot move"


def on_move(transition: Transition, order: MoveInCell) -> None:
    row, move = transition.row, order.move
    if row.state not in _BEGIN_IN.get(move.kind, _EXISTS):
        return
    if row.move is not None and move.number <= row.move.number:
        return
    transition.continue_from(move.number)
    if row.is_stranded:
        _refuse_stranded(transition, move)
        return
    if row.state == "offloaded":
        transition.change(move=move, failures=())
        unshelve(transition, order)
        return
    transition.withdraw((*REBUILDS, *MOVES), attempt=row.host_attempt)
    moving = Moving(
        step="claiming",
        source=transition.host,
        source_attempt=row.host_attempt,
        was=_state_before(transition),
        # An earlier move has stopped it, and its source may run it again by now: it is asked again if this move fails.
        is_stopped=row.moving is not None and row.moving.is_stopped,
    )
    transition.change(move=move, moving=moving, alternates=order.choices, failures=(), tries=0)
    if transition.host.kind == NODE:
        end(transition, "failed", ON_NODE)
    elif transition.now >= move.ends_by:
        decide_end(transition, "failed", "the order reached its cell after the deadline")
        go_on(transition)
    elif move.kind in ("shelve", "offload", "stop", "reboot"):
        stop(transition)
    elif move.kind in ("unshelve", "start"):
        transition.change(moving=structs.replace(moving, is_stopped=True, outcome="done"))
        restart(transition)
    else:
        go_on(transition)


def _refuse_stranded(transition: Transition, move: Move) -> None:
    """End this move at once: the instance must come back from an earlier one first. Placement is asked for that again."""
    moving = structs.replace(transition.moving, outcome="failed")
    transition.change(move=structs.replace(move, outcome="failed", failure=STRANDED), moving=moving)
    tell_again(transition)


def _state_before(transition: Transition) -> State:
    """The state to which the instance returns if its move fails.

    That is `rebuilding` for a broken instance whose host is still asked how a rebuild has ended.
    """
    row = transition.row
    is_asked = row.state == "broken" and row.state_ends_at is not None and row.moving is None
    return "rebuilding" if is_asked else row.state


def on_end_move(transition: Transition, order: EndMoveInCell) -> None:
    row, move = transition.row, order.move
    transition.continue_from(order.sequence)
    if row.move is None or row.move.number < move.number:
        # The order to move may come later, and then counts no more.
        if row.state in ("active", "stopped", "shelved", "offloaded", "broken"):
            was = _state_before(transition)
            waits = row.moving and structs.replace(row.moving, outcome="aborted", reason="")
            transition.change(move=structs.replace(move, outcome="aborted"), moving=waits)
            tell_end(transition, was, row.reason)
        return
    if row.move.number > move.number or (row.moving is None and not row.is_unshelving):
        return
    transition.change(move=structs.replace(row.move, asked=move.asked))
    match move.asked:
        case "abort" if row.moving is None:
            abort_unshelve(transition)
        case "confirm" if row.state == "moved":
            confirm(transition)
        case "revert" if row.state == "moved":
            leave(transition, "reverted", "")
        case "abort" if row.state == "moving" and not transition.moving.outcome:
            _abort(transition)
        case _ if row.state == "broken" and row.moving is not None:
            # The move had failed before the API level knew it.
            tell_again(transition)


def _abort(transition: Transition) -> None:
    row, moving = transition.row, transition.moving
    match moving.step:
        case "claiming" if row.tries:
            # Placement may have granted the claim: its answer tells.
            decide_end(transition, "aborted", "")
        case "claiming" | "stopping":
            return_claim(transition, "aborted", "", was_silent=False)
        case "receiving" | "arrived":
            leave(transition, "aborted", "")
        case "leaving" | "returning" | "restarting":
            decide_end(transition, "aborted", "")
        case "freeing":
            # It is saved, and its host destroys it.
            pass
        case _:
            assert_never(moving.step)


def free_both_hosts(transition: Transition) -> None:
    """Order source and destination of a move to destroy an instance that is deleted meanwhile.

    The instance's claim is released when the last of the two has cleaned up. If placement was just asked for another
    destination, the claim is that of the next attempt, since placement may have granted it already.
    """
    row, moving = transition.row, transition.moving
    own = HeldClaim(row.id, row.last_attempt)
    source = moving.source.share.host
    if row.host_attempt != moving.source_attempt:
        cleanup = (transition.heir_claim(),) if row.was_silent else ()
        transition.clean_up(own, *cleanup)
    of_source: tuple[HeldClaim, ...] = ()
    if moving.heir_attempt:
        of_source = (moving.source_heir(),)
    elif moving.has_asked:
        # Placement may have granted the next attempt, and its heir.
        of_source = (transition.heir_claim(),)
    transition.clean_up_host(moving.source_attempt, source, own, *of_source)
    transition.leave_group(*of_source)
    transition.change(moving=None, alternates=())
