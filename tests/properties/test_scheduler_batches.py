"""The choice keeps answers from one spec of a batch to the next, and looks at few hosts of many: neither changes its result."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Literal
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from engine.candidates.provider_index import SHARES
from engine.choosing.choosing import Chosen, choose, choose_together
from engine.choosing.plugin_settings import PluginSettings, chosen_plugins
from engine.hosts import NODE, Aggregate, HostState, host_in_cell
from engine.inventories import (
    AggregateId,
    GroupId,
    GroupMember,
    GroupPolicy,
    InventoryState,
    ProviderState,
    ServerGroup,
)
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup
from tests.contracts.placement_orders import consumer, provider
from tests.properties.bounds import BOUNDED
from tests.unit.choosing.scheduler_worlds import a_picture

HOSTS = 400
SALT = 7
VARIANTS: tuple[tuple[float, Literal["spread", "fill", "fit"]], ...] = (
    *((0.0, "spread"), (0.0, "fill"), (0.0, "fit")),
    (1_000.0, "spread"),
)
# Only three instances a host, so that hosts get full in a batch; and one cloud in four spreads over its zones, and one fits.
SETTINGS = tuple(
    PluginSettings(
        instances_per_host_max=3, io_ops_per_host_max=9, spread_weight_multiplier=spread, policy=policy
    )
    for spread, policy in VARIANTS
)
POLICIES: tuple[GroupPolicy, ...] = ("anti-affinity", "affinity", "soft-anti-affinity")
GROUPS = tuple(
    ServerGroup(id=GroupId(UUID(int=number + 1)), policy=policy) for number, policy in enumerate(POLICIES)
)


def a_cloud(random: Random) -> Picture:
    """Of few kinds of hosts, so that many are equal, or of many."""
    kinds = random.choice((1, 3, 1_000))
    out_of_use = random.choice((0.0, 0.1, 0.7))
    states, hosts = [], []
    for number in range(HOSTS):
        kind = Random(f"{random.getrandbits(20) % kinds}")
        id_, cell = provider(f"host-{number}"), f"c{number % 2}"
        inventories = {
            "VCPU": InventoryState(total=kind.randrange(4, 40), used=kind.randrange(3)),
            "MEMORY_MB": InventoryState(
                total=kind.randrange(2_000, 20_000), max_unit=kind.choice((1_500, 20_000))
            ),
        }
        if devices := kind.randrange(3):
            inventories["PCI_DEVICE"] = InventoryState(total=devices)
        states.append(
            ProviderState(
                internal=number + 1,
                id=id_,
                name=f"h{number}",
                root=id_,
                cell=cell,
                inventories=inventories,
                traits=kind.choice(((), ("CUSTOM_A",), ("CUSTOM_B",))),
            )
        )
        hosts.append(
            HostState(
                id=id_,
                name=f"h{number}",
                cell=cell,
                up=random.random() >= out_of_use,
                instances=kind.randrange(3),
                availability_zone=f"z{number % 3}",
                failed_builds=kind.randrange(2),
            )
        )
    return a_picture(*states, hosts=tuple(hosts))


def different_specs(random: Random, count: int) -> Iterator[InstanceSpec]:
    for number in range(count):
        # Hosts with such devices are better for some, and worse for the others.
        devices = random.choice(((), (), (("PCI_DEVICE", 1),)))
        yield InstanceSpec(
            amounts=(
                ("MEMORY_MB", 100 * random.randrange(1, 30) + number),
                *devices,
                ("VCPU", random.randrange(1, 9)),
            ),
            required=random.choice(((), (), ("CUSTOM_A",))),
            preferred=random.choice(((), (), (("CUSTOM_A", 1.0),), (("CUSTOM_B", 1.0),))),
            availability_zone=random.choice(("", "", "z1")),
            server_group=random.choice((None, None, *GROUPS)),
        )


def one_after_another(
    picture: Picture, specs: Sequence[InstanceSpec], settings_: PluginSettings
) -> Iterator[Chosen | NoValidHost]:
    """Each spec is a batch of its own, in which nothing is kept."""
    plugins = chosen_plugins(settings_)
    for number, spec in enumerate(specs):
        (found,) = choose(picture, [spec], plugins, SALT)
        yield found
        if isinstance(found, Chosen):
            member = consumer(f"{number}")
            picture.hold([(member, 1, found.choice.share)])
            if spec.server_group is not None:
                picture.groups.hold(GroupMember(spec.server_group.id, member, 1, found.choice.share.host))


@settings(BOUNDED, max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_a_batch_of_different_specs_is_decided_as_one_spec_after_another(seed: int) -> None:
    random = Random(seed)
    plugin_settings = random.choice(SETTINGS)
    specs = list(different_specs(random, 12))
    picture = a_cloud(random)
    for spec in specs:
        picture.usual.note(spec.amounts)

    together = choose(picture, specs, chosen_plugins(plugin_settings), SALT)

    for one, alone in zip(together, one_after_another(picture, specs, plugin_settings), strict=True):
        assert type(one) is type(alone)
        if isinstance(one, Chosen):
            assert one == alone


# A cloud of trees, pools, nodes and aggregates, and requests for all that a spec may ask.
RICH_HOSTS = 40
A, B, FAST = "CUSTOM_A", "CUSTOM_B", "CUSTOM_FAST"
AGGREGATES = tuple(AggregateId(UUID(int=number + 1)) for number in range(4))
METADATA: tuple[dict[str, str], ...] = (
    {"filter_tenant_id": "shop"},
    {"instance_type": "small", "max_instances_per_host": "2"},
    {"os_type": "linux", f"trait:{A}": "required"},
    {"ssd": "true"},
)


def a_rich_cloud(random: Random) -> Picture:
    states: list[ProviderState] = []
    hosts = []

    def put(name: str, root: str, cell: str, **told: Any) -> None:
        states.append(
            ProviderState(
                internal=len(states) + 1,
                id=provider(name),
                name=name,
                root=provider(root),
                parent=None if name == root else provider(root),
                cell=cell,
                **told,
            )
        )

    has_trees, has_pools = random.random() < 0.8, random.random() < 0.4
    for number in range(RICH_HOSTS):
        name, cell = f"h{number}", f"c{number % 2}"
        traits = random.choice(((), (), (A,), (B,), (A, B)))
        memory = InventoryState(total=random.randrange(4_000, 20_000), used=random.randrange(2_000))
        cpus = InventoryState(total=random.randrange(2, 9), used=random.randrange(2))
        aggregates = tuple(each for each in AGGREGATES if random.random() < 0.15)
        is_node = random.random() < 0.1
        if is_node:
            put(
                name,
                name,
                cell,
                inventories={"CUSTOM_GOLD": InventoryState(total=1, max_unit=1)},
                traits=traits,
                aggregates=aggregates,
            )
        elif has_trees and random.random() < 0.3:
            put(name, name, cell, inventories={"MEMORY_MB": memory}, traits=traits, aggregates=aggregates)
            for part in range(2):
                own = random.choice(((), (A,), (B,), (FAST,)))
                put(f"{name}-{part}", name, cell, inventories={"VCPU": cpus}, traits=("HW_NUMA_ROOT", *own))
        else:
            inventories = {"MEMORY_MB": memory, "VCPU": cpus}
            if random.random() < 0.3:
                inventories["PCI_DEVICE"] = InventoryState(total=2)
            put(name, name, cell, inventories=inventories, traits=traits, aggregates=aggregates)
        hosts.append(
            HostState(
                id=provider(name),
                name=name,
                cell=cell,
                kind=NODE if is_node else "",
                projects=random.choice(((), ("shop",))) if is_node else (),
                up=random.random() < 0.9,
                availability_zone=f"z{number % 3}",
                capabilities={"model": random.choice("xy")},
            )
        )
    if has_pools:
        put(
            "pool",
            "pool",
            "",
            inventories={"DISK_GB": InventoryState(total=40, used=random.randrange(30))},
            traits=(SHARES,),
            aggregates=AGGREGATES[3:],
        )
    picture = a_picture(*states, hosts=tuple(hosts))
    picture.put_aggregates(
        Aggregate(id=id_, name=f"a{number}", metadata=metadata, sequence=1)
        for number, (id_, metadata) in enumerate(zip(AGGREGATES, METADATA, strict=True))
        if random.random() < 0.5
    )
    return picture


def _groups(random: Random) -> dict[str, Any]:
    """Granular groups in a third of all requests, with the sums of all."""
    groups = [
        GranularGroup(
            f"{number}",
            amounts=(("VCPU", random.randrange(1, 3)),),
            required=random.choice(((), (), (A,), (FAST,))),
            forbidden=random.choice(((), (), (B,))),
            preferred=random.choice(((), (), ((FAST, 1.0),))),
        )
        for number in range(random.choice((0, 0, 0, 1, 2)))
    ]
    asked: dict[str, Any] = {"groups": tuple(groups)}
    if len(groups) == 2:
        asked["isolates"] = random.choice((True, False))
        if random.random() < 0.3:
            asked["cells"] = ("0", "1")
    return asked


# What a request may ask beside amounts and groups. Most ask for little of it.
ASKED: dict[str, tuple[Any, ...]] = {
    "required": ((A,), (B,), (A, B)),
    "forbidden": ((A,), (B,), (FAST,)),
    "availability_zone": ("z0", "z1"),
    "hosts": (tuple(f"h{number}" for number in range(9)), ("c1/h1", "c1/h3", "h5")),
    "ignore_hosts": (tuple(f"h{number}" for number in range(20)),),
    "cell": ("c0", "c1"),
    "extra_specs": ((("capabilities:model", "x"),), (("aggregate_instance_extra_specs:ssd", "true"),)),
    "image_properties": ((("os_type", "linux"),), (("os_type", "windows"),)),
    "project": ("shop", "bank"),
    "flavor": ("small", "large"),
    "different_hosts": (("h1", "h2"),),
    "same_hosts": (("h3", "h4", "h6", "h7"), None),
    "preferred": (((A, 1.0),), ((B, -1.0),)),
    "preferred_classes": ((("PCI_DEVICE", 1.0),),),
    "member_of": ((AGGREGATES[:2],), (AGGREGATES[1:2], AGGREGATES[2:])),
    "forbidden_aggregates": (AGGREGATES[:1],),
    "server_group": GROUPS,
}


def rich_specs(random: Random, count: int) -> Iterator[InstanceSpec]:
    # Few values, so that specs of a batch share some of them and differ in others.
    often = random.sample([*ASKED], 4)
    for number in range(count):
        asked = {
            field: random.choice(values)
            for field, values in ASKED.items()
            if random.random() < (0.35 if field in often else 0.02)
        }
        if random.random() < 0.07:
            yield InstanceSpec(
                (("CUSTOM_GOLD", 1),), project=f"p{number}", is_for_nodes=random.random() < 0.5
            )
            continue
        asked |= _groups(random)
        sums = {"MEMORY_MB": 100 * random.randrange(1, 9) + number}
        own = random.randrange(0 if asked["groups"] else 1, 3)
        sums["VCPU"] = own + sum(group.amounts[0][1] for group in asked["groups"])
        for resource in ("PCI_DEVICE", "DISK_GB"):
            if random.random() < 0.1:
                sums[resource] = 1
        yield InstanceSpec(tuple(sums.items()), **asked)


@settings(BOUNDED, max_examples=150)
@example(seed=74)
@example(seed=618)
@example(seed=1217)
@given(seed=st.integers(0, 2**32))
def test_a_batch_of_requests_for_all_that_can_be_asked_is_decided_as_one_after_another(seed: int) -> None:
    random = Random(seed)
    specs = list(rich_specs(random, 10))
    picture = a_rich_cloud(random)
    settings_ = SETTINGS[seed % 3]
    for spec in specs:
        picture.usual.note(spec.amounts)

    together = choose(picture, specs, chosen_plugins(settings_), SALT)

    for one, alone in zip(together, one_after_another(picture, specs, settings_), strict=True):
        assert type(one) is type(alone), (one, alone)
        if isinstance(one, Chosen) and isinstance(alone, Chosen):
            assert one.choice == alone.choice


@settings(BOUNDED, max_examples=80)
@given(seed=st.integers(0, 2**32))
def test_instances_that_move_together_find_a_host_if_any_has_room_for_all_of_them(seed: int) -> None:
    random = Random(seed)
    plugins = chosen_plugins(SETTINGS[0])
    # As the members of a group are that all move.
    specs = [
        structs.replace(each, server_group=None, cell="c0")
        for each in rich_specs(random, random.randrange(1, 4))
    ]
    specs = [random.choice(specs) for _ in range(random.randrange(2, 5))]
    picture = a_rich_cloud(random)

    found = choose_together(picture, specs, plugins, SALT, 2)

    def fit_on(name: str) -> bool:
        there = [
            structs.replace(each, hosts=(name,))
            for each in specs
            if not each.hosts or {name, host_in_cell(f"c{int(name[1:]) % 2}", name)} & {*each.hosts}
        ]
        chosen = choose(picture, there, plugins, SALT, 0)
        return len(there) == len(specs) and all(isinstance(each, Chosen) for each in chosen)

    able = {name for name in (f"h{number}" for number in range(RICH_HOSTS)) if fit_on(name)}
    if isinstance(found, NoValidHost):
        assert not able
        assert sum(step.removed for step in found.steps) == found.hosts
    else:
        (name,) = {each.choice.name for each in found}
        others = {tuple(choice.name for choice in each.alternates) for each in found}
        assert name in able
        assert len(others) == 1
        assert len(*others) == min(2, len(able) - 1)
        assert {*others.pop()} <= able - {name}
