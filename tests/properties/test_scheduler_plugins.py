"""Filters and weighers over columns, against slow and obvious ones that look at one host after the other."""

from collections.abc import Callable, Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from engine.choosing.choosing import choose
from engine.choosing.planning import reasons
from engine.choosing.plugin_settings import (
    OPTIONAL_FILTERS,
    STANDARD_WEIGHERS,
    PluginSettings,
    chosen_plugins,
)
from engine.flavors import Flavor
from engine.hosts import HostState, Supported
from engine.inventories import InventoryState
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import Alternative, InstanceSpec
from tests.contracts.placement_orders import provider
from tests.properties.bounds import BOUNDED
from tests.unit.choosing.scheduler_worlds import a_state

# Small worlds show a difference soon.
FEW = settings(BOUNDED, max_examples=40)
RATIOS = {"temperature": -1.0, "load": 2.5}
SETTINGS = PluginSettings(
    filters=tuple(OPTIONAL_FILTERS),
    weighers=tuple(STANDARD_WEIGHERS),
    metrics_weights=tuple(f"{name}={ratio}" for name, ratio in RATIOS.items()),
    num_instances_weight_multiplier=1.0,
    image_cache_weight_multiplier=1.0,
)
WORDS = ("x86_64", "aarch64", "7", "7.5", "12", "aes", "aes avx2", "")
VALUES = (
    *("x86_64", "== 7", "= 7.5", "!= 7", ">= 12", "<= 7.5"),
    *("s== aes", "s!= aes", "s< b", "s<= aes", "s> 2", "s>= 12"),
    *("<in> aes", "<in> a", "<all-in> aes avx2", "<all-in> avx2", "<or> aes <or> 12", "<or> 7"),
)
# The properties of an image, what they ask of a kind of guest, and of the hypervisor's version.
IMAGES: tuple[tuple[dict[str, str], dict[str, str], str], ...] = (
    ({}, {}, ""),
    ({"hw_architecture": "x86_64"}, {"architecture": "x86_64"}, ""),
    ({"architecture": "AMD64", "hw_vm_mode": "hvm"}, {"architecture": "x86_64", "vm_mode": "hvm"}, ""),
    ({"hw_architecture": "aarch64", "architecture": "x86_64"}, {"architecture": "aarch64"}, ""),
    ({"img_hv_type": "QEMU"}, {"hypervisor_type": "qemu"}, ""),
    (
        {"hypervisor_type": "kvm", "img_hv_requested_version": ">=8.0,<9"},
        {"hypervisor_type": "kvm"},
        ">=8.0,<9",
    ),
    ({"hypervisor_version_requires": "!=7.2.1"}, {}, "!=7.2.1"),
)
VERSIONS = (0, 7_002_001, 8_000_000, 9_001_000)

# A host, its metrics, its amounts, and the images that it has cached.
Seen = tuple[HostState, dict[str, float], dict[str, int], set[str]]
SOURCES = ("debian", "fedora", "")


@st.composite
def hosts(draw: st.DrawFn, number: int) -> Seen:
    kinds = st.builds(
        Supported,
        architecture=st.sampled_from(("x86_64", "aarch64", "")),
        hypervisor_type=st.sampled_from(("qemu", "kvm")),
        vm_mode=st.sampled_from(("hvm", "")),
    )
    host = HostState(
        id=provider(f"h{number}"),
        name=f"h{number}",
        cell="c1",
        up=True,
        instances=draw(st.integers(0, 3)),
        io_ops=draw(st.integers(0, 3)),
        hypervisor_type="QEMU",
        hypervisor_version=draw(st.sampled_from(VERSIONS)),
        supports=tuple(draw(st.lists(kinds, max_size=2))),
        capabilities=draw(st.dictionaries(st.sampled_from(("a", "b")), st.sampled_from(WORDS))),
        failed_builds=draw(st.integers(0, 2)),
    )
    metrics = draw(st.dictionaries(st.sampled_from((*RATIOS, "else")), st.sampled_from((-3.0, 0.0, 4.5))))
    stock = {
        "VCPU": 16,
        "MEMORY_MB": draw(st.integers(1, 4)) * 1024,
        "DISK_GB": draw(st.integers(1, 3)) * 10,
        "PCI_DEVICE": draw(st.integers(0, 2)),
        "CUSTOM_PCI_8086_10FB": draw(st.integers(0, 1)),
    }
    return host, metrics, stock, draw(st.sets(st.sampled_from(SOURCES[:2])))


