"""Plugins of other packages: the check that they are held against, and how settings name, tune and load them."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from engine.candidates.columns import Flags, Ints
from engine.choosing.choosing import Chosen, choose
from engine.choosing.filters import AvailabilityZone, LimitFilter
from engine.choosing.hosts import Hosts, OneHost
from engine.choosing.plugin_settings import (
    OPTIONAL_FILTERS,
    STANDARD_WEIGHERS,
    PluginSettings,
    chosen_plugins,
)
from engine.choosing.plugins import Filter, HostChange, Weigher
from engine.choosing.weighers import NumInstances, Pci
from engine.requests import InstanceSpec, RequestProblem, read_request
from kit.settings import BadSetting
from laboratory.plugin_check import PLAIN, a_cloud, breaches
from scheduler_worker.settings import SCHEDULER, SchedulerSettings, plugins_of
from tests.contracts.placement_orders import VOCABULARY
from tests.example_plugin.rack_power import KEY, METRIC, EnoughPower, SparePower
from tests.narrowing import must_be
from tests.unit.choosing import test_compounds as compounds
from tests.unit.choosing.scheduler_worlds import a_state
from tests.unit.choosing.test_scheduler_requests import a_build

ALL = PluginSettings(
    filters=tuple(OPTIONAL_FILTERS),
    weighers=tuple(STANDARD_WEIGHERS),
    metrics_weights=("temperature=-1.0", "load=-0.5"),
    num_instances_weight_multiplier=1.0,
    io_ops_per_host_max=8,
)
OURS = [*chosen_plugins(ALL).filters, *chosen_plugins(ALL).weighers]
THIRSTY = structs.replace(PLAIN, extra_specs=((KEY, "400"),))


@pytest.mark.parametrize(
    "plugin",
    [*OURS, EnoughPower(), SparePower(1.0)],
    ids=lambda plugin: f"{type(plugin).__name__} {plugin.name}",
)
def test_every_plugin_of_this_package_and_of_the_example_keeps_the_rules(plugin: Filter | Weigher) -> None:
    assert breaches(plugin, [] if plugin in OURS else [THIRSTY]) == ()


class SaysNothing(AvailabilityZone):
    reads: tuple[str, ...] = ()  # type: ignore[assignment]


class Silent(AvailabilityZone):
    def reason(self, _host: OneHost, _spec: InstanceSpec) -> str:
        return ""


class Forgetful(Filter):
    name = "forgetful"

    def __init__(self) -> None:
        self.times = 0

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        self.times += 1
        return hosts.everyone() if self.times % 2 else ~hosts.everyone()

    def reason(self, _host: OneHost, _spec: InstanceSpec) -> str:
        return "forgot"


class Comparing(NumInstances):
    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Ints | None:  # noqa: ARG002
        failed = hosts.of(hosts.columns.failed_builds)
        weights: Ints = failed - failed.max() + len(hosts)
        return weights


class Scribbling(NumInstances):
    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Ints:  # noqa: ARG002
        hosts.columns.io_ops[: len(hosts)] += 1
        return np.zeros(len(hosts), dtype=np.int64)


class Counting(Pci):
    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Ints:
        return hosts.free("VCPU") // dict(spec.amounts).get("VCPU", 1)


class Refilling(LimitFilter):
    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        passed: Flags = hosts.busy("io_ops") % 2 == 0
        return passed


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (SaysNothing(), "it reads 'availability_zone' of the request, which `reads` does not name"),
        (Counting(1.0), "it reads 'amounts' of the request, which `reads` does not name"),
        (Silent(), "it gives no reason for a host that does not pass"),
        (Forgetful(), "asked twice, it answers differently"),
        (Comparing(1.0), "it judges a host otherwise when others are asked about"),
        (Scribbling(1.0), "it writes into the columns"),
        (
            Refilling("io ops", "io_ops", "builds", "max_io_ops_per_host", 3),
            "a host that is full for it has room again after one instance more",
        ),
        (
            type("Deaf", (AvailabilityZone,), {"woken_by": ()})(),
            "it decides otherwise after HostChange.FACTS",
        ),
        (
            type("Unaware", (AvailabilityZone,), {"woken_by": (HostChange.FACTS,)})(),
            "it decides otherwise after HostChange.AGGREGATES",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_the_check_names_the_rule_that_a_plugin_breaks(plugin: Filter | Weigher, said: str) -> None:
    found = breaches(plugin)

    assert any(said in each for each in found)


# Loading


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example package, as pip would install it: its module, and its entry points."""
    example = Path(__file__).parents[2] / "example_plugin"
    project = tomllib.loads((example / "pyproject.toml").read_text())["project"]
    (tmp_path / "rack_power.py").write_text((example / "rack_power.py").read_text())
    about = tmp_path / "rack_power-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rack-power\nVersion: 1.0\n")
    points = {group: dict(named) for group, named in project["entry-points"].items()}
    # Mistakes of other packages.
    points["moorage.filters"] |= {"no_filter": "builtins:object", "lost": "rack_power:Nothing"}
    lines = [
        "\n".join((f"[{group}]", *(f"{name} = {place}" for name, place in named.items())))
        for group, named in points.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("rack_power", None)


SETTINGS = {
    "MOOR_SCHEDULER_FILTERS": "capabilities, rack_power",
    "MOOR_SCHEDULER_WEIGHERS": "ram, rack_power=5",
}


@pytest.mark.usefixtures("installed")
def test_a_plugin_of_an_installed_package_is_named_in_the_settings_and_tuned_there() -> None:
    settings = SCHEDULER.read(SETTINGS)
    plugins = plugins_of(settings)
    picture = a_cloud()
    for at, watts in ((0, 100.0), (1, 500.0), (2, 700.0)):
        picture.measure(picture.columns.ids[at], {METRIC: watts})

    (chosen,) = choose(picture, [THIRSTY], plugins, salt=0)

    assert must_be(Chosen, chosen).choice.name == "h2"
    assert [(each.name, each.multiplier) for each in plugins.weighers] == [
        ("preferred", 1000.0),
        ("ram", 1.0),
        ("rack power", 5.0),
    ]


@pytest.mark.usefixtures("installed")
def test_a_judge_of_ways_of_an_installed_package_strikes_and_values_them() -> None:
    cells = [compounds.below("h-n0", "h", MEMORY_MB=4096), compounds.below("h-n1", "h", MEMORY_MB=8192)]
    picture = compounds.a_cloud(a_state("h", shape=3), *cells)
    plugins = plugins_of(SCHEDULER.read({"MOOR_SCHEDULER_WAY_JUDGES": "spare_memory"}))

    specs = [InstanceSpec(amounts=(("MEMORY_MB", amount),)) for amount in (3584, 3584, 3584, 1024)]
    found = choose(picture, specs, plugins, salt=0)

    # The second leaves more there, the last one would leave less than the cell keeps.
    assert [*map(compounds.told, found)] == [
        *("MEMORY_MB:3584@h-n1", "MEMORY_MB:3584@h-n1", "MEMORY_MB:3584@h-n0"),
        "ways 1: h: has room, but plugins allow none of the ways to take it that were found, 1 in all",
    ]


@pytest.mark.usefixtures("installed")
def test_a_key_of_another_packages_filter_is_read_and_a_wrong_value_of_it_is_named() -> None:
    settings = SCHEDULER.read(SETTINGS)
    plugins = plugins_of(settings)

    read = read_request(a_build({KEY: "400"}), VOCABULARY, plugins.scopes, plugins.image_keys)
    unread = read_request(a_build({KEY: "400"}), VOCABULARY)

    assert must_be(InstanceSpec, read).extra_specs == ((KEY, "400"),)
    assert isinstance(unread, RequestProblem)
    for wrong in ("much", "-1", "9" * 5_000):
        assert plugins.problem_with(KEY, wrong) == "is no whole number of watts"
    assert plugins.problem_with(KEY, "400") == ""


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "WAY_JUDGES",
            "spare",
            "way_judges names 'spare', must be among fewest_fragments, near_devices, spare_memory; other",
        ),
        (
            "FILTERS",
            "rack_pwer",
            "filters names 'rack_pwer', must be among capabilities, .* rack_power; other",
        ),
        ("WEIGHERS", "rack_power=much", "weighers has 'rack_power=much', must be NAME or NAME=NUMBER"),
        (
            "FILTERS",
            "no_filter",
            "filters names 'no_filter', which has no name, .* reason: it is none of the filters",
        ),
        ("FILTERS", "lost", "filters names 'lost', which cannot be imported: .* has no attribute 'Nothing'"),
        ("WEIGHERS", "ram=2", "weighers has 'ram=2': ram has a setting of its own, ram_weight_multiplier"),
        ("WEIGHERS", "nothing", "weighers names 'nothing', must be among cpu, ram, .* rack_power; other"),
    ],
)
def test_a_plugin_that_is_not_there_is_named_with_those_that_are(
    variable: str, value: str, said: str
) -> None:
    with pytest.raises(BadSetting, match=said):
        SCHEDULER.read({f"MOOR_SCHEDULER_{variable}": value})


def test_without_the_package_its_plugin_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("filters names 'rack_power', must be among")):
        SchedulerSettings(filters=("rack_power",))
