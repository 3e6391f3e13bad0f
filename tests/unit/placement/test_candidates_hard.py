"""Questions that a search by trying everything would never answer: a mistake here makes the test hang."""

from collections.abc import Sequence

from msgspec import structs

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


def test_groups_with_too_few_devices_together_are_recognised_as_impossible() -> None:
    """Each group has eight devices to choose from; no two have the same eight, and no two devices are alike."""
    world = World()
    world.has("host")
    for number in range(24):
        world.has(f"d{number}", under="host", PGPU=1, traits=(f"CUSTOM_T{number}",))
    groups = [
        structs.replace(
            asking(f"g{number}", PGPU=1),
            required=(tuple(f"CUSTOM_T{(7 * number + 5 * step) % 24}" for step in range(8)),),
        )
        for number in range(25)
    ]

    assert world.ask(*groups, group_policy="isolate") == []
    assert len(world.ask(*groups[1:], group_policy="isolate", limit=20)) == 20


def test_as_many_groups_as_devices_give_as_many_candidates_as_are_asked_for() -> None:
    world = World()
    for name in ("h1", "h2", "h3"):
        a_host_with(world, [1] * 20, name)
    groups = [asking(f"g{number}", PGPU=1) for number in range(20)]

    told = world.ask(*groups, group_policy="isolate", limit=30)

    assert len(set(told)) == 30


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


def test_traits_that_no_three_providers_have_together_are_checked_per_tree_and_not_per_triple() -> None:
    world = World()
    world.has("host")
    for number in range(60):
        world.has(f"d{number}", under="host", A=9, B=9, C=9, traits=(f"CUSTOM_T{number % 4}",))
    required = tuple((f"CUSTOM_T{number}",) for number in range(4))

    assert world.ask(structs.replace(asking(A=1, B=1, C=1), required=required)) == []
    assert len(world.ask(structs.replace(asking(A=1, B=1, C=1), required=required[1:]), limit=9)) == 9
