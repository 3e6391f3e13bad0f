"""Moves an instance from a failed host to the next alternate. The claim moves first, in one transaction of placement's.

Whichever alternate a question to placement names, it asks for the attempt after the current one. If two such questions
arrive, one late and one repeated, placement grants only one. It answers the other with the share that is really held, and
the conductor builds there.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, assert_never

from msgspec import structs

from bus.messages.build import (
    AlternatesSpent,
)
from bus.messages.cell import MoreAlternates, MoveInCell
from bus.messages.placement import ClaimResources, Heir, SwapClaim
from cell_conductor.core.rows import (
    SPAWNS,
    Cleanup,
    HeldClaim,
    Instance,
    Question,
    SwapAnswered,
    choices_of,
    kind_of,
)
from cell_conductor.core.transition import Transition
from engine.flavors import Flavor, InstanceId
from engine.hosts import NODE
from engine.inventories import Choice, ConsumerId, ShapeSeen, Share, tree_fingerprint
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    ClaimVerdict,
    DoesNotFit,
    GroupRefused,
    HostFull,
    NotAllowed,
    QuotaExceeded,
    Released,
    ShapeMoved,
    Shortfall,
    Superseded,
    TooOld,
    broken_rule_in_words,
    over_quota_in_words,
    why_no_member,
)
from kit.parts import grown

Refusal = DoesNotFit | GroupRefused | QuotaExceeded | ShapeMoved | Superseded | TooOld | Released | NotAllowed


def leave_unbuilt(transition: Transition, reason: str) -> None:
    """Give up the attempt on the current host, which was not ordered to build it: it has nothing of the instance."""
    transition.change(state="building")
    leave_host(transition, reason, was_silent=False)


def leave_host(transition: Transition, reason: str, *, was_silent: bool) -> None:
    """Give up the attempt on the current host: ask for the next alternate, or end the build if there is none."""
    row, host = transition.row, transition.host
    if transition.hosts.is_dead(host.share.host):
        # It has nothing that it could clean up.
        was_silent = False
        transition.withdraw(SPAWNS, attempt=row.attempt)
    transition.failed(host.name, reason, attempt=row.attempt)
    own = HeldClaim(row.id, row.attempt)
    if not row.alternates and not may_ask(transition.row):
        if was_silent:
            transition.clean_up(own)
        else:
            transition.release((own,))
        end_unbuilt(transition, "no alternate is left")
        return
    if was_silent:
        transition.clean_up(transition.name_heir())
    transition.change(
        state="swapping",
        was_silent=was_silent,
        tries=0,
        state_ends_at=transition.now,
    )
    if not row.alternates:
        transition.ask_for_alternates()


def may_ask(row: Instance) -> bool:
    """May the API level be asked for further alternates, when none is left?

    For a member of a server group it may, since the other members use up its alternates. Otherwise only if placement
    refused some of them: each build gets as many tries as hosts were chosen for it. An image that no host can run must
    not be tried on all hosts.
    """
    order = row.order
    if order is None or not order.may_ask or row.saved:
        return False
    choices = choices_of(order)
    if any(choice.kind == NODE for choice in choices):
        # The row names the nodes that it may have to clean up by its order.
        return False
    tried = sum(not failure.is_refused for failure in row.failures)
    return order.group is not None or tried < len({choice.share.host for choice in choices})


def on_more_alternates(transition: Transition, order: MoreAlternates) -> None:
    row = transition.row
    if row.state != "swapping" or not row.spent or row.spent != order.spent:
        return
    transition.continue_from(order.sequence)
    # The event that asked is answered. If it stayed, a repeated answer would have it sent again, and that be answered again.
    outbox = tuple([each for each in transition.row.outbox if not isinstance(each.message, AlternatesSpent)])
    transition.change(
        alternates=order.alternates,
        flavor=order.flavor,
        spent=0,
        tries=0,
        state_ends_at=transition.now,
        outbox=outbox,
    )
    if not order.alternates:
        transition.free_share()
        end_unbuilt(transition, f"no alternate is left: {order.reason}")


def pass_over_lost(transition: Transition) -> None:
    """Drop alternates, from the next one on, until one is found that may be built on now."""
    while transition.row.alternates and (why := transition.hosts.why_not_next(transition.row.alternates[0])):
        drop_next(transition, why)


def drop_next(transition: Transition, reason: str) -> None:
    """Drop the next alternate, and note the reason among the instance's failures."""
    row = transition.row
    transition.failed(row.alternates[0].name, reason, attempt=row.attempt + 1, is_refused=True)
    transition.change(alternates=row.alternates[1:], tries=0, state_ends_at=transition.now)


def end_if_none_left(transition: Transition) -> None:
    if transition.row.alternates or transition.row.spent:
        return
    if may_ask(transition.row):
        transition.ask_for_alternates()
    else:
        transition.free_share()
        end_unbuilt(transition, "no alternate is left")


