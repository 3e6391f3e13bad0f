"""The ways of one host, against the slow, obvious rule: it tries every provider for every part of a request.

Hosts are chosen if some way has room there. Each choice and each alternate is such a way, the choice the best of them. And
after a refusal another way of the host is found, if there is one by the numbers of the refusal.
"""

import random
from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from engine.choosing.choosing import WAYS_OF_ALTERNATE, choose, other_way
from engine.hosts import HostState
from engine.inventories import Choice, InventoryState, ProviderId, ProviderState
from engine.picture.picture import Picture
from engine.refusals import NoValidHost, Shortfall
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup
from tests.plugins import standard_plugins
from tests.simulation.demands import Demand, Part, Taken, Tree, has_room, tree_of, ways
from tests.unit.choosing.scheduler_worlds import a_picture

PLUGINS = standard_plugins(io_ops_max=0, instances_max=1000)
WORLDS = 300
TRAITS = ("CUSTOM_FAST", "CUSTOM_BLUE", "CUSTOM_OLD")
CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB", "PCI_DEVICE")
# The parent of each place.
LAYOUTS = ((-1,), (-1, 0), (-1, 0, 0), (-1, 0, 0, 1, 2), (-1, 0, 0, 1, 1), (-1, 0, 0, 0, 1, 2))
# So many ways of a host are looked at.
WAYS_PER_HOST = 8
Free = Mapping[tuple[ProviderId, str], int]


def test_hosts_are_chosen_where_some_way_has_room_and_get_one_of_these_ways() -> None:
    met: Counter[str] = Counter()
    for seed in range(WORLDS):
        chance = random.Random(seed)
        hosts = [a_host(chance, number) for number in range(3)]
        demand = a_demand(chance)
        trees = {host[0].id: tree_of(host) for host in hosts}
        with_room = {root for root, tree in trees.items() if has_room(demand, tree)}

        (one,) = choose(picture_of(hosts), [spec_of(demand)], PLUGINS, seed)

        if isinstance(one, NoValidHost):
            assert not with_room, f"world {seed}: refused, but {with_room} have room for {demand}"
            met["refused"] += 1
            continue
        for choice in (one.choice, *one.alternates):
            tree = trees[choice.share.host]
            assert taken_by(choice) in ways_with_room(demand, tree), f"world {seed}: {choice} for {demand}"
        others = {choice.share.host for choice in one.alternates}
        assert others == with_room - {one.choice.share.host}, f"world {seed}"
        for host in others:
            told = [taken_by(choice) for choice in one.alternates if choice.share.host == host]
            there = distinct(ways_with_room(demand, trees[host]))
            if len(list(ways(demand, trees[host]))) <= WAYS_PER_HOST:
                expected = min(len(there), WAYS_OF_ALTERNATE) if spec_of(demand).groups else 1
                assert len(distinct(told)) == len(told) == expected, f"world {seed}: {told} of {there}"
                met["alternates with two ways"] += len(told) == WAYS_OF_ALTERNATE
        met["chosen"] += 1
        met["isolated"] += demand.isolates
        met["in one subtree"] += bool(demand.same_subtree)
    assert min(met.values()) > 10, met


def test_after_a_refusal_another_way_of_the_host_is_taken_if_there_is_one() -> None:
    met: Counter[str] = Counter()
    for seed in range(WORLDS):
        chance = random.Random(seed)
        host, demand = a_host(chance, 0), a_demand(chance)
        picture, spec = picture_of([host]), spec_of(demand)
        (one,) = choose(picture, [spec], PLUGINS, seed)
        if isinstance(one, NoValidHost) or len(host) == 1:
            continue
        asked = taken_by(one.choice)
        # Placement knows of claims that the picture does not show.
        short = {key: chance.randrange(asked[key]) for key in chance.sample(sorted(asked, key=str), 1)}
        shortfalls = [
            Shortfall(provider=provider, resource=resource, asked=asked[provider, resource], free=free)
            for (provider, resource), free in short.items()
        ]

        found = other_way(picture, spec, PLUGINS, one.choice, shortfalls)

        left = ways_with_room(demand, tree_of(host), short)
        assert (found is not None) == bool(left), f"world {seed}: {found}, of {left}"
        if found is not None:
            assert taken_by(found) in left, f"world {seed}: {found}"
        met["found" if found else "none"] += 1
    assert min(met["found"], met["none"]) > 20, met


