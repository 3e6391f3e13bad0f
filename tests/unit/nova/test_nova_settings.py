"""`moor nova settings`: a nova.conf becomes settings that choose alike; what has no equal is named, and wrong values are, too."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from moor.nova.conf_file import ConfFileError, ConfFiles, parse, read_files
from moor.nova.mapping import NovaSettings, WrongOptionError, settings_for
from moor.nova.option_map import DECIDED, FILTERS, NO_EQUAL, OPTIONS, STAYS, WEIGHERS
from moor.worker_settings import SECTIONS
from scheduler_worker.core.choosing.standard import OPTIONAL_FILTERS
from scheduler_worker.core.choosing.standard import WEIGHERS as OUR_WEIGHERS
from tests.stories.moor.moor_process import moor

# As kolla-ansible writes it for a scheduler.
SMALL = """
[DEFAULT]
debug = False
log_dir = /var/log/kolla/nova
state_path = /var/lib/nova
transport_url = rabbit://openstack:seven-secrets@10.0.0.1:5672,openstack:seven-secrets@10.0.0.2:5672//
default_schedule_zone = nova

[scheduler]
max_attempts = 10
discover_hosts_in_cells_interval = 60
workers = 5

[filter_scheduler]
enabled_filters = ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,ServerGroupAffinityFilter
available_filters = nova.scheduler.filters.all_filters
"""
# As a large cloud grows one over the years.
LARGE = """
[DEFAULT]
my_ip: 10.1.2.3
; packing
cpu_allocation_ratio = 4.0
control_exchange = nova-west
rpc_response_timeout = 180
stack = 40

[oslo_messaging_rabbit]
rabbit_quorum_queue = true
rabbit_transient_quorum_queue = yes

[scheduler]
max_attempts=3
max_placement_results = 500
limit_tenants_to_placement_aggregate = True
placement_aggregate_required_for_tenants = true
enable_isolated_aggregate_filtering = 1
query_placement_for_image_type_support = true

[filter_scheduler]
enabled_filters =
    ComputeFilter,
    ComputeCapabilitiesFilter
    AggregateInstanceExtraSpecsFilter,
    AggregateMultiTenancyIsolation,
    AggregateTypeAffinityFilter,
    AggregateImagePropertiesIsolation,
    IoOpsFilter,
    AggregateNumInstancesFilter,
    DifferentHostFilter, SameHostFilter,
    JsonFilter, OurRackFilter
available_filters = nova.scheduler.filters.all_filters
available_filters = west.filters.OurRackFilter
weight_classes = nova.scheduler.weights.ram.RAMWeigher,nova.scheduler.weights.cpu.CPUWeigher,west.weights.Power
ram_weight_multiplier = -1.0
cpu_weight_multiplier = "2"
max_io_ops_per_host = 20
max_instances_per_host = ${DEFAULT.stack}
host_subset_size = 10
shuffle_best_same_weighed_hosts = true
isolated_images = 155d900f-4e14-4e4c-a73d-069cbf4541e6
pci_in_placement = true

