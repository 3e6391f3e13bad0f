"""Continues a move (moving.py) after an answer of placement or of a host, or after a time without an answer."""

from msgspec import structs

from bus.messages.build import STOPPED_MEANWHILE
from bus.messages.cell import InstanceSpawned, InstanceStopped, SpawnFailed, StopInstance
from bus.messages.placement import Heir, SwapClaim
from cell_conductor.core.moving import (
    arrive,
    confirm,
    decide_end,
    end,
    free,
    go_on,
    image_of,
    receive,
    restart,
    return_claim,
    send_start,
    stop,
    strand,
    wait_for_source,
)
from cell_conductor.core.rows import MOVES, SPAWNS, Question, State, SwapAnswered
from cell_conductor.core.swapping import (
    Refusal,
    hold_next,
    on_next_answered,
    pass_over_lost,
    sums_of,
    swap_to,
    wait_for_placement,
    why_not,
)
from cell_conductor.core.transition import Transition
from engine.inventories import Choice, Share
from engine.refusals import AlreadyClaimed, Claimed, ClaimVerdict, NotAllowed, Released, Superseded

# Claims

# Placement gives these answers to the same question for ever.
FINAL = (Superseded, NotAllowed, Released)


def next_move_swap(transition: Transition) -> SwapClaim:
    """The question to placement that a move asks next: move the instance's claim to the next destination, or back to the
    source.

    If the question is repeated, the repetition is equal, so placement grants it at most once.
    """
    moving, rules = transition.moving, transition.rules
    is_back = moving.step == "returning"
    needs_heir = not is_back or transition.row.was_silent or not moving.heir_attempt
    own = transition.name_heir().consumer if needs_heir else None
    row = transition.row
    transition.change(
        tries=row.tries + 1,
        state_ends_at=transition.now + rules.ask_lease,
        moving=structs.replace(moving, has_asked=True),
    )
    if own is not None and not is_back:
        return swap_to(transition, row.alternates[0].share, Heir(id=own, type="MIGRATION"))
    heir = Heir(id=own, type="CLEANUP") if own is not None and row.was_silent else None
    returns = moving.source_heir().consumer if moving.heir_attempt else own
    return swap_to(transition, moving.source.share, heir, returns)


def on_move_swap_answered(transition: Transition, answered: SwapAnswered) -> None:
    row, swap, verdict, moving = transition.row, answered.swap, answered.verdict, transition.row.moving
    if moving is None or row.attempt + 1 != swap.attempt or not row.tries:
        return
    is_back = moving.step == "returning"
    asked = moving.source if is_back else row.alternates[0] if moving.step == "claiming" else None
    if asked is None or asked.share != swap.share:
        return
    if is_back:
        _on_answered_back(transition, swap, verdict)
    else:
        on_next_answered(transition, verdict, take=_on_claimed, pass_on=go_on, ends_by=None)


def _on_answered_back(transition: Transition, swap: Question, verdict: ClaimVerdict | None) -> None:
    row, moving = transition.row, transition.moving
    match verdict:
        case None:
            wait_for_placement(transition, None)
        case AlreadyClaimed() if not (moving.heir_attempt or _is_same(verdict.share, swap.share)):
            # A late copy of a refused question was granted after all: the way back is from there.
            transition.change(
                attempt=swap.attempt,
                kept_attempt=moving.source_attempt,
                tries=0,
                moving=structs.replace(moving, heir_attempt=row.attempt, heir=row.heir),
                state_ends_at=transition.now,
            )
        case Claimed() | AlreadyClaimed():
            _on_claimed_back(transition, swap.attempt)
        case _:
            _on_refused_back(transition, verdict)


def _on_refused_back(transition: Transition, refused: Refusal) -> None:
    """Nobody may take the way back, so this is unusual: claims were written by name, or mended. What may change is asked
    again until the end of the move's time. Then, or if it cannot change, the move ends with the reason.
    """
    moving, is_final = transition.moving, isinstance(refused, FINAL)
    if transition.row.state == "moving" and not is_final and transition.now < transition.move.ends_by:
        transition.change(reason=why_not(refused))
        wait_for_placement(transition, None)
        return
    why = f"placement refuses its way back: {why_not(refused)}"
    decide_end(transition, "failed", why)
    if moving.heir_attempt:
        strand(transition, why, asks_again=not is_final)
    else:
        # It never left its host. No copy of a question is granted that is older than the refused one.
        transition.change(moving=structs.replace(transition.moving, has_asked=False))
        go_on(transition)


def _is_same(held: Share, asked: Share) -> bool:
    """Are these the same amounts on one host? A reshape may have moved them to other providers there."""
    return held.host == asked.host and sums_of(held) == sums_of(asked)


def _on_claimed(transition: Transition, host: Choice) -> None:
    row, moving, move = transition.row, transition.moving, transition.move
    hold_next(
        transition,
        host,
        moving=structs.replace(moving, heir_attempt=row.attempt, heir=row.heir, has_asked=False),
        move=structs.replace(move, destination=host.name),
    )
    if moving.outcome:
        return_claim(transition, moving.outcome, moving.reason, was_silent=False)
    elif move.kind in STOPPED_MEANWHILE:
        # Also for the next choice, and after an earlier move: the source may have started it again by now.
        stop(transition)
    else:
        receive(transition)


def _on_claimed_back(transition: Transition, attempt: int) -> None:
    moving = transition.moving
    if transition.row.was_silent:
        transition.leave_group(transition.heir_claim())
    transition.change(
        attempt=attempt,
        host=moving.source,
        kept_attempt=moving.source_attempt,
        reason="",
        was_silent=False,
        moving=structs.replace(moving, heir_attempt=0, heir=None, has_asked=False),
    )
    go_on(transition)


