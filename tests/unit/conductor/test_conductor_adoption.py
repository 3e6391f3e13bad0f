"""An instance of another cloud in its cell: it is taken over as it is, and no message ever has its guest destroyed by mistake."""

from datetime import timedelta
from typing import get_args

import msgspec
import pytest
from msgspec import structs

from bus.messages.audit import AdoptedState
from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed, InstanceMoved
from bus.messages.cell import AdoptGuest, AdoptInCell, DestroyInstance, GiveBackInCell, LeaveGuest
from bus.messages.placement import ReleaseClaim
from cell_conductor.core.decide import Due
from cell_conductor.store_sql import decode_order, encode_order
from tests.unit.conductor.cell import (
    ONE,
    REMOVE,
    Cell,
    destroyed,
    failed,
    host,
    kinds,
    place,
    spawned,
)
from tests.unit.conductor.test_conductor_hosts import SILENT

GIVE_BACK = msgspec.convert(
    msgspec.to_builtins(structs.replace(REMOVE)) | {"type": "give_back"}, GiveBackInCell
)


def adopt(state: AdoptedState = "active", *, attempt: int = 1, reason: str = "") -> AdoptInCell:
    plain = structs.asdict(place())
    return AdoptInCell(**plain | {"attempt": attempt}, state=state, reason=reason)


@pytest.mark.parametrize("state", get_args(AdoptedState))
def test_it_is_at_once_what_it_was_and_its_host_is_told(state: AdoptedState) -> None:
    cell = Cell()

    order, told = cell.hear(adopt(state, reason="as it was" if state == "broken" else ""))

    assert isinstance(order, AdoptGuest)
    assert (order.instance, order.attempt, order.host, order.stopped) == (
        ONE,
        1,
        host("h1"),
        state != "active",
    )
    kind = {"active": InstanceActive, "broken": InstanceFailed}.get(state, InstanceMoved)
    assert isinstance(told, kind)
    assert (told.instance.state, told.instance.host) == ("error" if state == "broken" else state, "h1")
    assert cell.row.due_at is None, "nothing waits for the host"
    cell.hear(spawned(1, "h1"))
    assert cell.row.state == state


def test_a_repeated_order_has_only_what_is_not_confirmed_sent_again() -> None:
    cell = Cell()
    first = cell.hear(adopt())
    assert cell.hear(adopt()) == first
    cell.confirm_all()
    assert cell.hear(adopt()) == []


def test_a_host_that_has_no_such_guest_keeps_the_share() -> None:
    cell = Cell(adopt())

    (told,) = cell.hear(failed(1, "h1"))

    assert isinstance(told, InstanceFailed)
    assert (told.instance.state, told.instance.host, told.instance.reason) == ("error", "h1", "no image")


def test_a_silent_host_is_never_told_to_destroy_what_it_adopts() -> None:
    cell = Cell()
    cell.hear(adopt(), hosts=SILENT)
    cell.now += timedelta(days=1)
    said = cell.hear(Due(ONE), hosts=SILENT)

    assert not [each for each in said if isinstance(each, DestroyInstance)]
    assert cell.row.state == "active"


def test_given_back_its_host_forgets_it_and_its_share_is_free() -> None:
    cell = Cell(adopt(), spawned(1, "h1"))
    cell.confirm_all()

    (order,) = cell.hear(GIVE_BACK)
    assert order == LeaveGuest(cell="c1", instance=ONE, attempt=1, host=host("h1"))
    said = []
    for word in (Due(ONE), spawned(1, "h1"), destroyed(1, "h1"), spawned(1, "h1")):
        # The host is silent for so long that it is reminded, and the delete is told without it.
        cell.now += timedelta(hours=1)
        said += cell.hear(word)

    assert not [each for each in said if isinstance(each, DestroyInstance)]
    assert LeaveGuest in kinds(said)
    assert InstanceDeleted in kinds(said)
    assert {each.consumer for each in said if isinstance(each, ReleaseClaim)} == {ONE}


def test_given_back_it_may_come_again_by_a_later_attempt() -> None:
    cell = Cell(adopt(), GIVE_BACK, destroyed(1, "h1"))
    cell.confirm_all()
    assert cell.hear(adopt()) == []

    order, told = cell.hear(adopt(attempt=2))

    assert isinstance(order, AdoptGuest)
    assert order.attempt == 2
    assert isinstance(told, InstanceActive)
    assert not cell.row.given_back


def test_deleted_by_its_user_it_is_destroyed_like_any_other() -> None:
    cell = Cell(adopt(), spawned(1, "h1"))

    assert DestroyInstance in kinds(cell.hear(REMOVE))


def test_deleted_before_the_order_arrives_it_is_adopted_and_then_destroyed() -> None:
    cell = Cell(REMOVE)

    assert kinds(cell.hear(adopt())) == [AdoptGuest, DestroyInstance]


def test_the_order_is_read_as_it_was_written() -> None:
    for order in (adopt("shelved"), place("h2")):
        assert decode_order(encode_order(order)) == order
