"""An instance's row is written without saying anything twice, and read as it was."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import ProviderId
from bus.messages.build import Flavor, InstanceId, RequestId
from bus.messages.cell import Choice, DestroyInstance, PlaceInCell
from bus.messages.placement import ResourceAmount, ShapeSeen, Share
from cell_conductor.bodies import decoded, encoded
from cell_conductor.core.instance import Instance, Pending

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_choice(number: int) -> Choice:
    host = ProviderId(UUID(int=number))
    amounts = (ResourceAmount(provider=host, resource="VCPU", amount=2),)
    share = Share(host=host, amounts=amounts, shapes=(ShapeSeen(root=host, shape=number),))
    return Choice(name=f"host-{number}", share=share)


CHOSEN, FIRST, SECOND, ELSEWHERE = map(a_choice, range(1, 5))
ORDER = PlaceInCell(
    cell="c1",
    instance=InstanceId(UUID(int=100)),
    request_id=RequestId(UUID(int=200)),
    attempt=1,
    issued_at=NOON,
    ends_by=NOON + timedelta(minutes=10),
    flavor=Flavor(vcpus=2),
    chosen=CHOSEN,
    alternates=(FIRST, SECOND),
)
NEWCOMER = Instance(id=ORDER.instance, request_id=ORDER.request_id, state="deleting", changed_at=NOON)
PLACED = structs.replace(
    NEWCOMER, state="building", order=ORDER, attempt=1, host=CHOSEN, alternates=(FIRST, SECOND)
)
DESTROY = DestroyInstance(cell="c1", instance=ORDER.instance, attempt=1, host=CHOSEN.share.host)


@pytest.mark.parametrize(
    "row",
    [
        NEWCOMER,
        PLACED,
        structs.replace(PLACED, host=SECOND, alternates=()),
        structs.replace(PLACED, host=FIRST, alternates=(SECOND,), outbox=(Pending(101, NOON, DESTROY),)),
        structs.replace(PLACED, host=ELSEWHERE, alternates=(SECOND, ELSEWHERE)),
        structs.replace(PLACED, host=structs.replace(CHOSEN, name="renamed")),
    ],
    ids=[
        "no order",
        "as chosen",
        "the last alternate",
        "with words",
        "what was not chosen",
        "a choice renewed",
    ],
)
def test_what_is_read_is_what_was_written(row: Instance) -> None:
    assert decoded(*encoded(row)) == row


def test_the_choices_of_the_order_are_written_once() -> None:
    body, _ = encoded(PLACED)

    for choice in (CHOSEN, FIRST, SECOND):
        assert body.count(choice.name.encode()) == 1
