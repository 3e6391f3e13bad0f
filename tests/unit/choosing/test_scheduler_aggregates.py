"""Which metadata of aggregates is refused, and how instances are spread over zones and racks."""

from collections import Counter
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.hosts import SetAggregate
from engine.choosing.choosing import Chosen, choose
from engine.choosing.plugins import multiplier_key
from engine.choosing.weighers import Spread
from engine.hosts import Aggregate, AggregateProblem
from engine.inventories import AggregateId
from engine.picture.picture import Picture
from scheduler_worker.core.aggregates import KeptAggregate, changed
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_host, a_spec, a_state, vcpus

MULTIPLIERS = [multiplier_key(each) for each in standard_plugins().weighers]
RACK = AggregateId(UUID(int=1))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("availability_zone", "", "a zone's name is not empty"),
        ("availability_zone", " north", "has no blanks around it"),
        ("filter_tenant_id", " , ", "it lists projects, separated by commas, and names none"),
        ("filter_tenant_id_2", "", "it lists projects"),
        ("instance_type", ",", "it lists flavors, separated by commas, and names none"),
        ("max_instances_per_host", "0", "a limit is a whole number from 1 to 1000000"),
        ("max_instances_per_host", "-1", "a limit is a whole number"),
        ("max_io_ops_per_host", "1.5", "a limit is a whole number"),
        ("max_io_ops_per_host", "٣", "a limit is a whole number"),
        ("ram_weight_multiplier", "much", "a multiplier is a number from -100000 to 100000"),
        ("ram_weight_multiplier", "nan", "a multiplier is a number"),
        ("ram_weight_multiplier", "1e6", "a multiplier is a number"),
        (
            "rum_weight_multiplier",
            "1",
            "no weigher has this multiplier; there are build_failure_weight_multiplier, ",
        ),
        ("trait:CUSTOM_GPU", "forbidden", "the only value is required"),
        ("trait:gpu", "required", "the key is trait:NAME, with a trait's name in capitals"),
    ],
)
def test_metadata_that_nothing_could_follow_is_refused(key: str, value: str, reason: str) -> None:
    order = SetAggregate(aggregate=RACK, name="rack", metadata={"row": "7", key: value})

    found = changed(order, (), MULTIPLIERS, 1)

    assert isinstance(found, AggregateProblem)
    assert found[:2] == (f"metadata.{key}", value)
    assert reason in found.reason


def test_every_weigher_has_a_multiplier_that_an_aggregate_may_override() -> None:
    order = SetAggregate(aggregate=RACK, name="rack", metadata=dict.fromkeys(MULTIPLIERS, "-2.5"))

    found = changed(order, (), MULTIPLIERS, 7)

    assert found == Aggregate(
        id=RACK, name="rack", metadata=dict.fromkeys(sorted(MULTIPLIERS), "-2.5"), sequence=7
    )
    assert {
        "cpu_weight_multiplier",
        "num_instances_weight_multiplier",
        "soft_affinity_weight_multiplier",
    } <= {*MULTIPLIERS}


def test_an_order_that_changes_nothing_leaves_the_sequence_and_any_other_is_later() -> None:
    before = KeptAggregate(id=RACK, name="rack", metadata={"row": "7"}, sequence=50)

    assert changed(SetAggregate(aggregate=RACK, metadata={"row": "7"}), (before,), (), 90) == before.told
    # A clock that was set back makes no earlier state.
    assert changed(SetAggregate(aggregate=RACK, metadata={"row": None}), (before,), (), 20) == Aggregate(
        id=RACK, name="rack", sequence=51
    )


def in_racks(zones: str, racks: str, instances: str) -> Picture:
    """One letter or digit for each host. The hosts report their zones; aggregates are their racks."""
    picture = Picture()
    ids = {rack: AggregateId(UUID(int=1 + number)) for number, rack in enumerate(sorted({*racks}))}
    picture.put_aggregates(
        Aggregate(id=id_, name=rack, metadata={"rack": rack}, sequence=1) for rack, id_ in ids.items()
    )
    for number, (zone, rack, busy) in enumerate(zip(zones, racks, instances, strict=True)):
        name = f"h{number}"
        picture.apply(
            [a_state(name, vcpus(64), aggregates=(ids[rack],), internal=1 + number, consumers=int(busy))]
        )
        picture.put_hosts([a_host(name, availability_zone=zone)])
    return picture


def chosen(picture: Picture, count: int, *keys: str) -> list[int]:
    """The numbers of the hosts."""
    plugins = structs.replace(standard_plugins(io_ops_max=0), weighers=(Spread(keys, 1000.0),))
    outcomes = choose(picture, [a_spec(1)] * count, plugins, salt=5)
    return [int(each.choice.name.removeprefix("h")) for each in outcomes if isinstance(each, Chosen)]


def test_instances_are_spread_over_zones_and_racks() -> None:
    zones, racks = "nnnnssss", "aabbccdd"
    hosts = chosen(in_racks(zones, racks, "00000000"), 16, "availability_zone", "rack")

    assert Counter(zones[each] for each in hosts) == {"n": 8, "s": 8}
    assert Counter(racks[each] for each in hosts) == dict.fromkeys("abcd", 4)


def test_with_two_keys_both_count() -> None:
    """The emptiest host is in the fullest rack."""
    picture = in_racks("nnnn", "aabb", "4011")

    assert chosen(picture, 1, "availability_zone") == [1]
    assert chosen(picture, 1, "availability_zone", "rack") in ([2], [3])
