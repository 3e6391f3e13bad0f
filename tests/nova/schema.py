"""Empty databases of Nova and Placement.

Their own migrations made them: `schemas/` has what came out, of the tables that `moor nova import` reads and their neighbours
(`python -m tests.nova.schema` writes it anew, and `make conformance` compares it). `migrate` runs the migrations; for it `nova` and `openstack-placement` are installed
into an environment of their own, which takes minutes.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from tests.environments import environment

REQUIREMENTS = ("nova>=34", "openstack-placement>=16", "PyMySQL>=1.1")
# The first migrations of Nova's that are known: there, `instances` has no compute_id.
OLDEST = ("d67eeaabee36", "8f2f1571d55b")
NEWEST = ("head", "head")
SCHEMAS = Path(__file__).parent / "schemas"
TABLES = {
    "api": (
        "aggregate_hosts",
        "aggregate_metadata",
        "aggregates",
        "alembic_version",
        "build_requests",
        "cell_mappings",
        "flavor_extra_specs",
        "flavor_projects",
        "flavors",
        "host_mappings",
        "instance_group_member",
        "instance_group_policy",
        "instance_groups",
        "instance_mappings",
        "request_specs",
    ),
    "cell": (
        "alembic_version",
        "block_device_mapping",
        "compute_nodes",
        "instance_actions",
        "instance_extra",
        "instance_faults",
        "instances",
        "migrations",
        "pci_devices",
        "services",
    ),
    "placement": (
        "alembic_version",
        "allocations",
        "consumer_types",
        "consumers",
        "inventories",
        "placement_aggregates",
        "projects",
        "resource_classes",
        "resource_provider_aggregates",
        "resource_provider_traits",
        "resource_providers",
        "traits",
        "users",
    ),
}


class NovaAddresses(Struct, frozen=True):
    """The URLs of its databases, as `moor nova import` gets them; `cells` by the name of the cell here."""

    api: str
    cells: dict[str, str]
    placement: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        cells = [part for name, url in self.cells.items() for part in ("--cell-db", f"{name}={url}")]
        placement = ("--placement-db", self.placement) if self.placement else ()
        return ("--api-db", self.api, *cells, *placement)


def sqlite_databases(
    directory: Path, cells: tuple[str, ...] = ("c1",), *, old: bool = False, placement: bool = True
) -> NovaAddresses:
    """Empty databases in this directory; `old`: as the oldest known migrations leave them."""
    directory.mkdir(parents=True, exist_ok=True)

    def made(database: str, name: str) -> str:
        with closing(sqlite3.connect(directory / name)) as connection:
            connection.executescript(schema_file(database, old=old).read_text())
        return f"sqlite:///{directory / name}"

    return NovaAddresses(
        made("api", "nova_api.db"),
        {cell: made("cell", f"nova_{cell}.db") for cell in cells},
        made("placement", "placement.db") if placement else "",
    )


def schema_file(database: str, *, old: bool) -> Path:
    # The oldest Placement in use has the tables of the newest.
    return SCHEMAS / f"{database}{'-old' if old and database != 'placement' else ''}.sql"


def schemas_of_migrations(*, old: bool) -> dict[Path, str]:
    """The text that belongs in each file of `schemas/`."""
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        here = Path(place)
        urls = [f"sqlite:///{here / database}.db" for database in TABLES]
        migrate(urls[0], urls[1], urls[2], here, OLDEST if old else NEWEST)
        return {
            schema_file(database, old=old): _script_of(here / f"{database}.db", tables)
            for database, tables in TABLES.items()
        }


def migrate(api: str, cell: str, placement: str, directory: Path, versions: tuple[str, str] = NEWEST) -> None:
    """Run the migrations on these databases (SQLAlchemy's URLs), by Nova's and Placement's own commands."""
    programs = environment("nova", REQUIREMENTS)
    nova, of_placement = directory / "nova.conf", directory / "placement.conf"
    nova.write_text(f"[database]\nconnection = {cell}\n[api_database]\nconnection = {api}\n")
    of_placement.write_text(f"[placement_database]\nconnection = {placement}\n")
    api_version, cell_version = ([] if each == "head" else [each] for each in versions)
    for command in (
        ["nova-manage", "--config-file", str(nova), "api_db", "sync", *api_version],
        ["nova-manage", "--config-file", str(nova), "db", "sync", "--local_cell", *cell_version],
        ["placement-manage", "--config-file", str(of_placement), "db", "sync"],
    ):
        done = subprocess.run(
            [str(programs / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": str(directory)},
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def _script_of(file: Path, tables: tuple[str, ...]) -> str:
    with closing(sqlite3.connect(file)) as connection:
        found = connection.execute(
            "SELECT tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name"
        )
        statements = [sql for table, sql in found if table in tables]
        (version,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    lines = "\n".join(f"{each};" for each in statements).splitlines()
    return "\n".join(
        [*(each.rstrip() for each in lines), f"INSERT INTO alembic_version VALUES ('{version}');", ""]  # noqa: S608
    )


def main() -> None:
    made = {**schemas_of_migrations(old=False), **schemas_of_migrations(old=True)}
    if sys.argv[1:] == ["--compare"]:
        others = [file.name for file, text in made.items() if file.read_text() != text]
        sys.exit(f"the migrations make something else: {', '.join(others)}" if others else 0)
    for file, text in made.items():
        file.write_text(text)


if __name__ == "__main__":
    main()