@st.composite
def clouds(draw: st.DrawFn) -> list[Seen]:
    return [draw(hosts(number)) for number in range(draw(st.integers(1, 6)))]


@st.composite
def specs(draw: st.DrawFn) -> InstanceSpec:
    names = st.lists(st.sampled_from(("h0", "h1", "h4")), max_size=2, unique=True).map(tuple)
    keys = st.sampled_from(("a", "b", "hypervisor_type"))
    asked = draw(st.dictionaries(keys, st.sampled_from(VALUES), max_size=2))
    return InstanceSpec(
        amounts=draw(st.sampled_from(((("VCPU", 1),), (("PCI_DEVICE", 1), ("VCPU", 1))))),
        extra_specs=tuple(sorted((f"capabilities:{key}", value) for key, value in asked.items())),
        image_properties=tuple(sorted(draw(st.sampled_from(IMAGES))[0].items())),
        different_hosts=draw(names),
        same_hosts=draw(st.one_of(names, st.none())),
        image=draw(st.sampled_from(SOURCES)),
    )


def picture_of(cloud: Sequence[Seen]) -> Picture:
    picture = Picture()
    for number, (host, metrics, stock, images) in enumerate(cloud):
        picture.put_hosts([host])
        inventories = {name: InventoryState(total=total) for name, total in stock.items() if total}
        picture.apply([a_state(host.name, inventories, internal=number + 1, consumers=host.instances)])
        picture.measure(host.id, metrics)
        picture.cache_images(host.id, {*images, "another"})
        picture.cache_images(host.id, images)
    return picture


# The slow way, one host at a time

NUMERIC: Mapping[str, Callable[[float, float], bool]] = {
    "=": lambda has, asked: has >= asked,
    "==": lambda has, asked: has == asked,
    "!=": lambda has, asked: has != asked,
    ">=": lambda has, asked: has >= asked,
    "<=": lambda has, asked: has <= asked,
}
TEXTUAL: Mapping[str, Callable[[str, str], bool]] = {
    "s==": lambda has, asked: has == asked,
    "s!=": lambda has, asked: has != asked,
    "s<": lambda has, asked: has < asked,
    "s<=": lambda has, asked: has <= asked,
    "s>": lambda has, asked: has > asked,
    "s>=": lambda has, asked: has >= asked,
    "<in>": lambda has, asked: asked in (has.split() if " " in has else has),
}


def meets(asked: str, told: str) -> bool:
    first, *rest = asked.split()
    if first in NUMERIC:
        return told.replace(".", "").isdecimal() and NUMERIC[first](float(told), float(rest[0]))
    if first in TEXTUAL:
        return TEXTUAL[first](told, rest[0])
    if first == "<all-in>":
        return all(TEXTUAL["<in>"](told, word) for word in rest)
    return told in [word for word in rest if word != "<or>"] if first == "<or>" else told == asked


def has_capabilities(host: HostState, spec: InstanceSpec) -> bool:
    told = {"hypervisor_type": host.hypervisor_type, **host.capabilities}
    asked = [(key.removeprefix("capabilities:"), value) for key, value in spec.extra_specs]
    return all(key in told and meets(value, told[key]) for key, value in asked)


def runs_image(host: HostState, spec: InstanceSpec) -> bool:
    wanted, version = next(
        (kind, version) for properties, kind, version in IMAGES if properties == dict(spec.image_properties)
    )
    runs = not wanted or any(
        all(getattr(kind, name) in ("", value) for name, value in wanted.items()) for kind in host.supports
    )
    is_right_version = {
        "": True,
        ">=8.0,<9": 8_000_000 <= host.hypervisor_version < 9_000_000,
        "!=7.2.1": host.hypervisor_version != 7_002_001,
    }
    return runs and is_right_version[version]


def slow_passes(host: HostState, metrics: Mapping[str, float], spec: InstanceSpec) -> dict[str, bool]:
    beside = spec.same_hosts
    return {
        "capabilities": has_capabilities(host, spec),
        "image properties": runs_image(host, spec),
        "different host": host.name not in spec.different_hosts,
        "same host": beside is not None and (not beside or host.name in beside),
        "metrics": metrics.keys() >= RATIOS.keys(),
    }


