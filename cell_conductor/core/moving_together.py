"""Instances that move together, such as the members of an affinity group: all of them arrive at one host, or none leaves.

Each instance has its own row, and does its own steps (moving.py). At three steps it waits for the others (`WAITS`):

    claiming   until all of them are there. One question then moves the claims of all to one host.
    arrived    until the destination has them all. Then all of them are confirmed at once.
    returning  until all that have left the source are on their way back. One question moves all claims back.

If the destination fails for one of them, if one is aborted, or if its time is up, all others come back, too. Then all try the
next host, or all moves end for the same reason. An instance that is deleted meanwhile does not count any more. So placement
never sees some of them on one host and some on another; it judges each question by what is so after all its swaps.

These steps are due at once, and again after a pause. The row whose time is due is decided together with the rows of all others.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from bus.messages.placement import SwapClaim, single_swaps, swapped_together
from cell_conductor.core.instance import Instance
from cell_conductor.core.move_answers import next_move_swap, on_move_swap_answered
from cell_conductor.core.moving import confirm, decide_end, go_on, leave, return_claim
from cell_conductor.core.swapping import SwapAnswered, drop_next
from cell_conductor.core.transition import Transition
from engine.flavors import InstanceId
from engine.inventories import ProviderId
from engine.refusals import AlreadyClaimed, Claimed

# The steps in which an instance waits for those that move with it.
WAITS = ("claiming", "arrived", "returning")


# How often one that waits looks at the others, in pauses of a question that is asked again.
PAUSES = 4


def waits_for_others(row: Instance) -> bool:
    """Is the row at a step that is decided together with the other rows of its move?"""
    return (
        row.moving is not None
        and row.move is not None
        and len(row.move.together) > 1
        and row.moving.step in WAITS
        and not row.moving.asks_alone
    )


def is_gathered(transition: Transition) -> bool:
    """Is the row's time due at a step that is decided together with the other rows of its move?"""
    ends_at = transition.row.state_ends_at
    return waits_for_others(transition.row) and ends_at is not None and ends_at <= transition.now


def others_of(rows: Iterable[Instance]) -> list[InstanceId]:
    """The instances whose rows are needed to decide these rows, besides the rows themselves; in the order of their ids."""
    rows = list(rows)
    known = {row.id for row in rows}
    needed = {
        id_ for row in rows if waits_for_others(row) and row.move is not None for id_ in row.move.together
    }
    return sorted(needed - known)


def gather(one: Transition, of_all: Mapping[InstanceId, Transition]) -> tuple[SwapClaim, ...]:
    """Decide how a move of several goes on, after the time of one of them is due. `of_all` has all rows that exist.
    Returns the question to placement, if all are ready for it.
    """
    move = one.move
    all_ = [of_all[id_] for id_ in move.together if id_ in of_all]
    inside = [each for each in all_ if _is_inside(each, one)]
    _share_failures(inside, [each for each in all_ if _is_of_move(each, one)])
    _share_the_end(one, all_, inside)
    if any(each.moving.asks_alone for each in inside):
        # What they hold is not known yet.
        _wait(one)
        return ()
    if any(each.moving.step == "returning" or each.moving.outcome for each in inside):
        _call_back(inside)
    claiming = [each for each in inside if each.moving.step == "claiming"]
    if one.moving.outcome and claiming:
        return _give_up(claiming)
    # One that is to run on its source again is at its end.
    steps = {each.moving.step for each in inside} - {"restarting"}
    if "returning" in steps and steps <= {"claiming", "returning"}:
        return _ask([each for each in inside if each.moving.step == "returning"])
    if steps == {"claiming"} and all(_is_here(each, one) for each in all_):
        return _claim(claiming)
    if steps == {"arrived"}:
        for each in inside:
            confirm(each)
        return ()
    _wait(one)
    return ()


def _is_of_move(each: Transition, one: Transition) -> bool:
    move = each.row.move
    return move is not None and move.request_id == one.move.request_id


def _is_inside(each: Transition, one: Transition) -> bool:
    """Is this row in the same move, and not at its end yet?"""
    return _is_of_move(each, one) and each.row.moving is not None


def _is_here(each: Transition, one: Transition) -> bool:
    """Has the order to move reached this row? A row that is deleted is not waited for."""
    return _is_inside(each, one) or each.row.state in ("deleting", "deleted")


def _share_failures(inside: Sequence[Transition], of_move: Sequence[Transition]) -> None:
    """Note at each of them the hosts that have failed for another one. By its failures the API level decides whether a move waits
    for room again: all of them wait, or none.
    """
    failures = [(each.row.id, failure) for each in of_move for failure in each.row.failures]
    for each in inside:
        known = {(failure.host, failure.is_refused) for failure in each.row.failures}
        for id_, failure in failures:
            if (failure.host, failure.is_refused) not in known:
                known.add((failure.host, failure.is_refused))
                why = f"{id_}, which moves with it: {failure.reason}"
                each.failed(failure.host, why, attempt=each.row.attempt, is_refused=failure.is_refused)