[metrics]
weight_setting = temperature=-1.0
"""


def of(*texts: str) -> NovaSettings:
    lines = [line for number, text in enumerate(texts) for line in parse(text, f"{number}.conf")]
    return settings_for(ConfFiles(tuple(lines)), SECTIONS)


def names(told: Any) -> list[str]:
    return [each.option for each in told]


def test_a_usual_file_becomes_settings_that_choose_as_nova_does() -> None:
    made = of(SMALL)

    assert made.tables == {
        "scheduler": {
            "filters": ["capabilities", "image_properties"],
            "weighers": [each.name for each in WEIGHERS.values() if each.name],
            # No filter of Nova's limits instances here, and 50 is our default.
            "instances_per_host_max": 0,
            "io_ops_per_host_max": 0,
            "alternates_max": 9,
        }
    }
    assert names(made.no_equal) == ["discover_hosts_in_cells_interval", "workers"]
    assert names(made.stays) == ["transport_url", "default_schedule_zone"]


def test_a_file_without_any_option_gives_novas_defaults_where_ours_differ() -> None:
    assert of("").tables["scheduler"] == {
        "filters": ["capabilities", "image_properties"],
        "weighers": [each.name for each in WEIGHERS.values() if each.name],
        "instances_per_host_max": 0,
        "io_ops_per_host_max": 0,
        "alternates_max": 2,
    }


def test_a_grown_file_becomes_settings_and_each_line_without_an_equal_is_named() -> None:
    made = of(LARGE)

    assert made.tables == {
        "scheduler": {
            "filters": [
                *("capabilities", "aggregate_extra_specs", "aggregate_tenants", "aggregate_flavors"),
                *("aggregate_image_properties", "different_host", "same_host"),
                *("required_own_aggregates", "aggregate_traits"),
            ],
            "weighers": ["ram", "cpu"],
            "io_ops_per_host_max": 20,
            "instances_per_host_max": 40,
            "alternates_max": 2,
            "host_subset_size": 10,
            "ram_weight_multiplier": -1.0,
            "cpu_weight_multiplier": 2.0,
        },
        "nova_scheduler": {
            "exchange": "nova-west",
            "rpc_timeout_s": 180.0,
            "quorum": True,
            "transient_quorum": True,
        },
    }
    assert names(made.no_equal) == [
        *("enabled_filters", "enabled_filters", "weight_classes", "max_placement_results"),
        *("query_placement_for_image_type_support", "available_filters", "isolated_images", "weight_setting"),
    ]
    assert [each.says.partition(":")[0] for each in made.no_equal[:3]] == [
        "JsonFilter",
        "OurRackFilter",
        "Power",
    ]
    assert names(made.stays) == ["cpu_allocation_ratio", "pci_in_placement"]


def test_of_several_files_the_last_line_counts() -> None:
    made = of("[scheduler]\nmax_attempts = 7\n", "[scheduler]\nmax_attempts = 2\nmax_attempts = 4\n")

    assert made.tables["scheduler"]["alternates_max"] == 3
    assert [(each.where, each.value) for each in made.became] == [("1.conf line 3", "4")]


@pytest.mark.parametrize(
    ("section", "option", "value", "why"),
    [
        ("filter_scheduler", "host_subset_size", "many", "must be a whole number"),
        (
            "filter_scheduler",
            "host_subset_size",
            "0",
            "scheduler.host_subset_size must be a whole number, at least 1",
        ),
        ("filter_scheduler", "host_subset_size", "5000", "at most 1000"),
        ("filter_scheduler", "ram_weight_multiplier", "1,5", "must be a number"),
        ("filter_scheduler", "cpu_weight_multiplier", "nan", "must be a finite number"),
        ("filter_scheduler", "disk_weight_multiplier", "1e9", "at most 10000000"),
        ("filter_scheduler", "pci_weight_multiplier", "-1", "at least 0"),
        ("scheduler", "max_attempts", "0", "must be at least 1"),
        ("scheduler", "max_attempts", "100", "scheduler.alternates_max must be a whole number"),
        ("scheduler", "enable_isolated_aggregate_filtering", "perhaps", "must be one of true, 1"),
        ("oslo_messaging_rabbit", "rabbit_quorum_queue", "2", "must be one of true, 1"),
        ("DEFAULT", "control_exchange", "a b", "nova_scheduler.exchange must be"),
        ("DEFAULT", "rpc_response_timeout", "0", "more than 0"),
        (
            "filter_scheduler",
            "max_instances_per_host",
            "$nothing",
            "the file has no 'nothing' that it refers to",
        ),
        ("filter_scheduler", "host_subset_size", "$host_subset_size", "go round in a circle"),
    ],
)
def test_a_wrong_value_is_refused_by_section_option_and_value(
    section: str, option: str, value: str, why: str
) -> None:
    with pytest.raises((WrongOptionError, ConfFileError)) as refused:
        of(f"[{section}]\n\n{option} = {value}\n")

    told = str(refused.value)
    assert told.startswith(f"0.conf line 3: [{section}] {option} is {value!r}: ")
    assert why in told


def test_multipliers_that_are_too_much_together_are_refused() -> None:
    text = "[filter_scheduler]\nram_weight_multiplier = 9e6\ncpu_weight_multiplier = 9e6\n"

    with pytest.raises(WrongOptionError, match="add up to"):
        of(text)


def test_a_limit_of_zero_is_refused_where_its_filter_would_let_no_host_pass() -> None:
    text = "[filter_scheduler]\nenabled_filters = NumInstancesFilter\nmax_instances_per_host = 0\n"

    with pytest.raises(WrongOptionError, match="must be at least 1 here"):
        of(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("debug = true\n", "line 1: the option 'debug' stands before the first section"),
        (
            "[scheduler]\nmax_attempts\n",
            "line 2: 'max_attempts' is neither a section, a comment nor an option",
        ),
        ("[scheduler\n", "line 1: '[scheduler' is no section"),
        ("[]\n", "line 1: '[]' is no section"),
    ],
)
def test_what_is_no_nova_conf_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(ConfFileError) as refused:
        parse(text, "nova.conf")

    assert f"nova.conf {why}" in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfFileError, match=r"no\.conf: cannot be read"):
        read_files([tmp_path / "no.conf"])


def test_no_error_and_no_line_shows_a_password() -> None:
    with pytest.raises(ConfFileError) as before:
        parse("transport_url = rabbit://nova:seven-secrets@host/\n", "nova.conf")
    with pytest.raises(WrongOptionError) as wrong:
        of("[DEFAULT]\nrpc_response_timeout = rabbit://nova:seven-secrets@host/\n")

    told = [*map(str, (before.value, wrong.value)), *(each.value for each in of(SMALL).stays)]
    assert not [each for each in told if "seven-secrets" in each]


def test_a_value_keeps_dollars_quotes_and_colons_as_nova_reads_them() -> None:
    files = ConfFiles(tuple(parse("[a]\nb = '$$5'\nc: d:e\nf = $b and ${a.c}\n", "x")))

    assert [files.resolved(line) for line in files.lines] == ["$5", "d:e", "$5 and d:e"]


def test_the_map_names_only_plugins_and_settings_that_are_here() -> None:
    assert {each.name for each in FILTERS.values() if each.name} <= {*OPTIONAL_FILTERS}
    assert {each.name for each in WEIGHERS.values() if each.name} <= {*OUR_WEIGHERS}
    assert all(each.setting in SECTIONS[each.section].settings for each in OPTIONS.values())
    keys = [*OPTIONS, *DECIDED, *NO_EQUAL, *STAYS]
    assert len(keys) == len({*keys})


@pytest.mark.asyncio
async def test_the_command_prints_a_settings_file(tmp_path: Path) -> None:
    conf = tmp_path / "nova.conf"
    conf.write_text(LARGE)

    printed = await moor("nova", "settings", "--from", str(conf))
    as_json = await moor("nova", "settings", "--from", str(conf), "-o", "json")
    conf.write_text("[scheduler]\nmax_attempts = x\n")
    refused = await moor("nova", "settings", "--from", str(conf))

    assert printed.code == as_json.code == 0, printed.err
    assert tomllib.loads(printed.out) == json.loads(as_json.out)["settings"]
    assert "isolated_images" in printed.out
    assert (refused.code, refused.out) == (2, "")
    assert "[scheduler] max_attempts is 'x': must be a whole number" in refused.err
