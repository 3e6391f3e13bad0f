"""A large Nova, for measurements: `python -m tests.nova.large DIRECTORY [HOSTS INSTANCES]` writes its databases and prints their URLs."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.nova.rows import FlavorRow, NovaRows
from tests.nova.schema import NovaAddresses, sqlite_databases

CELL = "c1"
FLAVORS = (
    FlavorRow(name="m1.small", vcpus=1, ram_mb=2048, root_gb=10, id=1),
    FlavorRow(
        name="m1.medium", vcpus=2, ram_mb=4096, root_gb=20, id=2, extra_specs={"hw_rng:allowed": "True"}
    ),
    FlavorRow(name="m1.large", vcpus=4, ram_mb=8192, root_gb=40, id=3),
)
STATES = ("active", "active", "active", "stopped", "error")
PROJECTS = 50
# One instance of a hundred is in a group.
GROUPED = 100


def large(directory: Path, hosts: int, instances: int) -> NovaAddresses:
    addresses = sqlite_databases(directory, (CELL,))
    with NovaRows(addresses) as nova:
        for flavor in FLAVORS:
            nova.flavor(flavor)
        names = [host_name(number) for number in range(hosts)]
        for name in names:
            nova.host(CELL, name)
            nova.disable(CELL, name)
        nova.aggregate("rack-1", names[: hosts // 2], rack="1")
        ids = [
            nova.instance(
                CELL,
                names[number % hosts],
                number,
                flavor=FLAVORS[number % len(FLAVORS)],
                vm_state=STATES[number % len(STATES)],
                project_id=f"project-{number % PROJECTS}",
            )
            for number in range(instances)
        ]
        for number in range(0, instances - PROJECTS, GROUPED):
            pair = (ids[number], ids[number + PROJECTS])
            nova.group(f"group-{number}", "soft-anti-affinity", pair, project=f"project-{number % PROJECTS}")
    return addresses


def host_name(number: int) -> str:
    """As `moor up --hosts` names them."""
    return f"{CELL}-host-{number + 1:05d}"


def main(arguments: Sequence[str]) -> None:
    directory, *sizes = arguments
    hosts, instances = map(int, sizes) if sizes else (1_000, 20_000)
    print(" ".join(large(Path(directory), hosts, instances).arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
