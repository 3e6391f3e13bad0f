"""What becomes of an attempt to have an instance on a host: ordered, built or failed, destroyed, and what is said of it.

An attempt is known by its host, its instance and its number. Once known, the same order gets the same answer; once
destroyed, it is never built. An attempt that is not known (a host that was restarted has forgotten everything, and so
has one after a long time) is built when it is to be spawned, and confirmed gone when it is to be destroyed. A spawn that
comes so late that its destroy is forgotten is built once more; its conductor has superseded it, and answers with another
destroy.
"""

from enum import Enum

from msgspec import Struct, structs

from bus.message import Message, ProviderId
from bus.messages.build import InstanceId
from bus.messages.cell import DestroyInstance, InstanceDestroyed, InstanceSpawned, SpawnFailed, SpawnInstance
from compute_sim.core.faults import Condition, Dead, Fate, Silent

# Host, instance and attempt: as whole numbers, since a UUID is hashed in Python each time it is looked up.
AttemptKey = tuple[int, int, int]


class State(Enum):
    BUILDING = "building"
    BUILT = "built"
    FAILED = "failed"
    DESTROYED = "destroyed"

    @property
    def is_over(self) -> bool:
        return self is State.FAILED or self is State.DESTROYED


class Attempted(Struct, frozen=True, gc=False):
    """An attempt on its host. At `due_s` it is to be said what became of it; None when that was said.

    `cause` and `trace` are those of the order that the answer will be to.
    """

    cell: str
    host: ProviderId
    instance: InstanceId
    attempt: int
    state: State
    failure: str = ""
    due_s: float | None = None
    cause: str = ""
    trace: str = ""

    @property
    def key(self) -> AttemptKey:
        return (self.host.int, self.instance.int, self.attempt)


def key_of(order: SpawnInstance | DestroyInstance) -> AttemptKey:
    return (order.host.int, order.instance.int, order.attempt)


def spawned(
    known: Attempted | None,
    order: SpawnInstance,
    fate: Fate,
    at_s: float,
    *,
    cause: str = "",
    trace: str = "",
) -> Attempted:
    """The attempt after it was ordered, for the first time or again."""
    if known is None:
        return Attempted(
            cell=order.cell,
            host=order.host,
            instance=order.instance,
            attempt=order.attempt,
            state=State.BUILDING,
            failure=fate.failure,
            due_s=at_s + fate.after_ms / 1000,
            cause=cause,
            trace=trace,
        )
    if known.state is State.BUILDING:
        return known
    return structs.replace(known, due_s=at_s, cause=cause, trace=trace)


def destroyed(order: DestroyInstance, at_s: float, *, cause: str = "", trace: str = "") -> Attempted:
    """Nothing of it is left, whatever there was."""
    return Attempted(
        cell=order.cell,
        host=order.host,
        instance=order.instance,
        attempt=order.attempt,
        state=State.DESTROYED,
        due_s=at_s,
        cause=cause,
        trace=trace,
    )


def due(attempt: Attempted, condition: Condition) -> tuple[Attempted, Message | None]:
    """The attempt whose time has come, and what is said of it: nothing by a silent host, or nothing yet."""
    if isinstance(condition, Dead):
        # It went down with its host.
        return structs.replace(attempt, state=State.DESTROYED, due_s=None), None
    state = attempt.state
    if state is State.BUILDING:
        state = State.FAILED if attempt.failure else State.BUILT
    until_s = condition.until_s if isinstance(condition, Silent) else None
    after = structs.replace(attempt, state=state, due_s=until_s)
    return after, None if isinstance(condition, Silent) else answer_of(after)


def answer_of(attempt: Attempted) -> Message:
    cell, instance, number, host = attempt.cell, attempt.instance, attempt.attempt, attempt.host
    match attempt.state:
        case State.BUILT:
            return InstanceSpawned(cell=cell, instance=instance, attempt=number, host=host)
        case State.FAILED:
            return SpawnFailed(
                cell=cell, instance=instance, attempt=number, host=host, reason=attempt.failure
            )
        case State.DESTROYED:
            return InstanceDestroyed(cell=cell, instance=instance, attempt=number, host=host)
        case State.BUILDING:
            raise ValueError(f"attempt {number} of {instance} is being built: there is nothing to say yet")
