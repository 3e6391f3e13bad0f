"""When what an order began in an instance has ended, and why it has failed. Pure functions of the instance's state."""

from collections.abc import Mapping

from bus.clock import now
from bus.messages.build import InstanceState, MoveKind, RebuildInstance, RequestId
from bus.messages.moves import EndMove, MoveInstance, is_to_wait_again

# What an end is, is listed; any other state, of a later release perhaps, is none.
BUILT = ("active", "moving", "moved", "stopped", "shelved", "offloaded")
ENDED = (*BUILT, "error", "deleted")
# The states that orders to switch the power lead to.
RESULTS: Mapping[MoveKind, str] = {"stop": "stopped", "start": "active"}


def has_ended(instance: InstanceState) -> bool:
    """True if no build, rebuild or delete of the instance goes on. It may have been stopped or moved since."""
    return instance.state in ENDED


def why_not_built(instance: InstanceState) -> str:
    """Why the build failed; empty if the instance was built."""
    if instance.state in (*BUILT, "rebuilding"):
        return ""
    if instance.state in ("deleting", "deleted"):
        return "the instance was deleted"
    failures = (f"{each.host}: {each.reason}" for each in instance.failures)
    return "; ".join(filter(None, (instance.reason, *failures))) or f"the instance is {instance.state}"


def rests(state: InstanceState, move_id: RequestId) -> bool:
    """True if the move has arrived or ended, or if the instance is deleted or has another move by now."""
    if state.state in ("deleting", "deleted") or state.move is None or state.move.request_id != move_id:
        return True
    if is_to_wait_again(state, now()):
        return False
    return state.state == "moved" or bool(state.move.outcome)


def why_not_moved(state: InstanceState, order: MoveInstance | EndMove) -> str:
    """Why the order has failed. Empty if the instance arrived, or if its move was confirmed, reverted or aborted as ordered."""
    move = state.move
    if isinstance(order, MoveInstance) and RESULTS.get(order.kind) == state.state:
        # Perhaps it was so before, and there was nothing to do.
        return ""
    if move is None or move.request_id != order.request_id:
        return "another move came after this one"
    if state.state in ("deleting", "deleted"):
        return "the instance was deleted"
    if isinstance(order, EndMove):
        wanted = {"confirm": "confirmed", "revert": "reverted", "abort": "aborted"}[order.how]
        return (
            "" if move.outcome == wanted else f"the move is {move.outcome}: {move.failure or 'it came first'}"
        )
    if state.state == "moved" or move.outcome in ("confirmed", "done"):
        # One that its host could not run is in error, and the host is asked further.
        return state.reason if state.state == "error" else ""
    reasons = "; ".join([move.failure, *(f"{each.host}: {each.reason}" for each in state.failures)])
    return f"the move has {move.outcome}: {reasons}"


def why_not_rebuilt(state: InstanceState, order: RebuildInstance) -> str:
    """Why the instance was not rebuilt; empty if it has the image of this rebuild."""
    last = state.rebuild
    if last is None or last.request_id != order.request_id:
        why = "another rebuild came after this one"
    elif last.failure or state.state not in BUILT:
        why = last.failure or state.reason or f"the instance is {state.state}"
    else:
        return ""
    return f"the instance was not rebuilt from {order.image_name or (order.image.source if order.image else '')}: {why}"
