"""Moves: an instance goes to another host, or comes back.

    active ──▶ moving ──▶ moved ──▶ active           confirmed, by the client or after a time
                  │         └─▶ moving ──▶ active    reverted: it runs on the first host again
                  ├──▶ active, broken                no host took it, or the move was aborted
                  ├──▶ broken                        placement refuses its way back, for a reason that does not change
                  ├──▶ stopped, shelved ──▶ moving ──▶ active
                  │                                  switched off on its host, and started again; a reboot does both
                  └──▶ offloaded ──▶ swapping, building ──▶ active
                                                     saved as an image, and built from it anywhere (swapping.py)

    step        what the cell waits for              then
    claiming    placement moves the claim            stopping; receiving if it is not stopped; the next choice
    stopping    the source stops the instance        receiving; stopped; shelved; restarting; returning; freeing if it is saved
    freeing     the source destroys it               offloaded: it holds nothing
    receiving   the destination has the instance     moved; returning
    leaving     the destination destroys it          returning
    returning   placement moves the claim back       claiming the next choice; restarting if it was stopped; the end
    restarting  the source runs it again             the end; broken until it does

The instance holds what the destination needs. The rest of the source's share is held by the heir of the attempt there, a
consumer of type migration, so the way back is always free. A confirmed move leaves the heir until the source has cleaned up.

A late copy of a question may be granted although placement refused it before. So a move that was refused everywhere claims its
own share again, by the refused attempt: no copy is granted after that. If one was granted before, its share comes back.

An evacuation spawns the instance at its destination: its source is down. The source gets the order to destroy what it has
only after that, and does so when it returns. If its order names the number of the source's setting (`source_epoch`), nothing is
spawned once that is another: the setting is read in the transaction that decides on the spawn. A host that keeps silent about a step is given up, as in a build; only one that
is freeing its share is waited for, until it has destroyed the instance or is dead. So an instance that is offloaded is nowhere.

A stopped instance stays stopped when it moves: its destination takes it over, or builds it, without running it, and it ends its move
as stopped, wherever it is then.

Members of an affinity group that leave their host by one order each move by themselves. Their questions to placement name the hosts
that all of them leave (`Move.leaves`): members there do not keep one of them back, and those that have arrived take the others along.
"""

from datetime import timedelta
from typing import Literal, assert_never

from msgspec import structs

from bus.messages.build import STOPPED_MEANWHILE, Move, MoveKind
from bus.messages.cell import EndMoveInCell, MoveInCell, ReceiveInstance, StartInstance, StopInstance
from cell_conductor.core.rows import MOVES, REBUILDS, HeldClaim, Moving, Saves, State, Step, flavor_of
from cell_conductor.core.swapping import abort_unshelve, unshelve
from cell_conductor.core.transition import Transition, spawn_order
from engine.flavors import InstanceId
from engine.hosts import NODE

# The steps of a move (moving.py), and its ends.


Outcome = Literal["", "reverted", "aborted", "failed", "done"]


def stop(transition: Transition) -> None:
    row, moving, move = transition.row, transition.moving, transition.move
    source = moving.source
    if why := transition.hosts.why_lost(source):
        transition.failed(source.name, why, attempt=moving.source_attempt)
        return_claim(transition, "failed", f"{source.name} cannot stop it", was_silent=False)
        return
    runs = moving.was not in ("stopped", "shelved")
    _go_to(transition, "stopping", until=transition.rules.time_to_build(source), is_stopped=runs)
    if move.kind == "offload":
        transition.change(saves=Saves(move.number, source.share.host))
    transition.send(
        StopInstance(
            cell=transition.rules.cell,
            instance=row.id,
            attempt=moving.source_attempt,
            host=source.share.host,
            number=move.number,
            save_as=image_of(row.id, move) if move.kind == "offload" else "",
            project=transition.order.project if move.kind == "offload" else "",
        )
    )


def image_of(instance: InstanceId, move: Move) -> str:
    """The name of the image as which a move saves an instance. Each move has another one."""
    return f"{instance}-{move.number}"


