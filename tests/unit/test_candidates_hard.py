"""Questions that trying everything would never answer: who gets one of these wrong does not come back."""

from collections.abc import Sequence

from msgspec import structs

from tests.unit.candidate_worlds import World, asking


def a_host_with(world: World, devices: Sequence[int], name: str = "host") -> None:
    world.has(name)
    for number, total in enumerate(devices):
        world.has(f"{name}.d{number}", under=name, PGPU=total)


def test_one_group_more_than_there_are_devices_is_seen_to_be_too_many() -> None:
    world = World()
    a_host_with(world, [1] * 30)
    groups = [asking(f"g{number}", PGPU=1) for number in range(31)]

    assert world.ask(*groups, group_policy="isolate") == []
    assert world.ask(*groups, group_policy="none") == []


def test_groups_that_have_too_few_devices_between_them_are_seen_to_be_too_many() -> None:
    """Each has eight to choose from, no two the same eight, and no two devices are alike."""
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


def test_amounts_that_would_fit_as_a_sum_and_cannot_be_packed_are_given_up_once_and_not_for_each_order() -> (
    None
):
    world = World()
    a_host_with(world, [10] * 16)
    groups = [asking(f"g{number}", PGPU=6 if number < 14 else 5) for number in range(19)]

    assert world.ask(*groups, group_policy="none") == []


def test_more_groups_than_calls_may_be_nested() -> None:
    world = World()
    a_host_with(world, [2_000, 2_000])
    groups = [asking(f"g{number}", PGPU=1) for number in range(1_100)]

    assert len(world.ask(*groups, group_policy="none", limit=2)) == 2


def test_traits_that_three_givers_can_never_bear_together_are_seen_tree_by_tree_and_not_triple_by_triple() -> (
    None
):
    world = World()
    world.has("host")
    for number in range(60):
        world.has(f"d{number}", under="host", A=9, B=9, C=9, traits=(f"CUSTOM_T{number % 4}",))
    required = tuple((f"CUSTOM_T{number}",) for number in range(4))

    assert world.ask(structs.replace(asking(A=1, B=1, C=1), required=required)) == []
    assert len(world.ask(structs.replace(asking(A=1, B=1, C=1), required=required[1:]), limit=9)) == 9
