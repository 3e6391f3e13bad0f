"""Settings of workers, from variables and from tables of a file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from click import BadParameter
from click.testing import CliRunner
from msgspec import structs

from bus.settings import BUS
from kit.settings import BadSetting, Section
from moor.commands import app
from moor.options import scheduler_flags, tuned
from moor.settings import GENERAL, sources
from moor.worker_settings import (
    COMPUTE,
    CONDUCTOR,
    IRONIC_DAEMONS,
    PLACEMENT,
    SCHEDULER,
    SECTIONS,
    CloudSettings,
    environment_of,
    of_cloud,
)

HERE = Path("/nowhere")
# For these settings zero has a meaning: none, at once, or any number.
ZERO_SAYS_SOMETHING = {
    "scheduler.move_confirm_s",
    # The name of a folder.
    "keeper.controllers_file",
    "keeper.hooks_folder",
    "scheduler.moves_per_host_max",
    "scheduler.moves_per_cell_max",
    "scheduler.project_rate",
    "scheduler.project_records_max",
    "scheduler.alternates_max",
    "scheduler.cpu_weight_multiplier",
    "scheduler.ram_weight_multiplier",
    "scheduler.disk_weight_multiplier",
    "scheduler.hypervisor_version_weight_multiplier",
    "scheduler.num_instances_weight_multiplier",
    "scheduler.io_ops_weight_multiplier",
    "scheduler.pci_weight_multiplier",
    "scheduler.build_failure_weight_multiplier",
    "scheduler.metrics_weight_multiplier",
    "scheduler.soft_affinity_weight_multiplier",
    "scheduler.soft_anti_affinity_weight_multiplier",
    "scheduler.spread_weight_multiplier",
    "scheduler.fit_weight_multiplier",
    "scheduler.image_cache_weight_multiplier",
    # A key may have any name.
    "scheduler.spread_over",
    "scheduler.failed_builds_max",
    "compute.builds_at_once_max",
    "scheduler.io_ops_per_host_max",
    "scheduler.instances_per_host_max",
    "bus.drain_ms_max",
    # All of the machine, nothing reserved, CPU 0, or no NUMA cells; names and folders may be called 0.
    "libvirt.network",
    "libvirt.flat",
    # A tenth of the disk.
    "libvirt.images_gb",
    "libvirt.cpus_shared",
    "libvirt.cpus_dedicated",
    "libvirt.memory_mb",
    "libvirt.memory_reserved_mb",
    "libvirt.disk_gb",
    "libvirt.availability_zone",
    # The name of a domain.
    "libvirt.places",
    # The name of a property.
    "ironic.place_property",
    "libvirt.mediated_types",
    "libvirt.storage_pools",
    "libvirt.shared_networks",
    # A name, a password or a file may be called 0, and 0 is no.
    "nova.shadow_file",
    "ironic.exchange",
    "ironic.topics",
    "ironic.queue",
    *(
        f"openstack.{field}"
        for field in (
            *("keystone_url", "user", "password", "password_file", "user_domain", "project"),
            *("project_domain", "application_credential_id", "region", "ca_file", "cert_file", "key_file"),
        )
    ),
    "nova.default_zone",
    "nova.exchange",
    "nova.topics",
}


def a_file(place: Path, text: str) -> Path:
    place.write_text(text)
    return place


def every_field() -> list[tuple[Section[Any], str]]:
    return [(section, field) for section in SECTIONS.values() for field in section.settings]


# Precedence


@pytest.mark.parametrize(("section", "field"), every_field(), ids=lambda each: getattr(each, "name", each))
def test_every_setting_of_every_worker_has_a_variable_and_a_key(
    section: Section[Any], field: str, tmp_path: Path
) -> None:
    kind, *_ = get_args(section.settings[field].annotation)
    if get_origin(kind) is tuple:
        check_a_list(section, field, tmp_path)
        return
    default = getattr(section.kind(), field)
    words = get_args(kind)
    if isinstance(default, str) and not words:
        check_a_text(section, field, tmp_path)
        return
    # A value slightly larger, so that no limit is exceeded; for texts, another text.
    value = words[-1] if words else default + (1 if kind is int else 0.5)
    if isinstance(default, bool):
        value = str(not default).lower()
    written = f'"{value}"' if words else value
    file = a_file(tmp_path / "c.toml", f"[{section.name}]\n{field} = {written}\n")

    by_variable = section.read({section.variable(field): f" {value} "})
    by_file = sources({}, config=file, here=HERE).of(section)

    assert (
        by_variable
        == by_file
        == structs.replace(section.kind(), **{field: not default if isinstance(default, bool) else value})
    )


def check_a_text(section: Section[Any], field: str, place: Path) -> None:
    text = TEXTS.get(f"{section.name}.{field}", "other")
    file = a_file(place / "c.toml", f'[{section.name}]\n{field} = "{text}"\n')

    by_variable = section.read({section.variable(field): f" {text} "})
    by_file = sources({}, config=file, here=HERE).of(section)
    handed_on = handed_to_processes(section, by_file)

    assert by_variable == by_file == handed_on == structs.replace(section.kind(), **{field: text})


def handed_to_processes(section: Section[Any], settings: Any) -> Any:
    """These settings, as a process of a whole cloud reads them. The workers of Nova are not part of one."""
    if section.name not in CloudSettings.__struct_fields__:
        return settings
    return section.read(environment_of(CloudSettings(**{section.name: settings}), {}))


# Texts that must have a certain form.
TEXTS = {
    "nova.url": "http://nova:8774",
    "nova.placement_url": "http://placement:8778",
    "libvirt.folder": "/other",
    "libvirt.cpus_shared": "0-3,^2",
    "libvirt.cpus_dedicated": "4,5",
}


# Lists of texts, each with another value than its default.
LISTS = {
    "scheduler.filters": ("same_host", "capabilities"),
    "scheduler.weighers": ("ram", "metrics"),
    "scheduler.way_judges": ("near_devices",),
    "scheduler.metrics_weights": ("temperature=-1.5", "load=2"),
    "scheduler.spread_over": ("rack", "availability_zone"),
    "ironic.topics": ("of_nova", "of_us"),
    "nova.topics": ("of_us", "versioned_notifications"),
    "libvirt.hosts": ("a=qemu:///system", "b=test:///default"),
    "libvirt.pages_reserved": ("0:2048=512", "1:2048=256"),
    "libvirt.devices": ("8086:10ed", "8086:10ee@0000:81:*=physnet0"),
    "libvirt.storage_pools": ("nfs", "san=00000000-0000-0000-0000-0000000000a9@h*"),
    "libvirt.shared_networks": ("guests@h1",),
    "libvirt.mediated_types": ("nvidia-35", "nvidia-36@0000:83:*"),
    "libvirt.image_servers": ("https://images.example.org", "http://mirror.example.org:8080"),
    "libvirt.image_networks": ("10.0.0.0/8", "fd00::/8"),
    "libvirt.traits": ("CUSTOM_A", "CUSTOM_B"),
    "libvirt.places": ("dc1/hall2", "dc1/hall2"),
    "compute.networks": ("physnet0=1000", "physnet-1=20000000"),
    "compute.pools": ("nfs:DISK_GB=2000", "net:IPV4_ADDRESS=250@c1-*"),
}


def check_a_list(section: Section[Any], field: str, place: Path) -> None:
    value = LISTS[f"{section.name}.{field}"]
    file = a_file(place / "c.toml", f"[{section.name}]\n{field} = {json.dumps(value)}\n")

    by_variable = section.read({section.variable(field): f" {' , '.join(value)} "})
    by_file = sources({}, config=file, here=HERE).of(section)
    handed_on = handed_to_processes(section, by_file)

    assert by_variable == by_file == handed_on == structs.replace(section.kind(), **{field: value})


def test_a_value_out_of_its_limits_is_refused_with_the_same_words_wherever_it_was_set(tmp_path: Path) -> None:
    file = a_file(tmp_path / "c.toml", "[scheduler]\nhost_subset_size = 1001\n")
    limit = "must be a whole number, at least 1, at most 1000"

    with pytest.raises(BadSetting, match=rf"^scheduler.host_subset_size is 1001 \(.*c.toml\): {limit}$"):
        sources({}, config=file, here=HERE)
    with pytest.raises(BadSetting, match=rf"^scheduler.host_subset_size is '1001' \(MOOR_S.*\): {limit}$"):
        SCHEDULER.read({"MOOR_SCHEDULER_HOST_SUBSET_SIZE": "1001"})
    with pytest.raises(
        BadParameter, match=rf"^scheduler.host_subset_size is '1001' \(--scheduler\): {limit}$"
    ):
        scheduler_flags(["host_subset_size=1001"])
    with pytest.raises(
        BadParameter, match=rf"^scheduler.host_subset_size is 1001 \(--host-subset-size\): {limit}$"
    ):
        tuned(SCHEDULER, host_subset_size=1001)


def test_moor_settings_explains_one_setting() -> None:
    environment = {"MOOR_SCHEDULER_MOVE_TIMEOUT_S": "20", "COLUMNS": "200"}
    by_names = [
        CliRunner().invoke(app, ["settings", name], env=environment).output
        for name in ("move_timeout_s", "scheduler.move_timeout_s", "MOOR_SCHEDULER_MOVE_TIMEOUT_S")
    ]

    lines = [line.strip() for line in by_names[0].splitlines()]
    assert by_names == [by_names[0]] * 3
    assert lines[:2] == [
        "scheduler.move_timeout_s = 20  MOOR_SCHEDULER_MOVE_TIMEOUT_S",
        "MOOR_SCHEDULER_MOVE_TIMEOUT_S; a whole number, at least 1, at most 2147483647; default 3600; SIGHUP: needs a restart",
    ]
    assert lines[2].startswith("The deadline of a move that names none")


def test_moor_settings_names_the_nearest_setting_for_an_unknown_one() -> None:
    ended = CliRunner().invoke(app, ["settings", "move_timeout"], env={"COLUMNS": "200"})

    assert ended.exit_code == 2
    assert (
        "NAME is 'move_timeout'; there is no such section or setting; did you mean move_timeout_s?"
        in ended.output
    )


def test_moor_settings_lists_every_setting_without_passwords_of_urls() -> None:
    environment = {
        "MOOR_DB_URL": "postgresql://moor:hunter2@h/x",
        "MOOR_CELL_BUS_URLS": "c1=amqp://moor:hunter2@h/",
        "MOOR_NOVA_CELL_DBS": "c1=mysql://moor:hunter2@h/x",
    }
    shown = CliRunner().invoke(app, ["settings", "-o", "json"], env=environment)

    rows = {(row["section"], row["key"]): row for row in json.loads(shown.output)}
    every = [(section.name, field) for section in (GENERAL, *SECTIONS.values()) for field in section.settings]
    assert [*rows] == every
    assert "hunter2" not in shown.output
    assert rows["", "db_url"]["value"] == "postgresql+asyncpg://moor:***@h/x"
    assert rows["", "cell_bus_urls"]["value"] == {"c1": "amqp://moor:***@h/"}
    assert rows["", "nova_cell_dbs"]["value"] == ["c1=mysql://moor:***@h/x"]
    assert rows["", "db_url"]["stated"] == "MOOR_DB_URL"


@pytest.mark.parametrize(
    ("command", "flag", "said"),
    [
        (["up"], "move_timeout_s", "--scheduler is 'move_timeout_s', must be KEY=VALUE"),
        (["demo"], "move_timeout=3", r"scheduler.move_timeout (--scheduler): there is no such setting"),
        (["load"], "filters=nothing", "filters names 'nothing', must be among"),
        (
            ["run", "scheduler", "--bus", "unix:///x", "--db", "sqlite:////x"],
            "cpu_weight_multiplier=much",
            "'much' (--scheduler)",
        ),
    ],
)
def test_a_wrong_flag_of_schedulers_is_named_before_anything_starts(
    command: list[str], flag: str, said: str, tmp_path: Path
) -> None:
    env = {"COLUMNS": "400", "MOOR_DATA": str(tmp_path)}

    done = CliRunner().invoke(app, [*command, "--scheduler", flag], env=env)

    assert done.exit_code == 2, done.output
    # Without the frame and its line breaks.
    assert said in " ".join(done.output.replace("│", " ").split())


# Invalid settings


@pytest.mark.parametrize(
    ("section", "variables", "what"),
    [
        (
            SCHEDULER,
            {"MOOR_SCHEDULER_MOVE_TIMEOUT": "3"},
            r"scheduler.move_timeout \(MOOR_SCHEDULER_MOVE_TIMEOUT\): there is no such setting; did you mean move_timeout_s\?",
        ),
        (
            SCHEDULER,
            {"MOOR_SCHEDULER_FILTERS": "same_host,capabilitys"},
            r"scheduler.filters is \('same_host', 'capabilitys'\) \(MOOR_S.*\): filters names .*, must be among capabilities, im",
        ),
        (SCHEDULER, {"MOOR_SCHEDULER_WEIGHERS": "ram,ram"}, "weighers names 'ram' twice"),
        (
            SCHEDULER,
            {"MOOR_SCHEDULER_WEIGHERS": "ram=2"},
            "weighers has 'ram=2': ram has a setting of its own, ram_weight_multiplier",
        ),
        (SCHEDULER, {"MOOR_SCHEDULER_RAM_WEIGHT_MULTIPLIER": "-inf"}, r"'-inf' .* must be a number, at least -10000000, at most 10000000"),
        (
            SCHEDULER,
            {"MOOR_SCHEDULER_BUILD_FAILURE_WEIGHT_MULTIPLIER": "1e8"},
            r"build_failure_weight_multiplier is '1e8' \(.*\): must be a number, .* at most 10000000",
        ),
        (
            SCHEDULER,
            {"MOOR_SCHEDULER_BUILD_FAILURE_WEIGHT_MULTIPLIER": "1e7"},
            r"build_failure_weight_multiplier is 10000000.0 \(.*\): .* add up to 1.*e\+07, must be at most 1e\+07",
        ),
        # Beside what a request prefers, which counts 1000 without a setting.
        (
            SCHEDULER,
            {"MOOR_SCHEDULER_BUILD_FAILURE_WEIGHT_MULTIPLIER": "9999990"},
            r"build_failure_weight_multiplier is 9999990.0 \(.*\): .* add up to 1.*e\+07, must be at most 1e\+07",
        ),
        (SCHEDULER, {"MOOR_SCHEDULER_PCI_WEIGHT_MULTIPLIER": "-1"}, "pci_weight_multiplier is '-1' .* must be a number, at least 0"),
        (
            SCHEDULER,
            {"MOOR_SCHEDULER_METRICS_WEIGHTS": "temperature"},
            "metrics_weights has 'temperature', must be NAME=NUMBER, such as temperature=-1.0",
        ),
        (SCHEDULER, {"MOOR_SCHEDULER_FILTERS": "metrics"}, "filters names 'metrics', and metrics_weights names no metric"),
        (
            SCHEDULER,
            {"MOOR_SCHEDULER_HOST_SUBSET_SIZE": "1001"},
            r"host_subset_size is '1001' \(.*\): must be a whole number, at least 1, at most 1000",
        ),
        (
            SCHEDULER,
            {"MOOR_SCHEDULER_ALTERNATES_MAX": "21"},
            r"alternates_max is '21' \(.*\): must be a whole number, at least 0, at most 20",
        ),
        (PLACEMENT, {"MOOR_PLACEMENT_X": "3"}, "placement.x .* known are horizon_s, tombstones_max, log_kept_s"),
        (COMPUTE, {"MOOR_COMPUTE_CELL": "c2"}, "compute.cell .* no such setting"),
        (SCHEDULER, {"MOOR_SCHEDULER_MOVE_TIMEOUT_S": "1.5"}, "move_timeout_s is '1.5' .* must be a whole number"),
        (BUS, {"MOOR_BUS_DRAIN_MS_MAX": "long"}, r"bus.drain_ms_max is 'long' \(MOOR_BUS_DRAIN_MS_MAX\): must be a number"),
        (BUS, {"MOOR_BUS_DRAIN_MS_MAX": "nan"}, "bus.drain_ms_max is 'nan' .* must be a number, at least 0, at most 100 years"),
        (
            SCHEDULER,
            {"MOOR_SCHEDULER_INSTANCES_PER_HOST_MAX": "2147483648"},
            "instances_per_host_max is '2147483648' .* must be a whole number, at least 0, at most 2147483647",
        ),
        (BUS, {"MOOR_BUS_DRAIN_MS_MAX": "-1"}, "bus.drain_ms_max is '-1' .* must be a number, at least 0,"),
        (
            SCHEDULER,
            {"MOOR_SCHEDULER_HORIZON_S": "1000000000000"},
            "scheduler.horizon_s is '1000000000000' .* must be a whole number, at least 1, at most 2147483647",
        ),
        (
            BUS,
            {"MOOR_BUS_DRAIN_MS_MAX": "1e300"},
            "bus.drain_ms_max is '1e300' .* must be a number, at least 0, at most 100 years",
        ),
        (
            IRONIC_DAEMONS,
            {"MOOR_IRONIC_LEASE_S": "1"},
            r"lease_s is 1.0 \(MOOR_IRONIC_LEASE_S\): .* must be at least 2",
        ),
        (CONDUCTOR, {"MOOR_CONDUCTOR_ATTEMPT_TIMEOUT_S": "soon"}, r"'soon' \(MOOR_CONDUCTOR_ATTEMPT_TIMEOUT_S\): must be a number"),
        (
            SCHEDULER,
            {"MOOR_SCHEDULER_REQUEST_TIMEOUT_S": "60", "MOOR_SCHEDULER_NODE_REQUEST_TIMEOUT_S": "50"},
            r"node_request_timeout_s is 50 \(MOOR_SCHEDULER_NODE_REQUEST_TIMEOUT_S\): .*; scheduler.request_timeout_s is 60 \(MOOR_S",
        ),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_named_with_its_value(
    section: Section[Any], variables: Mapping[str, str], what: str
) -> None:
    with pytest.raises(BadSetting, match=what):
        section.read(variables)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[schedular]\nmove_timeout_s = 3", "schedular .* did you mean scheduler"),
        ("scheduler = 3", "scheduler .* must be a table"),
        (
            "[scheduler]\nmove_timeout = 3",
            r"scheduler.move_timeout \(.*c.toml\): .* did you mean move_timeout_s",
        ),
        ("[scheduler]\nmove_timeout_s = '3'", "scheduler.move_timeout_s is '3' .* must be a whole number"),
        ("[scheduler]\nmove_timeout_s = 3.0", "scheduler.move_timeout_s is 3.0 .* must be a whole number"),
        ("[scheduler]\nmove_timeout_s = true", "scheduler.move_timeout_s is True .* must be a whole number"),
        (
            "[bus]\ndrain_ms_max = inf",
            "bus.drain_ms_max is inf .* must be a number, at least 0, at most 100 years",
        ),
    ],
)
def test_a_wrong_table_is_named_with_its_key_and_value(tmp_path: Path, text: str, what: str) -> None:
    file = a_file(tmp_path / "c.toml", text)

    with pytest.raises(BadSetting, match=what):
        of_cloud(sources({}, config=file, here=HERE).of, CloudSettings())


@pytest.mark.parametrize(("section", "field"), every_field(), ids=lambda each: getattr(each, "name", each))
def test_zero_is_refused_wherever_it_has_no_meaning(section: Section[Any], field: str) -> None:
    variable = section.variable(field)
    if f"{section.name}.{field}" in ZERO_SAYS_SOMETHING:
        section.read({variable: "0"})
        return
    with pytest.raises(BadSetting, match=rf"{section.name}.{field} is (\('0',\)|'?0(.0)?'?) \({variable}\)"):
        section.read({variable: "0"})


@pytest.mark.parametrize("worker", ["scheduler", "placement", "conductor", "compute"])
def test_a_worker_that_moor_runs_reads_its_variables_and_does_not_start_with_a_wrong_one(worker: str) -> None:
    command = ["run", worker, "--bus", "unix:///nowhere", "--db", "sqlite:////nowhere/x"]
    cell = ["--cell", "c1"] if worker in ("conductor", "compute") else []

    for variable in ("MOOR_BUS_PREFETCH", next(iter(variables_of(worker)))):
        done = CliRunner().invoke(app, [*command, *cell], env={variable: "0", "COLUMNS": "300"})

        assert done.exit_code == 2, done.output
        assert f"({variable})" in done.output


def variables_of(name: str) -> list[str]:
    section = SECTIONS[name]
    return [
        section.variable(field) for field in section.settings if f"{name}.{field}" not in ZERO_SAYS_SOMETHING
    ]
