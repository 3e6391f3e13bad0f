"""Decides what happens to instances because of messages, or because time has passed.

It folds over a batch in order. A row passes each of its states once, so with at-least-once delivery in any order each
message has its effect exactly once. A message about an attempt that is over changes nothing. A message that changes
nothing causes only the messages that are still unconfirmed to be sent again.

A host that was given up is never taken back. If it later reports its attempt, it is ordered to destroy it.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, get_args

from msgspec import Struct, structs

from bus.messages.cell import (
    AdoptInCell,
    DeployProgressed,
    EndMoveInCell,
    GiveBackInCell,
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    InstanceStopped,
    MoreAlternates,
    MoveInCell,
    PlaceInCell,
    RebuildInCell,
    RemoveFromCell,
    SpawnFailed,
)
from cell_conductor.core.move_answers import (
    on_move_swap_answered,
    on_move_time_up,
    on_moving_destroyed,
    on_moving_failed,
    on_moving_spawned,
    on_stopped,
)
from cell_conductor.core.moving import end_freed, free_both_hosts, on_end_move, on_move
from cell_conductor.core.rebuilding import (
    leave_rebuild,
    on_adopt,
    on_adoption_failed,
    on_rebuild,
    on_rebuild_time_up,
    on_redeployed,
)
from cell_conductor.core.rows import (
    ALL_UP,
    DESTROYS,
    ORDERS,
    SPAWNS,
    Cleanup,
    ConductorRules,
    DrawId,
    HeldClaim,
    HostStates,
    Instance,
    OutboxMessage,
    Question,
    Saves,
    SwapAnswered,
    awaited,
    kind_of,
)
from cell_conductor.core.swapping import (
    end_if_none_left,
    end_unbuilt,
    leave_host,
    leave_unbuilt,
    next_swap,
    note_unshelved,
    on_more_alternates,
    on_swap_answered,
    pass_over_lost,
)
from cell_conductor.core.transition import Transition, destroy_order
from engine.flavors import InstanceId
from engine.hosts import NODE
from engine.inventories import ProviderId

# The attempt that the scheduler claims before the cell has heard of the instance.
FIRST_ATTEMPT = 1


class Due(Struct, frozen=True):
    """An input: a timeout of this row has passed."""

    instance: InstanceId


class HostsLost(Struct, frozen=True):
    """An input: this row waits for a host that is lost."""

    instance: InstanceId


class RowGivenUp(Struct, frozen=True):
    """An input: conductors met a bug at this row, or at an order that begins something, and gave it up. An order to end or to delete
    cannot be given up: what it asks for is not done.
    """

    instance: InstanceId
    reason: str
    order: PlaceInCell | MoveInCell | RebuildInCell | None = None


CellMessage = (
    PlaceInCell
    | AdoptInCell
    | RemoveFromCell
    | GiveBackInCell
    | RebuildInCell
    | MoveInCell
    | EndMoveInCell
    | MoreAlternates
    | InstanceSpawned
    | SpawnFailed
    | InstanceDestroyed
    | DeployProgressed
    | InstanceRedeployed
    | InstanceStopped
)
Input = CellMessage | Due | SwapAnswered | HostsLost | RowGivenUp
# What is given up and is no build is tried again after so long: it may be a delete or a move, and these cannot be ended by half.
GIVEN_UP_RESTS = timedelta(days=1)


class DecidedMessage(Struct, frozen=True, gc=False):
    """A message about an instance, to be sent now. `cause` is the index of the input that led to it.

    With a `sequence`, the message stays on the instance's row until the broker has confirmed it. Without one it is not
    kept.
    """

    instance: InstanceId
    sequence: int | None
    message: OutboxMessage
    cause: int


class Decision(Struct, frozen=True):
    """The changed rows, the rows to delete, the messages to send, and the swaps to ask placement for after saving.

    `before` are the changed rows as they were before, in the same order; a new row was `unknown`.
    """

    rows: tuple[Instance, ...]
    forgotten: tuple[InstanceId, ...]
    said: tuple[DecidedMessage, ...]
    swaps: tuple[Question, ...]
    before: tuple[Instance, ...] = ()

    @property
    def unconfirmed(self) -> list[tuple[bytes, int]]:
        """The messages that stay on rows until the broker has confirmed them, each named by its instance's id (as bytes) and its
        sequence: the note that the transaction writes lists them.
        """
        return [(each.instance.bytes, each.sequence) for each in self.said if each.sequence is not None]


def decide(
    rows: Mapping[InstanceId, Instance],
    inputs: Sequence[Input],
    now: datetime,
    rules: ConductorRules,
    hosts: HostStates = ALL_UP,
    *,
    draw: DrawId,
) -> Decision:
    """Decide what follows from these inputs. `rows` has all existing rows of the instances that the inputs name. `draw` draws
    the ids of new consumers.
    """
    # By ids as integers, since Python computes the hash of a UUID at each lookup.
    known = {row.id.int: row for row in rows.values()}
    changed: dict[int, Instance] = {}
    unchanged: dict[int, Instance] = {}
    over: dict[int, InstanceId] = {}
    # A message is sent once, however often the batch repeats it.
    said: dict[tuple[int, int], DecidedMessage] = {}
    swaps: list[Question] = []
    for cause, each in enumerate(inputs):
        number = each.instance.int
        before = changed.get(number) or known.get(number) or _new_row(each, now)
        if before is None:
            said |= _answers_without_row(each, cause, rules)
            continue
        transition = Transition(before, now, rules, draw, hosts)
        swaps += _apply(transition, each)
        if transition.row.cleanups:
            _end_cleanups_of_dead_hosts(transition)
        row = transition.row
        if row is not before:
            changed[number] = row
            unchanged.setdefault(number, before)
        if transition.is_over:
            over[number] = row.id
        # A repeated message has only the unconfirmed messages sent again.
        is_repeated = row is before and not isinstance(each, (Due, SwapAnswered, HostsLost, RowGivenUp))
        for pending in row.outbox if is_repeated else transition.said:
            said.setdefault(
                (number, pending.sequence), DecidedMessage(row.id, pending.sequence, pending.message, cause)
            )
        for answer in transition.answers:
            said.setdefault((number, -answer.attempt), DecidedMessage(row.id, None, answer, cause))
    return Decision(
        rows=tuple([row for number, row in changed.items() if number not in over]),
        forgotten=tuple(over.values()),
        said=tuple(said.values()),
        swaps=tuple(swaps),
        before=tuple([row for number, row in unchanged.items() if number not in over]),
    )


def _new_row(each: Input, now: datetime) -> Instance | None:
    """A row for an instance that has none yet, if this message may be the first about it."""
    match each:
        case RowGivenUp(order=PlaceInCell() as order):
            return _new_row(order, now)
        case PlaceInCell() | RemoveFromCell():
            # Also an order to take it over, or to give it back.
            return Instance(id=each.instance, request_id=each.request_id, state="unknown", changed_at=now)
        case _:
            return None


def _answers_without_row(
    each: Input, cause: int, rules: ConductorRules
) -> dict[tuple[int, int], DecidedMessage]:
    """Order a host to remove what it has built for an instance that has no row: nothing waits for it."""
    if not isinstance(each, InstanceSpawned | DeployProgressed) or _is_at_rest(each):
        return {}
    kind = each.kind if isinstance(each, InstanceSpawned) else NODE
    order = destroy_order(rules.cell, each.instance, each.attempt, each.host, kind)
    return {(each.instance.int, -each.attempt): DecidedMessage(each.instance, None, order, cause)}


def _apply(transition: Transition, each: Input) -> tuple[Question, ...]:
    if isinstance(each, Due):
        return _on_due(transition)
    _STEPS[type(each)](transition, each)
    return ()


def _on_place(transition: Transition, order: PlaceInCell) -> None:
    row = transition.row
    if row.order is not None:
        return
    # As `continue_from`, in one copy of the row.
    transition.change(
        sequence=max(row.sequence, order.sequence),
        order=order,
        attempt=order.attempt,
        host=order.chosen,
        alternates=order.alternates,
    )
    if row.state in ("deleting", "deleted"):
        # The delete overtook the order. Nothing was built, but the claim is held.
        transition.release((HeldClaim(row.id, order.attempt),))
        if row.state == "deleting":
            transition.end_deleted()
    elif why := transition.why_not_begun(order.ends_by):
        transition.release((HeldClaim(row.id, order.attempt),))
        transition.end_in_error(why)
    elif why := transition.hosts.why_lost(order.chosen):
        leave_unbuilt(transition, why)
    else:
        transition.spawn()


def _on_given_up(transition: Transition, given_up: RowGivenUp) -> None:
    row, order = transition.row, given_up.order
    if order is not None:
        # It ends as one that comes too late.
        transition.given_up = given_up.reason
        _STEPS[type(order)](transition, order)
    elif row.state in ("building", "swapping"):
        transition.free_share()
        end_unbuilt(transition, given_up.reason)
    elif row.due_at is not None:
        transition.change(state_ends_at=transition.now + GIVEN_UP_RESTS, remind_at=None)


def _on_remove(transition: Transition, order: RemoveFromCell) -> None:
    state = transition.row.state
    if state in ("deleting", "deleted"):
        return
    transition.continue_from(order.sequence)
    if isinstance(order, GiveBackInCell):
        transition.change(given_back=True)
    # If it is unknown, the order to place it has not arrived yet, and will be answered as too late.
    if state not in ("unknown", "error", "offloaded"):
        transition.leave_group(HeldClaim(transition.row.id, transition.row.last_attempt))
    # An attempt that no host has, so that nothing waits for the answer.
    transition.forget_saved(transition.row.last_attempt + 1)
    if transition.row.moving is not None:
        free_both_hosts(transition)
    elif state != "unknown" and transition.free_share():
        transition.end_deleted()
        return
    transition.wait_for_destroy()


def _on_spawned(transition: Transition, spawned: InstanceSpawned) -> None:
    row = transition.row
    if row.moving is not None and on_moving_spawned(transition, spawned):
        return
    if not row.is_current(spawned.attempt, spawned.host):
        transition.answer_by_destroy(
            spawned.attempt, spawned.host, spawned.kind or kind_of(row, spawned.host)
        )
    elif row.state == "building":
        if row.saved:
            note_unshelved(transition)
        transition.end_as("active", outbox=transition.outbox_without(SPAWNS, spawned.attempt))
    elif spawned.number > row.gone_or_back and transition.host.kind == NODE:
        _on_node_back(transition, spawned.number)


def _on_node_back(transition: Transition, number: int) -> None:
    """The node of a bare-metal instance was said to be gone, and is not. While a rebuild is still asked for, its answer
    says how the instance is.
    """
    row = transition.row
    transition.change(gone_or_back=number)
    if row.state == "broken" and row.state_ends_at is None:
        transition.end_as("active", reason="")


def _on_stopped(transition: Transition, stopped: InstanceStopped) -> None:
    if stopped.by_itself:
        _on_stopped_by_itself(transition, stopped)
    else:
        on_stopped(transition, stopped)


def _on_stopped_by_itself(transition: Transition, word: InstanceStopped) -> None:
    """Note that an instance which ran has stopped without an order. What ran was built, so this also answers such an order."""
    ran = InstanceSpawned(
        cell=word.cell, instance=word.instance, attempt=word.attempt, host=word.host, number=word.number
    )
    _on_spawned(transition, ran)
    row = transition.row
    if not row.is_current(word.attempt, word.host):
        return
    if row.state == "active":
        transition.end_as("stopped", reason=word.by_itself)
    elif row.moving is not None and row.state == "moved":
        # It ends its move as one that was stopped before.
        transition.change(moving=structs.replace(row.moving, was="stopped"))


def _on_progressed(transition: Transition, progressed: DeployProgressed) -> None:
    """Go on waiting for a bare-metal node that reports progress, or end its work if nothing waits for that.

    Only nodes report progress, since their work takes long.
    """
    row = transition.row
    if progressed.at_rest:
        if row.is_current(progressed.attempt, progressed.host) and row.state == "active":
            transition.end_as("active", reason=progressed.words, changed_at=row.changed_at)
    elif not row.is_current(progressed.attempt, progressed.host):
        transition.answer_by_destroy(progressed.attempt, progressed.host, NODE)
    elif row.state == "building":
        transition.withdraw(SPAWNS, attempt=progressed.attempt)
        transition.wait_longer(transition.order.ends_by)
    elif row.state == "rebuilding":
        # It may be about an earlier rebuild, so it does not prove that this order has arrived.
        transition.wait_longer(transition.rebuild.ends_by)


def _is_at_rest(each: Input) -> bool:
    """Whether this only says how an active instance is: it is no reason to destroy one of which this cell knows nothing, since its
    database may have been restored.
    """
    if isinstance(each, InstanceSpawned):
        # Of a node that is back.
        return each.kind == NODE and each.number > 0
    return isinstance(each, DeployProgressed) and each.at_rest


def _on_spawn_failed(transition: Transition, failed: SpawnFailed) -> None:
    if transition.row.moving is not None:
        on_moving_failed(transition, failed)
    elif not transition.row.is_current(failed.attempt, failed.host):
        return
    elif transition.row.state == "building":
        transition.withdraw(SPAWNS, attempt=failed.attempt)
        leave_host(transition, failed.reason, was_silent=False)
    elif transition.host.kind == NODE and failed.number:
        _on_node_gone(transition, failed)
    else:
        on_adoption_failed(transition, failed)


def _on_node_gone(transition: Transition, gone: SpawnFailed) -> None:
    """The bare-metal node does not exist any more. If that was a mistake, the instance is still there: its share stays."""
    row = transition.row
    if gone.number <= row.gone_or_back:
        return
    transition.change(gone_or_back=max(row.gone_or_back, gone.number))
    if row.state == "active":
        transition.end_broken(gone.reason)


def _on_swap_answered(transition: Transition, answered: SwapAnswered) -> None:
    if transition.row.moving is not None:
        on_move_swap_answered(transition, answered)
    else:
        on_swap_answered(transition, answered)


def _on_host_lost(transition: Transition, _: HostsLost) -> None:
    """Give up the host that must do the instance's next step, if it is lost.

    Unless the host is dead, it may still have something of its attempt.
    """
    host = awaited(transition.row)
    if host is None or not (why := transition.hosts.why_lost(host)):
        return
    match transition.row.state:
        case "building":
            leave_host(transition, why, was_silent=True)
        case "rebuilding":
            leave_rebuild(transition, why)
        case _:
            # As if the time of its step were up.
            on_move_time_up(transition)


def _end_cleanups_of_dead_hosts(transition: Transition) -> None:
    """End the cleanups on dead hosts: nobody waits for a dead host to clean up. Another one removes the images."""
    for cleanup in transition.row.cleanups:
        if transition.hosts.is_dead(cleanup.host):
            _on_clean(transition, cleanup.attempt, cleanup.host)
            if cleanup.saved_until:
                transition.remove_images(cleanup.attempt, Saves(cleanup.saved_until, cleanup.host))


def _on_destroyed(transition: Transition, destroyed: InstanceDestroyed) -> None:
    _on_clean(transition, destroyed.attempt, destroyed.host)


def _on_clean(transition: Transition, attempt: int, host: ProviderId) -> None:
    """End the cleanup of this attempt, since nothing of it is left on the host, and release the claims that waited for
    that.
    """
    row = transition.row
    done = [each for each in row.cleanups if (each.attempt, each.host) == (attempt, host)]
    if not done:
        return
    claims = tuple(claim for each in done for claim in each.release)
    others = _with_claims_at(host, tuple(each for each in row.cleanups if each not in done), claims)
    transition.change(cleanups=others, remind_at=row.remind_at if others else None)
    transition.withdraw(ORDERS, attempt=attempt)
    free = [claim for claim in claims if not any(claim in each.release for each in others)]
    transition.release(free)
    own = next((claim for claim in free if claim.consumer == row.id), None)
    if own is not None:
        _on_own_share_free(transition, own.attempt)
    elif row.state == "moving" and row.host_attempt == attempt:
        on_moving_destroyed(transition)


def _on_own_share_free(transition: Transition, attempt: int) -> None:
    row = transition.row
    if row.state == "deleting":
        transition.end_deleted()
    elif row.state == "offloaded":
        transition.hold_nothing(attempt)
        transition.end_offloaded()
    elif row.moving is not None and row.moving.step == "freeing":
        end_freed(transition)


def _with_claims_at(
    host: ProviderId, cleanups: tuple[Cleanup, ...], claims: tuple[HeldClaim, ...]
) -> tuple[Cleanup, ...]:
    """These cleanups of an instance, of which each one on this host now also releases these claims when it ends; but not one
    that only removes images (`saved_until`).

    After a resize in place, a host may have to destroy two attempts of an instance. Nothing is free there before both
    are gone. So when one cleanup has ended, its claims wait for the other.
    """
    return tuple(
        structs.replace(each, release=tuple(dict.fromkeys((*each.release, *claims))))
        if each.host == host and (each.release or not each.saved_until)
        else each
        for each in cleanups
    )


def _on_due(transition: Transition) -> tuple[Question, ...]:
    row, now = transition.row, transition.now
    if row.remind_at is not None and row.remind_at <= now:
        for cleanup in row.cleanups:
            # The unconfirmed order may have arrived long ago at a host that was silent then: send a new one.
            transition.withdraw(DESTROYS, attempt=cleanup.attempt)
            transition.destroy(cleanup.attempt, cleanup.host, cleanup.saved_until)
        transition.change(remind_at=now + transition.rules.remind_every)
    if row.state_ends_at is None or row.state_ends_at > now:
        return ()
    if row.moving is not None:
        return on_move_time_up(transition)
    match row.state:
        case "building" | "swapping":
            return _on_time_up(transition)
        case "rebuilding" | "broken":
            on_rebuild_time_up(transition)
        case "deleting":
            _on_delete_unanswered(transition)
        case "deleted":
            # A host that must still clean up, or an unconfirmed message, needs the row when the answer comes.
            transition.is_over = not (row.cleanups or row.outbox)
            transition.change(state_ends_at=now + transition.rules.kept_after_end)
        case "active" | "moving" | "moved" | "stopped" | "shelved" | "offloaded" | "error" | "unknown":
            transition.change(state_ends_at=None)
    return ()


def _on_delete_unanswered(transition: Transition) -> None:
    """End a delete that the host has not confirmed in time. If the host may still have the instance, its share stays
    held.
    """
    host = transition.row.host
    if host is not None:
        transition.end_deleted(
            f"{host.name} has not confirmed that it is gone, and keeps its share until it does"
        )
        return
    # The scheduler may have died before it sent the order. If the order still comes, its claim is released then.
    transition.release((HeldClaim(transition.row.id, FIRST_ATTEMPT),))
    transition.end_deleted("it never came to its cell")


def _on_time_up(transition: Transition) -> tuple[Question, ...]:
    row = transition.row
    if transition.now >= row.ends_by:
        if row.state == "building":
            transition.failed(
                transition.host.name, "not built by the deadline of the request", attempt=row.attempt
            )
        transition.free_share()
        end_unbuilt(transition, "the time of the request is up")
        return ()
    if row.state == "building":
        leave_host(transition, transition.why_silent(), was_silent=True)
    if transition.row.state == "swapping":
        pass_over_lost(transition)
        end_if_none_left(transition)
    row = transition.row
    return (next_swap(transition),) if row.state == "swapping" and row.alternates else ()


# What each input but a timeout does to its instance. A table, since to compare with one class after the other took as long as the step.
_STEPS: Mapping[type[Input], Callable[[Transition, Any], None]] = {
    PlaceInCell: _on_place,
    AdoptInCell: on_adopt,
    RemoveFromCell: _on_remove,
    GiveBackInCell: _on_remove,
    RebuildInCell: on_rebuild,
    MoveInCell: on_move,
    EndMoveInCell: on_end_move,
    MoreAlternates: on_more_alternates,
    InstanceSpawned: _on_spawned,
    SpawnFailed: _on_spawn_failed,
    InstanceDestroyed: _on_destroyed,
    DeployProgressed: _on_progressed,
    InstanceRedeployed: on_redeployed,
    InstanceStopped: _on_stopped,
    SwapAnswered: _on_swap_answered,
    HostsLost: _on_host_lost,
    RowGivenUp: _on_given_up,
}
assert {*_STEPS, Due} == {*get_args(Input)}, "each input has its step"
