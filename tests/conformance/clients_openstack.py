"""The `openstack` command with the published osc-placement: each of its placement subcommands, one after another.

The steps use one cloud with two hosts, one of them with a network card as a child. Each step is a process, as a person
would start it. A check against the command's own list shows that no subcommand is missing.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from tests.conformance.clients_steps import Step, are_well

PATIENCE_S = 120.0
# The features of the newest version, without asking for a version: the command negotiates one with the server.
NEWEST, SETTLED, FIRST = "1.39", "1", "1.0"

# The names of the steps, and what the command gets and tells in their place.
IDS: Mapping[str, str] = {
    "HOST": "c0000000-0000-4000-8000-000000000001",
    "OTHER": "c0000000-0000-4000-8000-000000000002",
    "CARD": "c0000000-0000-4000-8000-00000000000c",
    "RACK": "a0000000-0000-4000-8000-000000000001",
    "SERVER": "50000000-0000-4000-8000-000000000001",
    "MOVED": "50000000-0000-4000-8000-000000000002",
    "NOWHERE": "00000000-0000-4000-8000-00000000dead",
}
NAMES = {each: name for name, each in IDS.items()}
WHO = "--project-id a-project --user-id a-user"
INSTANCE = f"{WHO} --consumer-type INSTANCE"


class RefusedError(RuntimeError):
    """The command ended with an error; the message holds its output."""


class Openstack:
    """Runs the command as a program; returns its output, or raises its error."""

    def __init__(self, program: Path, url: str, credentials: Sequence[str]) -> None:
        self._before = (str(program), "--os-endpoint", url, *credentials)
        # Ignore the cloud configuration of the person who runs this.
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}

    def __call__(self, command: str, version: str = NEWEST) -> str:
        done = subprocess.run(
            (*self._before, "--os-placement-api-version", version, *command.split()),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode != 0:
            raise RefusedError(done.stderr.strip())
        return done.stdout


class Row(NamedTuple):
    """A command line and what it has to tell, looked at in one way. With `refused` it must fail with this in its words."""

    command: str
    wanted: object = None
    look: Callable[[Any], object] = lambda told: told
    version: str = NEWEST
    refused: str = ""


def of(key: str, *values: str) -> Callable[[Any], object]:
    """The keys of all rows, with the values of each if some are named."""

    def look(told: Any) -> object:
        rows = [told] if isinstance(told, dict) else told
        if not values:
            return {row[key] for row in rows}
        return {row[key]: itemgetter(*values)(row) for row in rows}

    return look


def provider(
    uuid: str, name: str, *, root: str | None = None, parent: str | None = None, generation: int = 0
) -> Mapping[str, object]:
    found = {"uuid": uuid, "name": name, "generation": generation}
    return {**found, "root_provider_uuid": root or uuid, "parent_provider_uuid": parent}


def summaries(rows: Sequence[Mapping[str, str]]) -> object:
    """Of candidates, what is listed in no order."""
    return [
        (row["resource provider"], {*row["traits"].split(",")}, {*row["inventory used/capacity"].split(",")})
        for row in rows
    ]


LIMITS = of("resource_class", "total", "reserved", "min_unit", "step_size", "allocation_ratio")
HELD = of("resource_provider", "resources")
USED = of("resource_class", "usage")
ROWS = (
    # Classes and traits
    Row("resource class create CUSTOM_FPGA"),
    # The second time it exists already, which is no error.
    *[Row("resource class set CUSTOM_GOLD")] * 2,
    Row("resource class show CUSTOM_FPGA", {"name": "CUSTOM_FPGA"}),
    Row("resource class delete CUSTOM_GOLD"),
    Row(
        "resource class list",
        ["CUSTOM_FPGA", "MEMORY_MB", "VCPU"],
        lambda rows: sorted(
            {row["name"] for row in rows} & {"VCPU", "MEMORY_MB", "CUSTOM_FPGA", "CUSTOM_GOLD"}
        ),
    ),
    Row("trait create CUSTOM_FAST"),
    Row("trait create CUSTOM_LOUD"),
    Row("trait show CUSTOM_FAST", {"name": "CUSTOM_FAST"}),
    Row("trait delete CUSTOM_LOUD"),
    Row("trait list --name startswith:CUSTOM_", [{"name": "CUSTOM_FAST"}]),
    Row(
        "trait list --name in:HW_CPU_X86_AVX,CUSTOM_FAST,HW_NO_SUCH",
        {"HW_CPU_X86_AVX", "CUSTOM_FAST"},
        of("name"),
    ),
    # Providers
    Row("resource provider create host --uuid HOST", provider("HOST", "host")),
    Row(
        "resource provider create another --uuid OTHER",
        {"uuid": "OTHER", "name": "another", "generation": 0},
        version=FIRST,
    ),
    Row(
        "resource provider create card --uuid CARD --parent-provider HOST",
        provider("CARD", "card", root="HOST", parent="HOST"),
    ),
    Row("resource provider set OTHER --name other", provider("OTHER", "other")),
    Row(
        "resource provider set CARD --name card --parent-provider OTHER",
        provider("CARD", "card", root="OTHER", parent="OTHER"),
    ),
    Row("resource provider set CARD --name card --parent-provider HOST"),
    Row("resource provider show OTHER", provider("OTHER", "other")),
    Row("resource provider list", {"HOST", "OTHER", "CARD"}, of("uuid")),
    Row("resource provider list --in-tree HOST", {"HOST", "CARD"}, of("uuid")),
    Row("resource provider list --name other", {"OTHER"}, of("uuid")),
    # Inventories
    Row(
        "resource provider inventory set HOST --resource VCPU=8 --resource VCPU:allocation_ratio=2.0"
        " --resource MEMORY_MB=4096 --resource MEMORY_MB:reserved=512",
        {"VCPU": (8, 0, 1, 1, 2.0), "MEMORY_MB": (4096, 512, 1, 1, 1.0)},
        LIMITS,
    ),
    Row("resource provider inventory set CARD --resource CUSTOM_FPGA=3"),
    Row(
        "resource provider inventory class set CARD CUSTOM_FPGA --total 4",
        {4: (0, 1, 1, 1.0)},
        of("total", "reserved", "min_unit", "step_size", "allocation_ratio"),
    ),
    Row("resource provider inventory set HOST --amend --resource DISK_GB=100"),
    Row("resource provider inventory show HOST VCPU", {8: (2.0, 0)}, of("total", "allocation_ratio", "used")),
    Row("resource provider inventory delete HOST --resource-class DISK_GB"),
    Row(
        "resource provider inventory list HOST",
        {"VCPU": (8, 0, 0), "MEMORY_MB": (4096, 512, 0)},
        of("resource_class", "total", "reserved", "used"),
    ),
    Row("resource provider inventory set OTHER --resource VCPU=1"),
    Row("resource provider inventory delete OTHER"),
    Row("resource provider inventory list OTHER", []),
    # Qualities
    Row(
        "resource provider trait set HOST --trait CUSTOM_FAST --trait HW_CPU_X86_AVX",
        {"CUSTOM_FAST", "HW_CPU_X86_AVX"},
        of("name"),
    ),
    Row("resource provider trait set CARD --trait HW_NIC_SRIOV"),
    Row("resource provider trait list CARD", [{"name": "HW_NIC_SRIOV"}]),
    Row("resource provider trait delete CARD"),
    Row("resource provider trait list CARD", []),
    Row("trait list --associated", {"CUSTOM_FAST", "HW_CPU_X86_AVX"}, of("name")),
    # So many writes were there before.
    Row("resource provider show HOST", 4, itemgetter("generation")),
    Row("resource provider aggregate set HOST --aggregate RACK --generation 4"),
    Row("resource provider show HOST", 5, itemgetter("generation")),
    Row("resource provider aggregate set OTHER --aggregate RACK", version="1.1"),
    Row("resource provider aggregate list HOST", [{"uuid": "RACK"}]),
    Row(
        "resource provider inventory set RACK --aggregate --amend --resource VCPU=8 --dry-run",
        {"HOST", "OTHER"},
        of("resource_provider"),
    ),
    Row("resource provider inventory list OTHER", []),
    Row("resource provider inventory set RACK --aggregate --amend --resource VCPU=8"),
    Row("resource provider inventory list OTHER", {"VCPU": 8}, of("resource_class", "total")),
    Row("resource provider list --member-of RACK", {"HOST", "OTHER"}, of("uuid")),
    Row("resource provider list --resource VCPU=9", {"HOST"}, of("uuid")),
    Row("resource provider list --resource VCPU=17", set(), of("uuid")),
    Row("resource provider list --resource VCPU=8 --required CUSTOM_FAST", {"HOST"}, of("uuid")),
    Row("resource provider list --member-of RACK --forbidden CUSTOM_FAST", {"OTHER"}, of("uuid")),
    # Candidates
    Row(
        "allocation candidate list --resource VCPU=2",
        {"HOST": "VCPU=2", "OTHER": "VCPU=2"},
        of("resource provider", "allocation"),
    ),
    Row(
        "allocation candidate list --resource VCPU=2 --required CUSTOM_FAST,HW_NIC_SRIOV --limit 1",
        [("HOST", {"CUSTOM_FAST", "HW_CPU_X86_AVX"}, {"VCPU=0/16", "MEMORY_MB=0/3584"})],
        summaries,
    ),
    Row(
        "allocation candidate list --resource VCPU=2 --forbidden CUSTOM_FAST",
        {"OTHER"},
        of("resource provider"),
    ),
    Row(
        "allocation candidate list --resource MEMORY_MB=1024 --group 1 --resource VCPU=1"
        " --group 2 --resource CUSTOM_FPGA=1 --group-policy isolate",
        {"HOST": 1, "CARD": 1},
        of("resource provider", "#"),
    ),
    # Allocations
    Row(
        "resource provider allocation set SERVER --allocation rp=HOST,VCPU=4 --allocation rp=HOST,MEMORY_MB=512"
        f" --allocation rp=CARD,CUSTOM_FPGA=1 {INSTANCE}",
        {"HOST": {"VCPU": 4, "MEMORY_MB": 512}, "CARD": {"CUSTOM_FPGA": 1}},
        HELD,
    ),
    Row(
        "resource provider allocation show SERVER",
        {"a-project": ("a-user", "INSTANCE")},
        of("project_id", "user_id", "consumer_type"),
    ),
    Row("resource provider usage show HOST", {"VCPU": 4, "MEMORY_MB": 512}, USED),
    Row(
        "resource usage show a-project --user-id a-user",
        {"VCPU": 4, "MEMORY_MB": 512, "CUSTOM_FPGA": 1},
        USED,
        version="1.9",
    ),
    Row("resource usage show a-project --user-id nobody", [], version="1.9"),
    Row(
        "resource provider show HOST --allocations",
        {"SERVER": {"resources": {"VCPU": 4, "MEMORY_MB": 512}, "consumer_generation": 1}},
        itemgetter("allocations"),
    ),
    Row(
        "resource provider allocation set SERVER --allocation rp=HOST,VCPU=2 --allocation rp=OTHER,VCPU=3"
        f" --allocation rp=HOST,MEMORY_MB=512 {INSTANCE}",
        {"HOST", "OTHER"},
        of("resource_provider"),
    ),
    Row(
        "resource provider allocation unset SERVER --resource-class MEMORY_MB",
        {"HOST": {"VCPU": 2}, "OTHER": {"VCPU": 3}},
        HELD,
    ),
    Row("resource provider allocation unset SERVER --provider OTHER", {"HOST": {"VCPU": 2}}, HELD),
    Row("resource provider allocation delete SERVER"),
    Row("resource provider allocation show SERVER", []),
    # Older versions
    Row("resource provider list", {"HOST", "OTHER", "CARD"}, of("uuid"), version=SETTLED),
    Row("resource provider allocation set MOVED --allocation rp=OTHER,VCPU=8", version=FIRST),
    Row("resource provider allocation show MOVED", {"OTHER": {"VCPU": 8}}, HELD, version=FIRST),
    Row("resource provider allocation unset MOVED", version="1.12"),
    Row("resource provider allocation show MOVED", [], version=FIRST),
    Row("allocation candidate list --resource VCPU=16", {"HOST"}, of("resource provider"), version="1.10"),
    # Refusals: more than the capacity, an old generation, a provider with children, a name that is taken, what is not there
    Row(f"resource provider allocation set SERVER --allocation rp=OTHER,VCPU=9 {INSTANCE}", refused="409"),
    Row("resource provider aggregate set HOST --aggregate RACK --generation 0", refused="409"),
    Row("resource provider delete HOST", refused="409"),
    Row("resource provider create host", refused="409"),
    Row("resource class delete VCPU", refused="400"),
    Row("trait show CUSTOM_UNHEARD_OF", refused="404"),
    Row("resource provider show NOWHERE", refused="404"),
    # The end
    *[Row(f"resource provider delete {each}") for each in ("CARD", "HOST", "OTHER")],
    Row("resource provider list", []),
    Row("trait delete CUSTOM_FAST"),
    Row("resource class delete CUSTOM_FPGA"),
)


def openstack_works(openstack: Openstack, title: str) -> bool:
    return are_well(title, steps(openstack))


def a_wrong_password_is_refused(openstack: Openstack, title: str) -> bool:
    """The refusal must say so in words: the command looks for them in the answer."""
    row = Row("resource provider list", refused="the password is wrong (HTTP 401)")
    return are_well(title, [Step(row.command, partial(seen, openstack, row), row.refused)])


def steps(openstack: Openstack) -> Iterator[Step]:
    for row in ROWS:
        version = "" if row.version == NEWEST else f", at version {row.version}"
        yield Step(f"{row.command}{version}", partial(seen, openstack, row), row.refused or row.wanted)
    told = json.loads(openstack("command list --group openstack.placement.v1 -f json"))
    subcommands = {command for group in told for command in group["Commands"]}
    unused = {
        each for each in subcommands if not any(f"{row.command} ".startswith(f"{each} ") for row in ROWS)
    }
    yield Step("every subcommand was used", lambda: unused, set())


def seen(openstack: Openstack, row: Row) -> object:
    is_told = row.wanted is not None
    try:
        printed = openstack(_replaced(row.command, IDS) + " -f json" * is_told, row.version)
    except RefusedError as refusal:
        if row.refused and row.refused in str(refusal):
            return row.refused
        raise
    return row.look(json.loads(_replaced(printed, NAMES))) if is_told else None


def _replaced(text: str, names: Mapping[str, str]) -> str:
    return re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[0]], text)