# Messages of hosts


def on_stopped(transition: Transition, word: InstanceStopped) -> None:
    row, moving, move = transition.row, transition.row.moving, transition.row.move
    if row.state != "moving" or moving is None or move is None:
        return
    if moving.step == "receiving":
        _on_arrived_stopped(transition, word)
    if moving.step != "stopping":
        return
    if not _is_of_this_move(transition, word):
        return
    if move.kind == "offload" and not word.failure and word.saved != image_of(row.id, move):
        # It is about an earlier stop: the host has yet to save it.
        return
    transition.withdraw((StopInstance,), attempt=word.attempt)
    if word.failure:
        transition.failed(moving.source.name, word.failure, attempt=word.attempt)
        what = "stop and save it" if move.kind == "offload" else "stop it"
        return_claim(transition, "failed", f"{moving.source.name} could not {what}", was_silent=False)
    elif move.kind in ("shelve", "stop"):
        state: State = "shelved" if move.kind == "shelve" else "stopped"
        transition.end_as(state, moving=None, move=structs.replace(move, outcome="done"))
    elif move.kind == "reboot":
        transition.change(moving=structs.replace(moving, outcome="done"))
        restart(transition)
    elif move.kind == "offload":
        free(transition, word.saved)
    else:
        receive(transition)


def _on_arrived_stopped(transition: Transition, word: InstanceStopped) -> None:
    """Go on after the destination has taken over a stopped instance without running it."""
    row = transition.row
    is_host = row.host is not None and (word.attempt, word.host) == (row.host_attempt, row.host.share.host)
    if is_host and transition.moving.was == "stopped" and not word.failure:
        transition.withdraw((*MOVES, *SPAWNS), attempt=word.attempt)
        arrive(transition)


def on_moving_spawned(transition: Transition, word: InstanceSpawned) -> bool:
    """Go on with a move after a host has reported that it runs the instance.

    Returns whether the report is about the move's source or destination. If so, it needs no other answer.
    """
    row, moving = transition.row, transition.moving
    is_source = (word.attempt, word.host) == (moving.source_attempt, moving.source.share.host)
    is_host = row.host is not None and (word.attempt, word.host) == (row.host_attempt, row.host.share.host)
    if moving.step == "restarting" and _is_of_this_move(transition, word):
        transition.withdraw(MOVES, attempt=word.attempt)
        assert moving.outcome, "a move that ends has an outcome"
        end(transition, moving.outcome, moving.reason)
    elif is_host and row.state == "moving" and moving.step == "receiving":
        transition.withdraw((*MOVES, *SPAWNS), attempt=word.attempt)
        arrive(transition)
    elif is_host and not is_source and moving.step in ("leaving", "returning"):
        # A late copy of the order was obeyed by a host that had forgotten the destroy.
        transition.answer_by_destroy(word.attempt, word.host, word.kind)
    return is_source or is_host


def on_moving_failed(transition: Transition, word: SpawnFailed) -> None:
    row, moving = transition.row, transition.moving
    if row.host is None or (word.attempt, word.host) != (row.host_attempt, row.host.share.host):
        return
    if row.state == "moving" and moving.step == "receiving":
        transition.withdraw((*MOVES, *SPAWNS), attempt=word.attempt)
        transition.failed(row.host.name, word.reason, attempt=row.attempt)
        return_claim(transition, "", "", was_silent=False)
    elif moving.step == "restarting" and _is_of_this_move(transition, word):
        transition.withdraw(MOVES, attempt=word.attempt)
        wait_for_source(transition, f"{row.host.name} could not run it again: {word.reason}")


def _is_of_this_move(transition: Transition, word: InstanceSpawned | SpawnFailed | InstanceStopped) -> bool:
    """Is this a message of the source about the current move? It may also be a late one about an earlier move, or about
    the build.
    """
    moving = transition.moving
    source = (moving.source_attempt, moving.source.share.host, transition.move.number)
    return (word.attempt, word.host, word.number) == source


def on_moving_destroyed(transition: Transition) -> None:
    """Go on undoing a move, after the destination has destroyed the instance: its claim goes back to the source."""
    moving = transition.moving
    if moving.step == "leaving":
        return_claim(transition, moving.outcome, moving.reason, was_silent=False)


def on_move_time_up(transition: Transition) -> tuple[SwapClaim, ...]:
    row, moving = transition.row, transition.moving
    if row.state == "moved":
        confirm(transition)
        return ()
    if moving.step in ("claiming", "returning"):
        return _ask_again(transition)
    silent = "no message from the host in time"
    match moving.step:
        case "stopping":
            transition.failed(moving.source.name, silent, attempt=moving.source_attempt)
            return_claim(
                transition, "failed", f"{moving.source.name} did not stop it in time", was_silent=False
            )
        case "receiving":
            transition.failed(transition.host.name, silent, attempt=row.attempt)
            return_claim(transition, "", "", was_silent=True)
        case "leaving":
            return_claim(transition, moving.outcome, moving.reason, was_silent=True)
        case "restarting":
            wait_for_source(transition, f"{transition.host.name} has not confirmed that it runs again")
            transition.withdraw(MOVES, attempt=moving.source_attempt)
            send_start(transition)
    return ()


def _ask_again(transition: Transition) -> tuple[SwapClaim, ...]:
    row = transition.row
    if transition.moving.step == "claiming":
        if transition.now >= transition.move.ends_by:
            decide_end(transition, "failed", "its time is up")
        if not row.tries:
            pass_over_lost(transition)
        if not row.tries and (transition.moving.outcome or not transition.row.alternates):
            go_on(transition)
            return ()
    return (next_move_swap(transition),)