def free(transition: Transition, saved: str) -> None:
    """Begin the last step of an offload: the host destroys the instance, which is saved by now.

    The instance's share is freed only when the host has done so. From this step on there is no way back.
    """
    row = transition.row
    transition.clean_up(HeldClaim(row.id, row.attempt))
    _go_to(transition, "freeing")
    transition.change(saved=saved, state_ends_at=None)


def end_freed(transition: Transition) -> None:
    transition.hold_nothing(transition.row.attempt)
    transition.change(moving=None, reason="", move=structs.replace(transition.move, outcome="done"))
    transition.end_offloaded()


def receive(transition: Transition) -> None:
    row, order, host = transition.row, transition.order, transition.host
    moving, move = transition.moving, transition.move
    if why := transition.hosts.why_not_as_of(moving.source, move.source_epoch):
        # The source was set up since, and may run the instance again.
        return_claim(transition, "failed", why, was_silent=False)
        return
    if why := transition.hosts.why_not_next(host):
        # It was lost or set draining since it was claimed, and has nothing of the instance.
        transition.failed(host.name, why, attempt=row.attempt)
        return_claim(transition, "", "", was_silent=False)
        return
    _go_to(transition, "receiving")
    ends_at = min(transition.now + transition.rules.time_to_build(host), move.ends_by)
    if move.kind == "evacuate":
        transition.send(spawn_order(row, order, host), state_ends_at=ends_at)
        return
    take_over = ReceiveInstance(
        cell=transition.rules.cell,
        instance=row.id,
        attempt=row.attempt,
        host=host.share.host,
        flavor=move.flavor or flavor_of(row, order),
        share=host.share,
        source=moving.source.share.host,
        source_attempt=moving.source_attempt,
        live=move.kind == "live-migrate",
        name=order.name,
        stopped=moving.was == "stopped",
    )
    transition.send(take_over, state_ends_at=ends_at)


def arrive(transition: Transition) -> None:
    move = transition.move
    if move.kind not in STOPPED_MEANWHILE or not move.confirm_s:
        confirm(transition)
        return
    confirm_by = transition.now + timedelta(seconds=move.confirm_s)
    transition.end_as("moved", move=structs.replace(move, confirm_by=confirm_by), state_ends_at=confirm_by)


def confirm(transition: Transition) -> None:
    """End a move at its destination, and order the source to destroy what it has.

    The heir keeps the rest of the source's share until the source has done so.
    """
    row, moving, move = transition.row, transition.moving, transition.move
    heir = moving.source_heir()
    transition.clean_up_host(moving.source_attempt, moving.source.share.host, heir)
    transition.leave_group(heir)
    transition.end_as(
        "stopped" if moving.was == "stopped" else "active",
        moving=None,
        alternates=(),
        move=structs.replace(move, outcome="confirmed"),
        flavor=move.flavor or row.flavor,
        reason="",
    )


def leave(transition: Transition, outcome: Outcome, reason: str) -> None:
    """Order the destination to destroy the instance, as the first step of the way back to the source."""
    decide_end(transition, outcome, reason)
    transition.clean_up()
    _go_to(transition, "leaving", until=transition.rules.time_to_destroy(transition.host))


def return_claim(transition: Transition, outcome: Outcome, reason: str, *, was_silent: bool) -> None:
    """Begin to move the instance's claim from the destination back to the source, if the destination has one.

    If the destination was silent, an heir keeps what the destination gave beyond the source's share, until the
    destination has cleaned up.
    """
    moving = transition.moving
    decide_end(transition, outcome, reason)
    transition.withdraw(MOVES, attempt=moving.source_attempt)
    if not moving.heir_attempt:
        go_on(transition)
        return
    if was_silent:
        transition.clean_up(transition.name_heir())
    transition.change(was_silent=was_silent)
    _go_to(transition, "returning")


def restart(transition: Transition) -> None:
    _go_to(transition, "restarting", until=transition.rules.time_to_build(transition.host))
    send_start(transition)


def send_start(transition: Transition) -> None:
    moving = transition.moving
    transition.send(
        StartInstance(
            cell=transition.rules.cell,
            instance=transition.row.id,
            attempt=moving.source_attempt,
            host=moving.source.share.host,
            number=transition.move.number,
        )
    )


