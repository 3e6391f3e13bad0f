"""`moor events` says in a line what an event means, also where its type alone does not."""

from uuid import UUID

import pytest

from bus.messages.build import InstanceActive, InstanceMoved, InstanceState
from engine.flavors import InstanceId, RequestId
from moor.broker.messages_command import line_of


def instance(state: str) -> InstanceState:
    return InstanceState(
        id=InstanceId(UUID(int=1)),
        request_id=RequestId(UUID(int=2)),
        sequence=3,
        state=state,
        name="web",
        host="h1",
    )


@pytest.mark.parametrize("state", ["stopped", "shelved", "offloaded"])
def test_an_instance_that_was_switched_off_is_not_told_as_one_that_moved(state: str) -> None:
    line = line_of(InstanceMoved(cell="harbour", instance=instance(state)))

    assert line.endswith(f" web is {state} on h1")


def test_a_state_that_the_type_of_the_event_tells_is_not_repeated() -> None:
    line = line_of(InstanceActive(cell="harbour", instance=instance("active")))

    assert line.endswith(" web on h1")
