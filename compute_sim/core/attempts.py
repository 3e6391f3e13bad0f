"""The life of an attempt to build an instance on a host: ordered, built or failed, destroyed; and the answers.

An attempt is identified by its host, instance and number. A repeated order gets the same answer. A destroyed attempt is
never built. A host forgets attempts: all of them when it restarts, finished ones after a long time. It builds an
unknown attempt when ordered to spawn it, and confirms that it is gone when ordered to destroy it. So a spawn order that
arrives after its destroy was forgotten is built once more; the conductor, which has moved on, then orders another
destroy.
"""

from enum import Enum

from msgspec import Struct, structs

from bus.message import Message, ProviderId
from bus.messages.build import InstanceId
from bus.messages.cell import DestroyInstance, InstanceDestroyed, InstanceSpawned, SpawnFailed, SpawnInstance

# Host, instance and attempt, as integers, since Python computes the hash of a UUID at each lookup.
AttemptKey = tuple[int, int, int]


class Well(Struct, frozen=True):
    """The host works normally."""


class Silent(Struct, frozen=True):
    """The host's messages are lost; with `until_s` they are kept until then."""

    until_s: float | None = None


class Dead(Struct, frozen=True):
    """The host no longer exists."""


Condition = Well | Silent | Dead
WELL = Well()


class Work(Struct, frozen=True):
    """How far a driver's work for an attempt is: it goes on for this time at least, and `failure` says why it fails."""

    left_ms: float = 0.0
    failure: str = ""


class State(Enum):
    BUILDING = "building"
    BUILT = "built"
    FAILED = "failed"
    DESTROYED = "destroyed"

    @property
    def is_over(self) -> bool:
        return self is State.FAILED or self is State.DESTROYED


class AttemptRecord(Struct, frozen=True, gc=False):
    """An attempt on its host. Its answer is due at `due_s`; None after it was sent.

    `cause` and `trace` are those of the order that will be answered.
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


def spawning(
    order: SpawnInstance | DestroyInstance, work: Work, at_s: float, *, cause: str = "", trace: str = ""
) -> AttemptRecord:
    """A new attempt, after its driver has begun to build it."""
    return AttemptRecord(
        cell=order.cell,
        host=order.host,
        instance=order.instance,
        attempt=order.attempt,
        state=State.BUILDING,
        failure=work.failure,
        due_s=at_s + work.left_ms / 1000,
        cause=cause,
        trace=trace,
    )


def spawned_again(known: AttemptRecord, at_s: float, *, cause: str = "", trace: str = "") -> AttemptRecord:
    """A known attempt after the same order."""
    if known.state is State.BUILDING:
        return known
    return structs.replace(known, due_s=at_s, cause=cause, trace=trace)


def destroyed(
    order: DestroyInstance, work: Work, at_s: float, *, cause: str = "", trace: str = ""
) -> AttemptRecord:
    """The attempt after a destroy order: nothing of it is left when the driver's work is over."""
    return structs.replace(
        spawning(order, work, at_s, cause=cause, trace=trace), state=State.DESTROYED, failure=""
    )


def due(
    attempt: AttemptRecord, condition: Condition, work: Work, at_s: float
) -> tuple[AttemptRecord, Message | None]:
    """A due attempt after its driver was asked how far the `work` is, and its answer.

    There is no answer while the work goes on. A silent host gives none, or it is sent later.
    """
    if isinstance(condition, Dead):
        # It was lost with its host.
        return structs.replace(attempt, state=State.DESTROYED, due_s=None), None
    if work.left_ms:
        return structs.replace(attempt, due_s=at_s + work.left_ms / 1000), None
    state, failure = attempt.state, attempt.failure
    if state is State.BUILDING:
        state, failure = State.FAILED if work.failure else State.BUILT, work.failure
    until_s = condition.until_s if isinstance(condition, Silent) else None
    after = structs.replace(attempt, state=state, failure=failure, due_s=until_s)
    return after, None if isinstance(condition, Silent) else answer_of(after)


def answer_of(attempt: AttemptRecord) -> Message:
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
            raise ValueError(f"attempt {number} of {instance} is still being built and has no answer yet")