def slow_weights(seen: Seen, spec: InstanceSpec) -> dict[str, float]:
    host, metrics, stock, images = seen
    pci = stock["PCI_DEVICE"] + stock["CUSTOM_PCI_8086_10FB"]
    told = metrics.keys() >= RATIOS.keys()
    return {
        "cpu": stock["VCPU"],
        "ram": stock["MEMORY_MB"],
        "disk": stock["DISK_GB"],
        "hypervisor version": host.hypervisor_version,
        "num instances": host.instances,
        "io ops": host.io_ops,
        "pci": pci if "PCI_DEVICE" in dict(spec.amounts) else -pci,
        "build failure": -host.failed_builds,
        "image_cache": spec.image in images,
        "metrics": sum(ratio * metrics[name] for name, ratio in RATIOS.items()) if told else -10_000,
    }


def refused_by(name: str, picture: Picture, spec: InstanceSpec) -> set[str]:
    """The hosts that a scheduler with this filter removes by it."""
    plugins = chosen_plugins(
        PluginSettings(
            filters=(name,), weighers=(), metrics_weights=SETTINGS.metrics_weights, io_ops_per_host_max=9
        )
    )
    steps = {each.name for each in plugins.filters} - STEPS
    verdicts, _ = reasons(
        picture, [Alternative("", Flavor(), spec)], plugins, step="", after="", limit=10_000
    )
    assert all(each.reason for each in verdicts if each.step)
    return {each.host for each in verdicts if each.step in steps}


STEPS = {each.name for each in chosen_plugins(PluginSettings(filters=(), weighers=())).filters}


@FEW
@given(cloud=clouds(), spec=specs())
def test_each_filter_passes_the_hosts_that_the_slow_way_passes(cloud: list[Seen], spec: InstanceSpec) -> None:
    spec = structs.replace(spec, amounts=(("VCPU", 1),))
    slow = {host.name: slow_passes(host, metrics, spec) for host, metrics, *_ in cloud}

    for name in ("capabilities", "image_properties", "different_host", "same_host", "metrics"):
        refused = {host for host, passes in slow.items() if not passes[name.replace("_", " ")]}
        assert refused_by(name, picture_of(cloud), spec) == refused, name


@FEW
@given(cloud=clouds(), spec=specs())
def test_by_each_weigher_the_host_of_the_most_weight_is_chosen(cloud: list[Seen], spec: InstanceSpec) -> None:
    plain = structs.replace(PLAIN, amounts=spec.amounts, image=spec.image)
    slow = {seen[0].name: slow_weights(seen, plain) for seen in cloud}
    able = [seen[0].name for seen in cloud if all(seen[2][name] for name, _ in plain.amounts)]
    plugins = chosen_plugins(SETTINGS)

    for weigher in plugins.weighers:
        if able and weigher.name in slow[able[0]]:
            alone = structs.replace(plugins, weighers=(weigher,), filters=ALWAYS.filters)
            (one,) = choose(picture_of(cloud), [plain], alone, salt=0)
            assert not isinstance(one, NoValidHost)
            weights = {
                name: slow[name][weigher.name] * (1 if weigher.multiplier > 0 else -1) for name in able
            }
            most, least = max(weights.values()), min(weights.values())
            # Hosts that differ by less than a hundredth are equal.
            assert weights[one.choice.name] >= most - (most - least) / 100, weigher.name


PLAIN = InstanceSpec(amounts=())
ALWAYS = chosen_plugins(PluginSettings(filters=(), weighers=(), io_ops_per_host_max=9))


@FEW
@given(
    cloud=clouds(), draw=st.integers(0, 2**32), size=st.integers(1, 4), count=st.integers(1, 3), spec=specs()
)
def test_an_instance_gets_one_of_the_best_hosts_of_the_subset(
    cloud: list[Seen], draw: int, size: int, count: int, spec: InstanceSpec
) -> None:
    """Only the memory counts, and instances take none of it."""
    plugins = chosen_plugins(PluginSettings(weighers=("ram",), host_subset_size=size))
    plain = structs.replace(spec, extra_specs=(), image_properties=(), same_hosts=(), different_hosts=())
    by_name = {host.name: stock for host, _, stock, _ in cloud}

    found = choose(picture_of(cloud), [plain] * count, plugins, salt=0, draw=draw)

    for one in found:
        fitting = [
            stock["MEMORY_MB"]
            for stock in by_name.values()
            if all(stock[resource] >= amount for resource, amount in plain.amounts)
        ]
        if isinstance(one, NoValidHost):
            assert not fitting
            continue
        stock = by_name[one.choice.name]
        assert stock["MEMORY_MB"] >= sorted(fitting, reverse=True)[min(size, len(fitting)) - 1]
        for resource, amount in plain.amounts:
            stock[resource] -= amount