def wait_for_source(transition: Transition, reason: str) -> None:
    """End a failed move with the instance in state `broken`, because the source host does not run it again yet.

    The source is asked again and again. As soon as it runs the instance, the instance is active.
    """
    if transition.moving.outcome == "done":
        # An order to run it has failed, and a move ends once: also if its host runs it later.
        transition.change(moving=structs.replace(transition.moving, outcome="failed", reason=reason))
    moving = transition.moving
    _end_broken(transition, moving.outcome, moving.reason, told=reason, asks_again=True)


def strand(transition: Transition, reason: str, *, asks_again: bool) -> None:
    """End a move for which placement refuses to move the claim back to the source. The instance is `broken` then: its source
    still has it, stopped or running, and its claim holds the share of the destination until the instance is deleted.

    With `asks_again`, placement is asked again at intervals; otherwise only after the next order for the instance.
    """
    _end_broken(transition, "failed", reason, told=reason, asks_again=asks_again)


def _end_broken(
    transition: Transition, outcome: Outcome, failure: str, *, told: str, asks_again: bool
) -> None:
    """End a move with this outcome, and the instance in state `broken`, if it is not so already. With `asks_again`, the row is
    due again after a while.
    """
    transition.change(move=structs.replace(transition.move, outcome=outcome, failure=failure), alternates=())
    if transition.row.state != "broken":
        transition.end_broken(told)
    again = transition.now + transition.rules.remind_every
    transition.change(tries=0, state_ends_at=again if asks_again else None)


def end(transition: Transition, outcome: Outcome, reason: str) -> None:
    """End a move that has not led to another host: the instance is where it was, in the state from before.

    If it was stopped, it runs again by now, and is active.
    """
    moving = transition.moving
    move = structs.replace(transition.move, outcome=outcome, failure=reason)
    transition.change(moving=None, alternates=(), move=move)
    was = "active" if moving.is_stopped else moving.was
    tell_end(transition, was, reason or transition.row.reason)


def tell_again(transition: Transition) -> None:
    """Tell once more that a move left the instance broken, and ask again at once for what it waits for."""
    transition.end_broken(transition.row.reason)
    transition.change(tries=0, state_ends_at=transition.now)


def tell_end(transition: Transition, was: str, reason: str) -> None:
    if was == "active":
        transition.end_as("active", reason="")
    elif was == "stopped":
        transition.end_as("stopped", reason="")
    elif was == "shelved":
        transition.end_as("shelved")
    elif was == "offloaded":
        transition.end_offloaded()
    else:
        transition.end_broken(reason)
        if was == "rebuilding" or transition.row.moving is not None:
            # The host is asked further: how the rebuild has ended, or to run it again.
            transition.change(state_ends_at=transition.now + transition.rules.remind_every)


def go_on(transition: Transition) -> None:
    """Go on with a move whose instance holds only the share of its source: try the next destination, or end the move
    there.
    """
    if transition.now >= transition.move.ends_by:
        decide_end(transition, "failed", "its time is up")
    elif not transition.row.alternates:
        decide_end(transition, "failed", "no other host took it")
    moving = transition.moving
    if not moving.outcome:
        _go_to(transition, "claiming")
    elif moving.has_asked:
        _go_to(transition, "returning")
    elif moving.is_stopped:
        restart(transition)
    else:
        end(transition, moving.outcome, moving.reason)


# The row's move


def _go_to(
    transition: Transition, step: Step, *, until: timedelta = timedelta(0), is_stopped: bool = False
) -> None:
    """Go to a step of the move, which times out after `until`. The steps that ask placement are due at once."""
    moving = transition.moving
    transition.change(
        state="moving",
        moving=structs.replace(moving, step=step, is_stopped=moving.is_stopped or is_stopped),
        tries=0,
        state_ends_at=transition.now + until,
    )


def decide_end(transition: Transition, outcome: Outcome, reason: str) -> None:
    """Note how and why the move is to end, unless that was decided before. No other destination is tried then."""
    moving = transition.moving
    if not moving.outcome:
        transition.change(moving=structs.replace(moving, outcome=outcome, reason=reason))


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
    elif why := transition.why_not_begun(move.ends_by):
        decide_end(transition, "failed", why)
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
        case "receiving":
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
