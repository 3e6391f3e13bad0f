"""Empty databases of Nova and Placement, made by their own migrations.

`nova` and `openstack-placement` are installed into an environment of their own on first use. Files of SQLite are made once, and copied.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from msgspec import Struct

from tests.environments import DIRECTORY, environment

REQUIREMENTS = ("nova>=34", "openstack-placement>=16", "PyMySQL>=1.1")
# The first migrations of Nova's that are known: there, `instances` has no compute_id.
OLDEST = ("d67eeaabee36", "8f2f1571d55b")
NEWEST = ("head", "head")


class NovaAddresses(Struct, frozen=True):
    """The URLs of its databases, as `moor import nova` gets them; `cells` by the name of the cell here."""

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
    """Copies of the empty databases, in this directory; `old`: as the oldest known migrations leave them."""
    template = _template(old=old)
    directory.mkdir(parents=True, exist_ok=True)

    def copied(name: str, to: str) -> str:
        shutil.copyfile(template / name, directory / to)
        return f"sqlite:///{directory / to}"

    return NovaAddresses(
        copied("api.db", "nova_api.db"),
        {cell: copied("cell.db", f"nova_{cell}.db") for cell in cells},
        copied("placement.db", "placement.db") if placement else "",
    )


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


def _template(*, old: bool) -> Path:
    programs = environment("nova", REQUIREMENTS)
    here = DIRECTORY / "nova-databases" / ("old" if old else "new")
    here.parent.mkdir(exist_ok=True)
    with (here.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Made again with another environment.
        made_by = (programs.parent / "made-for.txt").read_text()
        if not (here / "made-by.txt").exists() or (here / "made-by.txt").read_text() != made_by:
            shutil.rmtree(here, ignore_errors=True)
            here.mkdir()
            urls = [f"sqlite:///{here / name}.db" for name in ("api", "cell", "placement")]
            migrate(urls[0], urls[1], urls[2], here, OLDEST if old else NEWEST)
            (here / "made-by.txt").write_text(made_by)
    return here
