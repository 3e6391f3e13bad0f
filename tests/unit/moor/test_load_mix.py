"""What `moor load --mix` may say, and the orders that follow from it."""

from collections import Counter
from uuid import UUID

import pytest

from bus.messages.build import (
    BuildInstance,
    DeleteInstance,
    InstanceActive,
    InstanceDeleted,
    InstanceEvent,
    InstanceFailed,
    InstanceState,
)
from engine.flavors import InstanceId, RequestId, instance_id_of
from engine.inventories import GroupId
from laboratory.load.orders import FLAVOR, NONE_LEFT, OrderRun, count_of, instances_of, names_for, read_mix
from laboratory.load.results import latency_of


def event(id_: InstanceId, state: str) -> InstanceEvent:
    kinds = {"active": InstanceActive, "deleted": InstanceDeleted, "error": InstanceFailed}
    now = InstanceState(id=id_, request_id=RequestId(UUID(int=1)), sequence=1, state=state, cell="c1")
    return kinds[state](cell="c1", instance=now)


def built(order: object) -> BuildInstance:
    assert isinstance(order, BuildInstance)
    return order


def ids_of(order: BuildInstance) -> list[InstanceId]:
    assert order.request_id is not None
    return [instance_id_of(order.request_id, number) for number in range(order.count)]


def test_a_mix_has_kinds_counts_shapes_and_weights() -> None:
    mix = read_mix("boot=90, boot:4x8192x40=10,multi:20:2x2048x8=1,group=5,delete=2.5,live-migrate=1")

    assert [*mix] == ["boot", "boot:4x8192x40", "multi:20:2x2048x8", "group", "delete", "live-migrate"]
    assert [each.weight for each in mix.values()] == [90, 10, 1, 5, 2.5, 1]
    assert [each.instances for each in mix.values()] == [1, 1, 20, 1, 0, 0]
    assert mix["group"].count == 3, "without a count"
    shape = mix["multi:20:2x2048x8"].shape
    assert shape is not None
    assert (shape.vcpus, shape.ram_mb, shape.disk_gb) == (2, 2048, 8)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("boot", "has 'boot', must be KIND[:COUNT][:SHAPE]=WEIGHT"),
        ("boots=1", "has 'boots' in 'boots=1', must be one of boot, multi, group, metal, delete, migrate"),
        ("boot=0", "has weight '0' in 'boot=0', must be a number above 0"),
        ("boot=nan", "has weight 'nan'"),
        ("boot=inf", "has weight 'inf'"),
        ("boot:3=1", "has '3' in 'boot:3=1', must be a shape VCPUSxRAM_MBxDISK_GB"),
        ("boot:0x1x1=1", "has '0x1x1'"),
        ("multi:0=1", "has 0 in 'multi:0=1', must be 1 to 1000"),
        ("multi:1001=1", "has 1001 in 'multi:1001=1', must be 1 to 1000"),
        ("multi:ten=1", "has 'ten' in 'multi:ten=1', must be a count of 1 to 1000"),
        ("boot=1,delete:5=1", "has '5' in 'delete:5=1', but delete has neither count nor shape"),
        ("boot=1,boot=2", "has boot twice"),
        ("delete=1", "makes no instance: one of boot, multi, group, metal must be in it"),
        ("boot=1,delete=2", "has 2 deletes for 1 instances"),
    ],
)
def test_a_wrong_mix_says_what_is_wrong_and_what_is_allowed(wrong: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"^(has|is) ") as problem:
        read_mix(wrong)
    assert said in str(problem.value)


def test_orders_come_by_weight_at_equal_distances_until_all_instances_are_made() -> None:
    mix = read_mix("boot=8,multi:10=1,delete=4")

    names = names_for(mix, 180)

    assert instances_of(mix, names) == 180
    counted = Counter(names)
    assert (counted["boot"], counted["multi:10"]) == (80, 10)
    assert counted["delete"] == pytest.approx(40, abs=4)
    assert count_of(mix, names, "delete") == counted["delete"]
    assert names.index("delete") > 0, "first there must be something to delete"
    first, second = Counter(names[: len(names) // 2]), Counter(names[len(names) // 2 :])
    assert all(abs(first[name] - second[name]) <= 2 for name in mix)


def test_a_request_for_several_ends_with_its_last_instance_and_fails_if_one_did() -> None:
    mix = read_mix("multi:3=1")
    run = OrderRun(["multi:3", "multi:3"], FLAVOR, mix=mix)
    one, other = (built(each.message) for each in run.next_orders(2))

    assert one.count == 3
    for id_ in ids_of(one)[:2]:
        run.hear(event(id_, "active"))
    assert run.ended == 0
    run.hear(event(ids_of(one)[2], "active"))
    for id_, state in zip(ids_of(other), ("active", "error", "active"), strict=True):
        run.hear(event(id_, state))

    assert (run.ended, len(run.latencies_s), len(run.booted)) == (2, 1, 6)
    assert [each.outcome for each in run.orders] == ["active", "error"]


def test_boots_of_a_shape_and_of_a_group_ask_for_them() -> None:
    mix = read_mix("boot:4x8192x40=1,group:2=1")
    group = GroupId(UUID(int=5))
    run = OrderRun(["boot:4x8192x40", "group:2"], FLAVOR, mix=mix, groups=[group])

    shaped, member = (built(each.message) for each in run.next_orders(2))

    assert shaped.flavor is not None
    assert (shaped.flavor.vcpus, shaped.flavor.ram_mb, shaped.flavor.root_gb) == (4, 8192, 40)
    assert shaped.group is None
    assert member.flavor == FLAVOR
    assert member.group is not None
    assert member.group.id == group


def test_an_order_without_an_instance_waits_for_one_while_others_go_on() -> None:
    run = OrderRun(["delete", "boot", "boot"], FLAVOR, mix=read_mix("boot=2,delete=1"))

    orders = [built(each.message) for each in run.next_orders(3)]
    assert (len(orders), run.waited) == (2, 1)
    run.hear(event(first := ids_of(orders[0])[0], "active"))

    assert [each.message for each in run.next_orders(0)] == [DeleteInstance(instance=first)]


def test_orders_end_for_which_no_instance_is_left() -> None:
    run = OrderRun(["delete", "boot"], FLAVOR, mix=read_mix("boot=1,delete=1"))
    (boot,) = run.next_orders(2)
    run.hear(event(ids_of(built(boot.message))[0], "error"))
    run.next_orders(0)

    assert run.ended == run.count == 2
    assert [each.outcome for each in run.orders] == ["error", NONE_LEFT]
    assert latency_of(run.latencies_s).max == 0


def test_what_is_on_a_node_is_neither_moved_nor_deleted() -> None:
    run = OrderRun(["metal", "delete"], FLAVOR, mix=read_mix("boot=1,metal=1,delete=1"))
    (boot,) = run.next_orders(2)

    run.hear(event(ids_of(built(boot.message))[0], "active"))

    assert run.next_orders(0) == []
    assert run.ended == run.count
