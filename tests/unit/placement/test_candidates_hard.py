"""Questions that a search by trying everything would never answer: a mistake here makes the test hang."""

from collections.abc import Sequence

from tests.unit.placement.candidate_worlds import World, asking


def a_host_with(world: World, devices: Sequence[int], name: str = "host") -> None:
    world.has(name)
    for number, total in enumerate(devices):
        world.has(f"{name}.d{number}", under=name, PGPU=total)


def test_one_group_more_than_devices_is_recognised_as_impossible() -> None:
    world = World()
    a_host_with(world, [1] * 30)
    groups = [asking(f"g{number}", PGPU=1) for number in range(31)]

    assert world.ask(*groups, group_policy="isolate") == []
    assert world.ask(*groups, group_policy="none") == []


def test_amounts_that_fit_as_a_sum_but_cannot_be_packed_are_given_up_once_and_not_for_each_order() -> None:
    world = World()
    a_host_with(world, [10] * 16)
    groups = [asking(f"g{number}", PGPU=6 if number < 14 else 5) for number in range(19)]

    assert world.ask(*groups, group_policy="none") == []


def test_more_groups_than_calls_may_be_nested() -> None:
    world = World()
    a_host_with(world, [2_000, 2_000])
    groups = [asking(f"g{number}", PGPU=1) for number in range(1_100)]

    assert len(world.ask(*groups, group_policy="none", limit=2)) == 2
