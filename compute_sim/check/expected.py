"""What a host on which all work succeeds answers to its orders, by the rules of core/attempts.py.

Pure: it keeps one record for each attempt, as a compute does, and every work ends at once.
"""

from bus.message import Message
from bus.messages.cell import (
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    InstanceStopped,
    ReceiveInstance,
    RespawnInstance,
    SpawnFailed,
    StartInstance,
    StopInstance,
)
from compute_sim.core.attempts import (
    WELL,
    AttemptKey,
    AttemptRecord,
    HostOrder,
    Work,
    answered_again,
    begun,
    due,
    failed,
    key_of,
    next_step,
    refusal_of,
    source_key_of,
    why_not_received,
)

Answer = InstanceSpawned | SpawnFailed | InstanceDestroyed | InstanceStopped | InstanceRedeployed
ANSWERS = (InstanceSpawned, SpawnFailed, InstanceDestroyed, InstanceStopped, InstanceRedeployed)


class ExpectedAttempts:
    """The attempts that a correct compute has after the orders so far."""

    def __init__(self) -> None:
        self._records: dict[AttemptKey, AttemptRecord] = {}

    def answer_to(self, order: HostOrder) -> Answer:
        known = self._records.get(key_of(order))
        if next_step(known, order) == "refused":
            assert isinstance(order, StopInstance | StartInstance | RespawnInstance)
            return _answer(refusal_of(known, order))
        after, message = due(self._after(known, order), WELL, Work(), 0.0)
        self._records[after.key] = after
        return _answer(message)

    def _after(self, known: AttemptRecord | None, order: HostOrder) -> AttemptRecord:
        if known is not None and next_step(known, order) != "begins":
            return answered_again(known, order, 0.0)
        if isinstance(order, ReceiveInstance) and (
            why := why_not_received(self._records.get(source_key_of(order)), order)
        ):
            return failed(order, why, 0.0)
        return begun(order, Work(), 0.0)

    def all(self) -> list[AttemptRecord]:
        """Every attempt that was ordered, also those that are destroyed."""
        return [*self._records.values()]


def agrees(came: Answer, expected: Answer) -> bool:
    """Is this the expected answer? Reasons are for people: they must be there or not, whatever they say."""
    return _compared(came) == _compared(expected)


def _compared(answer: Answer) -> tuple[object, ...]:
    about = (type(answer), answer.host, answer.instance, answer.attempt)
    match answer:
        case InstanceSpawned(number=number):
            return (*about, number)
        case SpawnFailed(number=number):
            return (*about, number)
        case InstanceStopped(number=number, failure=failure, saved=saved):
            return (*about, number, bool(failure), saved)
        case InstanceRedeployed(number=number, failure=failure, is_active=is_active):
            return (*about, number, bool(failure), is_active)
        case InstanceDestroyed():
            return about


def _answer(message: Message | None) -> Answer:
    assert isinstance(message, ANSWERS)
    return message
