"""What `moor host drain` and `moor evacuate` do when their time is up."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from bus.message import Message
from bus.messages.build import (
    AskInstances,
    BuildRejected,
    InstanceId,
    InstancesFound,
    InstanceState,
    RequestId,
)
from bus.messages.moves import MoveInstance
from moor.instances.emptying import Emptied, empty

pytestmark = pytest.mark.asyncio


class Asking:
    """A client of a host with three instances. Each of its moves is refused."""

    def __init__(self) -> None:
        self.ordered: list[MoveInstance] = []

    async def ask(self, question: Message) -> Message:
        assert isinstance(question, AskInstances)
        return InstancesFound(
            instances=tuple(
                InstanceState(
                    id=InstanceId(UUID(int=number)),
                    request_id=RequestId(UUID(int=100)),
                    sequence=1,
                    state="active",
                    cell="c1",
                    host="h1",
                    attempt=1,
                )
                for number in (1, 2, 3)
            )
        )

    async def ask_all(self, orders: Sequence[MoveInstance]) -> list[Message]:
        self.ordered += orders
        return [
            BuildRejected(request_id=each.request_id, field="", value="", reason="no host has room")
            for each in orders
        ]


async def emptied(asking: Asking, timeout_s: float) -> Emptied:
    return await empty(
        asking,  # type: ignore[arg-type]
        "h1",
        ("live-migrate", "migrate"),
        at_once=2,
        timeout_s=timeout_s,
        quiet=True,
    )


async def test_what_did_not_move_by_the_first_kind_is_ordered_by_the_next_one() -> None:
    asking = Asking()

    done = await emptied(asking, 1000)

    assert [each.kind for each in asking.ordered] == ["live-migrate"] * 3 + ["migrate"] * 3
    assert {each.reason for each in done.stayed} == {"no host has room"}


async def test_when_the_time_is_up_nothing_more_is_ordered_and_the_rest_says_so() -> None:
    asking = Asking()

    done = await emptied(asking, 0)

    assert asking.ordered == []
    assert {each.reason for each in done.stayed} == {"its turn did not come in time"}
    assert len(done.stayed) == 3