def next_swap(transition: Transition) -> Question:
    """The question to placement for the next alternate.

    If it is repeated, the repetition is equal. Until its lease ends, no other process of the cell asks it.
    """
    row, order = transition.row, transition.order
    transition.change(
        tries=row.tries + 1, state_ends_at=min(transition.now + transition.rules.ask_lease, row.ends_by)
    )
    if row.host is None:
        return ClaimResources(
            cell=transition.rules.cell,
            consumer=row.id,
            attempt=row.attempt + 1,
            issued_at=row.changed_at,
            share=row.alternates[0].share,
            project=order.project,
            user=order.user,
            group=order.group,
        )
    heir = Heir(id=transition.heir_claim().consumer, type="CLEANUP") if row.was_silent else None
    return swap_to(transition, row.alternates[0].share, heir)


def swap_to(
    transition: Transition, share: Share, heir: Heir | None, returns: ConsumerId | None = None
) -> SwapClaim:
    """The question to placement that moves the instance's claim to this share, for the next attempt."""
    row = transition.row
    return SwapClaim(
        cell=transition.rules.cell,
        consumer=row.id,
        held_attempt=row.attempt,
        attempt=row.attempt + 1,
        issued_at=row.changed_at,
        share=share,
        heir=heir,
        returns=returns,
        group=transition.order.group,
        leaves=row.move.leaves if row.moving is not None and row.move is not None else (),
    )


def on_swap_answered(transition: Transition, answered: SwapAnswered) -> None:
    row, swap, verdict = transition.row, answered.swap, answered.verdict
    if not _is_asked(row, swap):
        return
    match verdict:
        case AlreadyClaimed() if verdict.attempt <= row.attempt:
            # The release of the last attempt is still on its way.
            wait_for_placement(transition, row.ends_by)
        case Superseded() if verdict.ended and not row.saved:
            # The claim was released, which happens only to deleted instances.
            transition.end_deleted("its claim was released")
        case _:
            on_next_answered(
                transition, verdict, take=_take_host, pass_on=end_if_none_left, ends_by=row.ends_by
            )


def on_next_answered(
    transition: Transition,
    verdict: ClaimVerdict | None,
    *,
    take: Callable[[Transition, Choice], None],
    pass_on: Callable[[Transition], None],
    ends_by: datetime | None,
) -> None:
    """Go on with a build or a move after placement's answer to the question for the next alternate: `take` the host whose
    share it granted, or `pass_on` to the one after it. If there was no answer, it is asked again, at the latest at `ends_by`.
    """
    row = transition.row
    match verdict:
        case None:
            wait_for_placement(transition, ends_by)
        case Claimed():
            take(transition, row.alternates[0])
        case AlreadyClaimed():
            take(transition, choice_of(row, verdict.share))
        case ShapeMoved() if (renewed := with_current_shape(row.alternates[0], verdict)) is not None:
            # Try the unchanged alternates first, and then this one with its new shape.
            transition.change(
                alternates=(*row.alternates[1:], renewed), tries=0, state_ends_at=transition.now
            )
        case QuotaExceeded():
            # Another host would not help. Only an alternate of another flavor might.
            refused = sums_of(row.alternates[0].share)
            drop_next(transition, why_not(verdict))
            others = tuple([each for each in transition.row.alternates if sums_of(each.share) != refused])
            transition.change(alternates=others)
            pass_on(transition)
        case _:
            drop_next(transition, why_not(verdict))
            pass_on(transition)


def sums_of(share: Share) -> Counter[str]:
    sums = Counter[str]()
    for each in share.amounts:
        sums[each.resource] += each.amount
    return sums


def with_current_shape(alternate: Choice, moved: ShapeMoved) -> Choice | None:
    """The alternate with the current shape of its host, if the host's tree has the fingerprint that the scheduler saw;
    otherwise None.

    A cell knows neither the flavor's extra specs nor filters, so it cannot choose again. But the scheduler's reasons
    were either properties of the tree, which the fingerprint shows to be unchanged, or amounts, which placement checks
    itself.
    """
    share = alternate.share
    if not alternate.fingerprint or moved.gone or moved.roots != (share.host,) or not moved.trees:
        return None
    if tree_fingerprint(moved.trees) != alternate.fingerprint:
        return None
    seen = ShapeSeen(root=share.host, shape=max(state.shape for state in moved.trees))
    # Providers that share with the tree must still be as they were.
    others = [other for other in share.shapes if other.root != share.host]
    return structs.replace(alternate, share=structs.replace(share, shapes=(seen, *others)))


def _is_asked(row: Instance, swap: Question) -> bool:
    """Does the row wait for the answer to this swap? Another process may have asked it, too, and have saved the answer
    already.
    """
    return (
        row.state == "swapping"
        and row.attempt + 1 == swap.attempt
        and bool(row.alternates)
        and row.alternates[0].share == swap.share
    )


def wait_for_placement(transition: Transition, ends_by: datetime | None) -> None:
    """Set the time at which placement is asked again: after a pause that grows with each try, but not later than the
    deadline.
    """
    row, rules = transition.row, transition.rules
    asks_at = transition.now + grown(rules.retry_delay_first, rules.retry_delay_max, row.tries)
    transition.change(state_ends_at=asks_at if ends_by is None else min(asks_at, ends_by))


