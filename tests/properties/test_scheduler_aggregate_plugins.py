"""Filters, limits, multipliers and spreading by aggregates' metadata, against a slow look at each host."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from engine.choosing.choosing import choose
from engine.choosing.plugin_settings import PluginSettings, chosen_plugins
from engine.hosts import Aggregate
from engine.inventories import AggregateId
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from tests.properties.bounds import BOUNDED
from tests.properties.test_scheduler_plugins import refused_by
from tests.unit.choosing.scheduler_worlds import a_picture, a_spec, a_state, vcpus

NAMES = tuple(f"h{number}" for number in range(6))
PLAIN = a_spec(1)
Metadata = Sequence[dict[str, str]]

# Of each aggregate; a host is in some of these.
METADATA: tuple[dict[str, str], ...] = (
    {},
    {"filter_tenant_id": "shop"},
    {"filter_tenant_id_2": "bank, shop", "instance_type": "small"},
    {"filter_tenant_id": "mint", "trait:CUSTOM_GPU": "required"},
    {"instance_type": "large,huge", "os_distro": "debian"},
    {"trait:CUSTOM_GPU": "required", "trait:CUSTOM_FAST": "required", "ssd": "true"},
    {"os_distro": "debian, fedora", "ssd": "false", "size": "4"},
    {"max_instances_per_host": "2", "max_io_ops_per_host": "1", "size": "16"},
    {"max_instances_per_host": "4"},
)
SPECS: tuple[InstanceSpec, ...] = (
    *(structs.replace(PLAIN, project=project) for project in ("", "shop", "bank", "mint", "other")),
    *(structs.replace(PLAIN, flavor=flavor) for flavor in ("", "small", "large")),
    *(structs.replace(PLAIN, required=traits) for traits in (("CUSTOM_GPU",), ("CUSTOM_FAST", "CUSTOM_GPU"))),
    *(
        structs.replace(PLAIN, image_properties=(("os_distro", value),))
        for value in ("debian", "fedora", "arch")
    ),
    *(
        structs.replace(PLAIN, extra_specs=((f"aggregate_instance_extra_specs:{key}", value),))
        for key, value in (("ssd", "true"), ("ssd", "<or> true <or> false"), ("size", ">= 8"), ("none", "x"))
    ),
)


def listed(value: str) -> set[str]:
    return {each.strip() for each in value.split(",")}


def tenants(of: Metadata) -> set[str]:
    return {
        name
        for each in of
        for key, value in each.items()
        if key.startswith("filter_tenant_id")
        for name in listed(value)
    }


def allowed(of: Metadata, key: str) -> set[str]:
    return {name for each in of if key in each for name in listed(each[key])}


def has_own(spec: InstanceSpec) -> bool:
    return spec.project in tenants(METADATA)


def meets(value: str, asked: str) -> bool:
    """The operators of these specs."""
    if asked.startswith(">="):
        return value.isdigit() and int(value) >= int(asked.removeprefix(">="))
    return value in asked.replace("<or>", "").split()


def extra_specs_met(of: Metadata, spec: InstanceSpec) -> bool:
    return all(
        any(meets(each[name], value) for each in of if name in each)
        for key, value in spec.extra_specs
        if (name := key.removeprefix("aggregate_instance_extra_specs:"))
    )


SLOW: Mapping[str, Callable[[Metadata, InstanceSpec], bool]] = {
    "aggregate_tenants": lambda of, spec: not tenants(of) or spec.project in tenants(of),
    "own_aggregates": lambda of, spec: not has_own(spec) or spec.project in tenants(of),
    "required_own_aggregates": lambda of, spec: spec.project in tenants(of),
    "aggregate_flavors": lambda of, spec: (
        not allowed(of, "instance_type") or spec.flavor in allowed(of, "instance_type")
    ),
    "aggregate_traits": lambda of, spec: (
        {key.removeprefix("trait:") for each in of for key in each if key.startswith("trait:")}
        <= {*spec.required}
    ),
    "aggregate_image_properties": lambda of, spec: all(
        not allowed(of, key) or value in allowed(of, key) for key, value in spec.image_properties
    ),
    "aggregate_extra_specs": extra_specs_met,
}

memberships = st.lists(
    st.sets(st.integers(0, len(METADATA) - 1), max_size=3), min_size=len(NAMES), max_size=len(NAMES)
)


def picture_with(metadata: Metadata, members: Sequence[Collection[int]], instances: Sequence[int]) -> Picture:
    """Hosts that are in these aggregates, by their places, and have so many instances."""
    ids = [AggregateId(UUID(int=1 + place)) for place in range(len(metadata))]
    picture = a_picture(
        *[
            a_state(
                f"h{number}",
                vcpus(64),
                aggregates=tuple(ids[each] for each in of),
                internal=1 + number,
                consumers=busy,
            )
            for number, (of, busy) in enumerate(zip(members, instances, strict=True))
        ]
    )
    picture.put_aggregates(
        Aggregate(id=id_, name=f"a{id_.int}", metadata=each, sequence=1)
        for id_, each in zip(ids, metadata, strict=True)
    )
    return picture


@pytest.mark.parametrize("name", SLOW)
def test_a_filter_by_metadata_passes_the_hosts_that_the_slow_way_passes(name: str) -> None:
    met: Counter[bool] = Counter()

    @settings(BOUNDED, max_examples=60)
    @given(of=memberships, specs=st.permutations(SPECS))
    def check(of: list[set[int]], specs: list[InstanceSpec]) -> None:
        picture = picture_with(METADATA, of, [0] * len(of))
        for spec in specs:
            passes = [SLOW[name]([METADATA[each] for each in aggregates], spec) for aggregates in of]
            refused = {host for host, passed in zip(NAMES, passes, strict=True) if not passed}
            assert refused_by(name, picture, spec) == refused, spec
            met.update(passes)

    check()
    assert min(met[True], met[False]) > 100, met


@settings(BOUNDED)
@given(
    hosts=st.lists(st.tuples(st.sampled_from(["r1", "r2", "r3"]), st.integers(0, 6)), min_size=2, max_size=9),
    asked=st.lists(st.integers(1, 6), min_size=1, max_size=3),
)
@example(hosts=[("r1", 3), ("r2", 0)], asked=[3, 2])
def test_each_instance_goes_to_a_rack_with_the_fewest(hosts: list[tuple[str, int]], asked: list[int]) -> None:
    racks, instances = zip(*hosts, strict=True)
    names = sorted({*racks})
    picture = picture_with(
        [{"rack": each} for each in names], [{names.index(rack)} for rack in racks], instances
    )
    spreading = chosen_plugins(
        PluginSettings(
            weighers=("spread", "cpu"),
            spread_over=("rack",),
            spread_weight_multiplier=1e5,
            io_ops_per_host_max=0,
            instances_per_host_max=0,
        )
    )
    spreading = structs.replace(
        spreading, weighers=tuple(each for each in spreading.weighers if each.name in ("spread", "cpu"))
    )
    load = Counter(dict.fromkeys(racks, 0))
    for rack, busy in hosts:
        load[rack] += busy
    specs = [
        structs.replace(PLAIN, amounts=(("VCPU", 1 + kind),))
        for kind, count in enumerate(asked)
        for _ in range(count)
    ]

    for outcome in choose(picture, specs, spreading, salt=3):
        assert not isinstance(outcome, NoValidHost)
        rack = racks[int(outcome.choice.name.removeprefix("h"))]
        assert load[rack] == min(load.values()), load
        load[rack] += 1