def _share_the_end(one: Transition, all_: Sequence[Transition], inside: Sequence[Transition]) -> None:
    """If one of them ends its move, or has ended it where it was, all of them do so, for its reason."""
    ends = next((each for each in inside if each.moving.outcome), None)
    stays = next((each for each in all_ if each not in inside and _stays(each, one)), None)
    for each in inside:
        if ends is not None:
            because = (
                "" if each is ends or not ends.moving.reason else f" {ends.row.id}: {ends.moving.reason}"
            )
            decide_end(each, ends.moving.outcome, because.strip())
        elif stays is not None:
            why = stays.move.failure or f"its move is {stays.move.outcome}"
            decide_end(each, "failed", f"{stays.row.id} moves with it, and stays: {why}")
        elif each.now >= each.move.ends_by:
            decide_end(each, "failed", "its time is up")


def _stays(each: Transition, one: Transition) -> bool:
    return (
        _is_of_move(each, one)
        and each.move.outcome not in ("", "confirmed")
        and each.row.state not in ("deleting", "deleted")
    )


def _call_back(inside: Sequence[Transition]) -> None:
    """Have all of them leave the destination: it failed for one of them, or the move ends."""
    for each in inside:
        moving = each.moving
        if moving.step in ("receiving", "arrived"):
            leave(each, moving.outcome, moving.reason)
        elif moving.step == "stopping":
            return_claim(each, moving.outcome, moving.reason, was_silent=False)


def _claim(inside: Sequence[Transition]) -> tuple[SwapClaim, ...]:
    """Ask for the next host that all of them may try; or go on to the end, if there is none."""
    if any(each.row.tries for each in inside):
        # The question may have been granted: it is repeated as it was, and its answer tells.
        return _ask(inside)
    first = inside[0]
    while not first.moving.outcome and first.row.alternates:
        host = first.row.alternates[0].share.host
        for each in inside:
            _put_first(each, host)
        why = first.hosts.why_not_next(first.row.alternates[0])
        if not why and all(
            each.row.alternates and each.row.alternates[0].share.host == host for each in inside
        ):
            return _ask(inside)
        for each in inside:
            if each.row.alternates and each.row.alternates[0].share.host == host:
                drop_next(each, why or "not all that move with it can be there")
    for each in inside:
        each.change(alternates=())
        go_on(each)
    return ()


def _give_up(claiming: Sequence[Transition]) -> tuple[SwapClaim, ...]:
    """End the moves of those that only asked for a destination, or did not yet. A question that may have been granted is
    repeated as it was, and its answer tells.
    """
    if asked := [each for each in claiming if each.row.tries]:
        return _ask(asked)
    for each in claiming:
        each.change(alternates=())
        go_on(each)
    return ()


def _put_first(each: Transition, host: ProviderId) -> None:
    alternates = each.row.alternates
    there = tuple(choice for choice in alternates if choice.share.host == host)
    if there and alternates[0] != there[0]:
        others = tuple(choice for choice in alternates if choice.share.host != host)
        each.change(alternates=(*there, *others))


def _ask(asking: Sequence[Transition]) -> tuple[SwapClaim, ...]:
    return (swapped_together([next_move_swap(each) for each in asking]),)


def _wait(one: Transition) -> None:
    """Look again after a pause: each of the others looks when it has done its step."""
    again = one.now + PAUSES * one.rules.retry_delay_first
    ends_by = one.move.ends_by
    one.change(state_ends_at=ends_by if one.now < ends_by < again else again)


def answers_of_all(answered: SwapAnswered) -> tuple[SwapAnswered, ...]:
    """The answer to a question for several instances, as an answer to each of them."""
    swap = answered.swap
    if not isinstance(swap, SwapClaim) or not swap.together:
        return (answered,)
    return tuple(
        [SwapAnswered(each.consumer, each, answered.verdict, is_of_all=True) for each in single_swaps(swap)]
    )


def on_answer_for_all(transition: Transition, answered: SwapAnswered) -> None:
    """Go on after the answer to a question for several instances, of which this is one.

    If the question was granted before, or late, each of them holds a share already. Only a question for it alone tells which. If
    the way back of all is refused, it is so because of one of them: each asks alone, and those that may go back do so.
    """
    if transition.row.moving is None:
        return
    if isinstance(answered.verdict, AlreadyClaimed) or _is_refused_back(transition, answered):
        if transition.row.tries and transition.row.attempt + 1 == answered.swap.attempt:
            transition.change(
                moving=structs.replace(transition.moving, asks_alone=True), state_ends_at=transition.now
            )
        return
    on_move_swap_answered(transition, answered)


def _is_refused_back(transition: Transition, answered: SwapAnswered) -> bool:
    verdict = answered.verdict
    return transition.moving.step == "returning" and verdict is not None and not isinstance(verdict, Claimed)