def _take_host(transition: Transition, host: Choice) -> None:
    hold_next(transition, host, flavor=_flavor_on(transition, host))
    if why := transition.hosts.why_not_next(host):
        leave_unbuilt(transition, why)
    else:
        transition.spawn()


def _flavor_on(transition: Transition, host: Choice) -> Flavor | None:
    """The flavor of this share, as the row has it. The order tells those of its own hosts; the row, that of further alternates,
    and that of an instance that is unshelved.

    A host of the order may be a further alternate, too, with another flavor: the amounts say which of both it is. If both
    flavors have the same amounts, it counts as the order's.
    """
    row, order = transition.row, transition.order
    if row.saved or not order.tells_flavor:
        return row.flavor if row.saved else None
    share = host.share
    of_order = [each.share for each in choices_of(order) if each.share.host == share.host]
    # A reshape may have moved the amounts to other providers of the host.
    if any(sums_of(each) == sums_of(share) for each in of_order):
        return order.other_flavors.get(host.share.host)
    return row.flavor


def hold_next(transition: Transition, host: Choice, **changes: Any) -> None:
    """Note that the instance holds the share of this host by its next attempt; together with these changes of the row."""
    row = transition.row
    transition.change(
        attempt=row.attempt + 1,
        host=host,
        kept_attempt=0,
        alternates=tuple(each for each in row.alternates if each.share.host != host.share.host),
        was_silent=False,
        tries=0,
        **changes,
    )


def choice_of(row: Instance, held: Share) -> Choice:
    """The host of the share that placement says is held, with its name if the row knows it, as a `Choice`.

    It may be an alternate that was refused before.
    """
    known = (*row.alternates, *choices_of(row.order))
    name = next((each.name for each in known if each.share.host == held.host), str(held.host))
    return Choice(name=name, share=held, kind=kind_of(row, held.host))


def why_not(  # noqa: PLR0911 - one for each verdict
    verdict: Refusal,
) -> str:
    """A refusal of placement as one line, for the list of the instance's failures."""
    match verdict:
        case DoesNotFit():
            full = [verdict.full] if verdict.full else []
            return "does not fit: " + "; ".join([*map(_short, verdict.shortfalls), *map(_full, full)])
        case GroupRefused():
            return _group(verdict)
        case QuotaExceeded():
            return over_quota_in_words(verdict)
        case ShapeMoved():
            moved = ", ".join(str(each) for each in (*verdict.roots, *verdict.gone))
            return f"the host has changed since it was chosen: {moved}"
        case Superseded():
            return f"placement knows a later attempt, {verdict.attempt}"
        case TooOld():
            return f"asked too late: placement forgets after {verdict.horizon_s} s"
        case NotAllowed():
            return f"not allowed: {verdict.field}: {verdict.reason}"
        case Released():
            return "placement answered a swap with a release"
        case _:
            assert_never(verdict)


def _group(refused: GroupRefused) -> str:
    if refused.rule is not None:
        return why_no_member(refused.group, refused.rule, refused.domain, refused.count)
    members = ", ".join(map(str, refused.members))
    more = f" and {refused.count - len(refused.members)} more" if refused.count > len(refused.members) else ""
    limit = f", at most {refused.max_per_host}" if refused.policy == "anti-affinity" else ""
    return f"server group {refused.group} ({refused.policy}) has members on host {refused.host}{limit}: {members}{more}"


def _full(full: HostFull) -> str:
    return f"host {full.host} has {full.instances} instances, at most {full.instances_max}"


def _short(shortfall: Shortfall) -> str:
    said = (
        f"{shortfall.resource} of {shortfall.provider} asked {shortfall.asked}, free {max(shortfall.free, 0)}"
    )
    return said + broken_rule_in_words(shortfall)


# An offloaded instance runs again, on any host. It is built like a new one, from its image.
#
#     offloaded ──▶ swapping ◀──▶ building ──▶ active      done
#                       └────────────┴──▶ offloaded        no host took it in time, or the move was aborted
#
# An offloaded instance holds nothing. So the first host is claimed, and each further one is asked for by a swap. Each claim
# has an attempt that no earlier one had: placement has ended the last attempt, and refuses late copies of questions for it.
#
# If the instance is offloaded again while a silent host may have it, its last attempt holds the share until that host has
# cleaned up. The next move that unshelves it then begins with a swap, as if there had always been another alternate.


def unshelve(transition: Transition, order: MoveInCell) -> None:
    row = transition.row
    why = transition.why_not_begun(order.move.ends_by)
    if why or not order.choices:
        end_unshelve(transition, "failed", why if order.choices else "there is no host for it")
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
    """End a build that no host could do: the instance ends in error, or stays offloaded if it was unshelved. What the last host said
    comes first: it is the cause, and often all that people see.
    """
    failures = transition.row.failures
    causes = [each.reason for each in failures if not each.is_refused] or [each.reason for each in failures]
    reason = "; ".join((*causes[-1:], reason))
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
