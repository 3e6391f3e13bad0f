"""The orders of `moor load`, and what it counts as their ends."""

from collections import Counter
from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    InstanceActive,
    InstanceDeleted,
    InstanceState,
    Move,
)
from bus.messages.moves import MoveInstance
from engine.flavors import InstanceId, RequestId, instance_id_of
from laboratory.load.orders import FLAVOR, Boot, OrderRun, figures_of, mix_of

IDS = [InstanceId(UUID(int=number)) for number in range(1, 5)]
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def active(id_: InstanceId, order: MoveInstance | None = None, outcome: str = "") -> InstanceActive:
    """The instance runs, maybe after this move."""
    state = InstanceState(id=id_, request_id=RequestId(UUID(int=1)), sequence=1, state="active", cell="c1")
    if order is not None:
        move = Move(request_id=order.request_id, number=1, kind=order.kind, source="h1", ends_by=NOON)
        state = structs.replace(state, move=structs.replace(move, outcome=outcome))
    return InstanceActive(cell="c1", instance=state)


def deleted(id_: InstanceId) -> InstanceDeleted:
    return InstanceDeleted(cell="c1", instance=structs.replace(active(id_).instance, state="deleted"))


def a_run(moves: int, *ids: InstanceId) -> OrderRun:
    return OrderRun(mix_of(moves), FLAVOR, {id_: Boot(FLAVOR, state=active(id_).instance) for id_ in ids})


def orders_of(run: OrderRun, count: int) -> list[Message]:
    return [each.message for each in run.next_orders(count)]


def a_move(run: OrderRun) -> MoveInstance:
    (order,) = orders_of(run, 1)
    assert isinstance(order, MoveInstance)
    return order


def outcomes(run: OrderRun) -> Counter[tuple[str, str]]:
    return Counter((each.kind, each.outcome) for each in run.orders)


def test_a_boot_and_a_delete_follow_each_round_of_moves() -> None:
    assert mix_of(4) == ["migrate", "live-migrate", "resize", "boot", "delete", "migrate"]
    assert mix_of(0) == []


def test_each_order_takes_the_instance_that_rests_longest_and_waits_for_one() -> None:
    run = a_run(4, *IDS[:2])

    first, second, boot = orders_of(run, 10)
    assert isinstance(boot, BuildInstance), "a boot needs no instance"
    assert isinstance(first, MoveInstance)
    assert isinstance(second, MoveInstance)
    assert (first.kind, first.instance) == ("migrate", IDS[0])
    assert (second.kind, second.instance) == ("live-migrate", IDS[1])
    assert orders_of(run, 10) == [], "both instances move"

    run.hear(active(IDS[1], second, "confirmed"))
    (resize,) = orders_of(run, 10)
    assert isinstance(resize, MoveInstance)
    assert (resize.kind, resize.instance) == ("resize", IDS[1])


def test_a_move_ends_with_its_own_outcome_and_a_resize_changes_the_flavor_only_if_it_is_confirmed() -> None:
    run = a_run(6, IDS[0])

    moves = []
    for _ in range(2):
        moves.append(move := a_move(run))
        run.hear(active(IDS[0], move))
        assert run.ended == len(run.orders) - 1, "it still moves"
        run.hear(active(IDS[0], move, "confirmed"))
    failing = a_move(run)
    run.hear(active(IDS[0], moves[-1], "confirmed"))
    assert run.ended == 2, "the move before it is told once more"
    run.hear(active(IDS[0], failing, "failed"))

    assert failing.kind == "resize"
    assert run.instances[IDS[0]].flavor == FLAVOR
    assert outcomes(run) == {
        ("migrate", "confirmed"): 1,
        ("live-migrate", "confirmed"): 1,
        ("resize", "failed"): 1,
    }


def test_a_second_resize_brings_the_first_flavor_back() -> None:
    run = a_run(6, IDS[0], IDS[1])
    resized = []
    while run.ended < run.count:
        (order,) = orders_of(run, 1)
        match order:
            case MoveInstance(flavor=None):
                run.hear(active(order.instance, order, "confirmed"))
            case MoveInstance():
                run.hear(active(order.instance, order, "confirmed"))
                resized.append((order.instance, run.instances[order.instance].flavor.vcpus))
            case DeleteInstance():
                run.hear(deleted(order.instance))
            case BuildInstance():
                assert order.request_id is not None
                run.hear(active(instance_id_of(order.request_id, 0)))

    assert resized == [(IDS[0], 2), (IDS[0], 1)]


def test_a_boot_ends_once_active_or_in_error_and_a_rejected_one_ends_the_run() -> None:
    run = OrderRun(["boot"] * 3, FLAVOR)
    first, second, third = (
        each.request_id for each in orders_of(run, 3) if isinstance(each, BuildInstance) and each.request_id
    )
    for request in (first, first, second):
        run.hear(active(instance_id_of(request, 0)))

    assert (run.sent, run.ended) == (3, 2)
    assert outcomes(run) == {("boot", "active"): 2, ("boot", ""): 1}
    with pytest.raises(RuntimeError, match="a request was rejected"):
        run.hear(BuildRejected(request_id=third, field="flavor", value="", reason="it has none"))


def test_a_refused_order_leaves_its_instance_as_it_was() -> None:
    run = a_run(1, IDS[0])
    order = a_move(run)

    run.hear(BuildRejected(request_id=order.request_id, field="instance", value="", reason="it is building"))

    assert run.ended == run.count == 1
    assert outcomes(run) == {("migrate", "rejected"): 1}


def test_a_deleted_instance_takes_no_further_order_and_the_boots_before_stay_as_they_were() -> None:
    boots = {id_: Boot(FLAVOR, state=active(id_).instance) for id_ in IDS}
    run = OrderRun(mix_of(6), FLAVOR, boots)
    *_, delete = orders_of(run, 5)
    assert isinstance(delete, DeleteInstance)

    run.hear(gone := deleted(delete.instance))

    assert [type(each) for each in orders_of(run, 1)] == [BuildInstance], "all others move"
    assert run.instances[delete.instance].state == gone.instance
    assert boots[delete.instance].state == active(delete.instance).instance


def test_each_kind_has_its_number_rate_outcomes_and_the_latency_of_what_succeeded() -> None:
    run = a_run(2, *IDS[:2])
    for order in orders_of(run, 2):
        assert isinstance(order, MoveInstance)
        run.hear(active(order.instance, order, "confirmed" if order.kind == "migrate" else "failed"))
    for each in run.orders:
        each.due_s, each.ended_s = 1.0, 1.5

    told = figures_of(run.orders, seconds=2.0)

    assert told["migrate"].outcomes == {"confirmed": 1}
    assert (told["migrate"].count, told["migrate"].per_s, told["migrate"].latency_ms.p50) == (1, 0.5, 500.0)
    assert told["live-migrate"].outcomes == {"failed": 1}
    assert told["live-migrate"].latency_ms.p50 == 0.0