def a_host(chance: random.Random, number: int) -> list[ProviderState]:
    """A tree of random providers; the root comes first."""
    layout = chance.choice(LAYOUTS)
    ids = [ProviderId(UUID(int=100 * (number + 1) + place)) for place in range(len(layout))]
    return [
        ProviderState(
            internal=100 * (number + 1) + place,
            id=ids[place],
            name=f"host-{number}-{place}",
            root=ids[0],
            parent=ids[parent] if parent >= 0 else None,
            cell="c1",
            shape=1,
            revision=1,
            inventories={
                resource: InventoryState(total=total, used=chance.choice((0, 0, 0, 1, total)))
                for resource in CLASSES
                if chance.random() < 0.55
                for total in (chance.choice((1, 2, 4)),)
            },
            traits=tuple(sorted(trait for trait in TRAITS if chance.random() < 0.5)),
        )
        for place, parent in enumerate(layout)
    ]


def a_demand(chance: random.Random) -> Demand:
    outside = Part("", some_amounts(chance, 1)) if chance.random() < 0.7 else None
    granular = [
        Part(suffix, some_amounts(chance, 2), *some_traits(chance), preferred=((chance.choice(TRAITS), 1.5),))
        if chance.random() < 0.5
        else Part(suffix, some_amounts(chance, 2), *some_traits(chance))
        for suffix in ("_A", "_B", "_C")[: chance.choice((0, 1, 1, 2, 2, 3))]
    ]
    if outside is None and not granular:
        outside = Part("", (("VCPU", 1),))
    parts = (*((outside,) if outside else ()), *granular)
    near = tuple(part.suffix for part in granular) if len(granular) > 1 and chance.random() < 0.4 else ()
    if near and chance.random() < 0.5:
        parts, near = (*parts, Part("_NEAR", required=(chance.choice(TRAITS),))), (*near, "_NEAR")
    return Demand(parts, isolates=len(granular) > 1 and chance.random() < 0.5, same_subtree=near)


def some_amounts(chance: random.Random, classes: int) -> tuple[tuple[str, int], ...]:
    named = sorted(chance.sample(CLASSES, chance.randint(1, classes)))
    return tuple((resource, chance.choice((1, 1, 2))) for resource in named)


def some_traits(chance: random.Random) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Required ones and forbidden ones."""
    one, other = chance.sample(TRAITS, 2)
    return ((one,) if chance.random() < 0.25 else (), (other,) if chance.random() < 0.25 else ())


def spec_of(demand: Demand) -> InstanceSpec:
    return InstanceSpec(
        amounts=tuple(sorted(demand.amounts.items())),
        groups=tuple(
            GranularGroup(part.suffix, part.amounts, part.required, part.forbidden, part.preferred)
            for part in demand.parts
            if part.suffix
        ),
        isolates=demand.isolates,
        same_subtree=(demand.same_subtree,) if demand.same_subtree else (),
    )


def picture_of(hosts: list[list[ProviderState]]) -> Picture:
    return a_picture(
        *[state for host in hosts for state in host],
        hosts=tuple(HostState(id=host[0].id, name=host[0].name, cell="c1", up=True) for host in hosts),
    )


def taken_by(choice: Choice) -> Taken:
    taken: Counter[tuple[ProviderId, str]] = Counter()
    for each in choice.share.amounts:
        taken[each.provider, each.resource] += each.amount
    return taken


def ways_with_room(demand: Demand, tree: Tree, corrected: Free | None = None) -> list[Taken]:
    free = {(id_, name): amount for id_, each in tree.items() for name, amount in each.free.items()}
    free |= corrected or {}
    return [way for way in ways(demand, tree) if all(free[key] >= amount for key, amount in way.items())]


def distinct(found: list[Taken]) -> set[frozenset[tuple[tuple[ProviderId, str], int]]]:
    return {frozenset(way.items()) for way in found}
