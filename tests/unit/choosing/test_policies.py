"""Which hosts are best, by the name of a policy; and the usual shapes, by which `fit` decides."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec import structs

from engine.choosing.choosing import Chosen, choose
from engine.choosing.plugin_settings import PluginSettings, chosen_plugins
from engine.hosts import Aggregate, problem_of
from engine.inventories import InventoryState, ProviderState
from engine.picture.picture import Picture
from engine.picture.usual import CLASSES_MAX, COUNTED_MAX, HALVED_AT, SHAPES_MAX, SHARES, Amounts, UsualShapes
from engine.requests import InstanceSpec
from tests.contracts.placement_orders import aggregate
from tests.unit.choosing.scheduler_worlds import a_picture, a_state
from tests.unit.choosing.test_scheduler_requests import a_build, the_rejection, the_spec

if TYPE_CHECKING:
    from engine.candidates.columns import Ints

SMALL = InstanceSpec(amounts=(("MEMORY_MB", 1024), ("VCPU", 1)))
LARGE = InstanceSpec(amounts=(("MEMORY_MB", 8192), ("VCPU", 8)))
FULL, EMPTY = "full", "empty"


def a_host(name: str, vcpus: int, memory_mb: int, **more: Any) -> ProviderState:
    inventories = {"VCPU": InventoryState(total=vcpus), "MEMORY_MB": InventoryState(total=memory_mb)}
    return a_state(name, inventories, **more)


def two_hosts(**of_empty: Any) -> Picture:
    """On the full one a large instance has no room any more."""
    return a_picture(a_host(FULL, 7, 8000), a_host(EMPTY, 32, 64_000, **of_empty))


def chosen_in(picture: Picture, spec: InstanceSpec = SMALL, **settings: Any) -> str:
    for each in (SMALL, LARGE):
        picture.usual.note(each.amounts)
    (found,) = choose(picture, [spec], chosen_plugins(PluginSettings(**settings)), 1)
    assert isinstance(found, Chosen)
    return found.choice.name


@pytest.mark.parametrize(("policy", "name"), [("spread", EMPTY), ("fill", FULL), ("fit", FULL)])
def test_a_cloud_has_one_policy(policy: str, name: str) -> None:
    assert chosen_in(two_hosts(), policy=policy) == name


def test_without_a_word_a_cloud_spreads() -> None:
    assert chosen_in(two_hosts()) == EMPTY


@pytest.mark.parametrize(("policy", "name"), [("spread", EMPTY), ("fill", FULL), ("fit", FULL)])
def test_a_request_names_another_one(policy: str, name: str) -> None:
    spec = the_spec(a_build({"moor:policy": policy}))
    assert spec.policy == policy

    assert chosen_in(two_hosts(), structs.replace(SMALL, policy=policy)) == name
    assert chosen_in(two_hosts(), structs.replace(SMALL, policy=policy), policy="fill") == name


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        # The hosts of an aggregate that fills are the better the fuller they are, and others as before.
        ({"moor:policy": "fill"}, FULL),
        ({"moor:policy": "spread"}, EMPTY),
        # What an aggregate says of a weigher counts more than what it says of all.
        ({"moor:policy": "fill", "cpu_weight_multiplier": "5", "ram_weight_multiplier": "5"}, EMPTY),
        # From a cloud that we did not make.
        ({"moor:policy": "gold"}, EMPTY),
    ],
)
def test_the_hosts_of_an_aggregate_have_another_one(metadata: Mapping[str, str], name: str) -> None:
    picture = two_hosts(aggregates=(aggregate("a"),))
    picture.put_aggregates([Aggregate(id=aggregate("a"), name="a", metadata={**metadata}, sequence=1)])

    assert chosen_in(picture) == name


def test_a_request_counts_before_an_aggregate() -> None:
    picture = two_hosts(aggregates=(aggregate("a"),))
    picture.put_aggregates(
        [Aggregate(id=aggregate("a"), name="a", metadata={"moor:policy": "fill"}, sequence=1)]
    )

    assert chosen_in(picture, structs.replace(SMALL, policy="spread")) == EMPTY


def test_an_unknown_one_is_refused_by_name() -> None:
    problem = the_rejection(a_build({"moor:policy": "gold"}))
    of_aggregate = problem_of({"moor:policy": "gold"}, ())

    assert (problem.field, problem.value) == ("flavor.extra_specs.moor:policy", "gold")
    assert problem.reason == "a policy is spread, fill or fit"
    assert of_aggregate == ("metadata.moor:policy", "gold", "a policy is spread, fill or fit")


def test_fit_takes_the_host_that_is_lost_for_large_instances_already_and_not_the_one_that_is_fullest() -> (
    None
):
    """The fullest has just room for a large one; on the other, memory is short."""
    picture = a_picture(a_host("just", 8, 8192), a_host("short", 32, 3000))

    assert chosen_in(picture, policy="fill") == "just"
    assert chosen_in(picture, policy="fit") == "short"


# The usual shapes


def test_the_most_frequent_shapes_are_usual_with_their_shares() -> None:
    usual = UsualShapes()
    for number in range(SHAPES_MAX + 5):
        usual.note((("VCPU", number + 1),), 2 if number < SHAPES_MAX else 1)
    usual.note((("VCPU", 1),), 3)

    shapes = usual.all()

    assert len(shapes) == SHAPES_MAX
    assert shapes[0] == ((("VCPU", 1),), 5 / (2 * SHAPES_MAX + 3))
    assert sum(each.share for each in shapes) == pytest.approx(1)


def test_what_is_asked_for_now_counts_more_than_what_was() -> None:
    usual = UsualShapes()
    usual.note((("VCPU", 1),), HALVED_AT - 1)
    for _ in range(3):
        usual.note((("VCPU", 2),), HALVED_AT // 2)

    assert [each.amounts for each in usual.all()] == [(("VCPU", 2),), (("VCPU", 1),)]


def test_however_many_shapes_there_are_only_so_many_are_counted() -> None:
    usual = UsualShapes()
    usual.note((("VCPU", 1),), 100)
    for number in range(3 * COUNTED_MAX):
        usual.note((("VCPU", 2), ("CUSTOM_ONE", number + 1)))

    assert usual.all()[0].amounts == (("VCPU", 1),)
    assert usual.counted <= COUNTED_MAX


def test_a_flavor_of_many_classes_or_none_is_no_usual_shape() -> None:
    usual = UsualShapes()
    for count in (0, CLASSES_MAX, CLASSES_MAX + 1):
        usual.note(tuple((f"CUSTOM_{number}", 1) for number in range(count)))

    assert [len(each.amounts) for each in usual.all()] == [CLASSES_MAX]


def test_fit_without_its_weigher_is_refused() -> None:
    with pytest.raises(ValueError, match="policy is 'fit', and weighers does not name the weigher fit"):
        PluginSettings(policy="fit", weighers=("cpu", "ram"))


def test_nothing_is_lost_while_nothing_was_asked_for() -> None:
    assert UsualShapes().lost_by(SMALL.amounts, lambda _: np.zeros(3, dtype=np.int64), []) is None


def room(shapes: Sequence[tuple[Amounts, int]], free: Mapping[str, int]) -> int:
    return sum(
        share * max(0, min(free.get(resource, 0) // amount for resource, amount in amounts))
        for amounts, share in shapes
    )


@pytest.mark.parametrize("seed", range(20))
def test_what_each_host_loses_is_what_the_slow_way_finds_whatever_changed_between(seed: int) -> None:
    random = Random(seed)
    classes = ("MEMORY_MB", "PCI_DEVICE", "VCPU")
    asked: list[Amounts] = [
        tuple((resource, random.randint(1, 9)) for resource in classes if random.random() < 0.7)
        or (("VCPU", 1),)
        for _ in range(random.randint(1, 8))
    ]
    usual = UsualShapes()
    for each in asked:
        usual.note(each, random.randint(1, 5))
    shapes = [(each.amounts, round(each.share * SHARES)) for each in usual.all()]
    hosts = random.choice((1, 7, 50))
    free: dict[str, Ints] = {
        resource: np.array([random.randint(-2, 60) for _ in range(hosts)]) for resource in classes
    }
    takers: list[int] = []
    for _ in range(20):
        if random.random() < 0.5:
            # Another draft, in which anything may have changed.
            takers = []
        for _ in range(random.choice((0, 1, 3))):
            takers.append(random.randrange(hosts))
            free[random.choice(classes)][takers[-1]] = random.randint(-2, 60)
        if random.random() < 0.2:
            # Hosts that were looked at already, too.
            takers = [*takers, random.randrange(hosts)]
        amounts = random.choice(asked)
        now = [{resource: int(free[resource][host]) for resource in classes} for host in range(hosts)]
        expected = [
            room(shapes, each)
            - room(shapes, {resource: each[resource] - dict(amounts).get(resource, 0) for resource in each})
            for each in now
        ]

        lost = usual.lost_by(amounts, free.__getitem__, takers)
        there = usual.lost_there(amounts, free.__getitem__)

        assert lost is not None
        assert there is not None
        assert lost.tolist() == there.tolist() == expected
