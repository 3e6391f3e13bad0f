"""`moor db`: the tables of all workers, and the roles by which workers use them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import click
from msgspec import Struct
from rich.markup import escape

from bus.addresses import Addresses
from cell_conductor.tables import metadata as conductor_tables
from compute_sim.tables import metadata as compute_tables
from ironic_sync.tables import metadata as ironic_tables
from keeper.tables import metadata as keeper_tables
from kit.errors import Failure
from kit.settings import without_password
from kit.sql import RoleRights, grant_rights, make_roles, version_table
from kit.sql import upgrade as upgrade_tables
from moor.flags import Commands, option
from moor.options import (
    Cells,
    DatabaseUrl,
    IronicDatabaseUrl,
    Output,
    PlacementDatabaseUrl,
    command_settings,
    out,
    run,
    tuned,
    wants_document,
    wrong_value,
)
from moor.secret_files import (
    EnvironmentDirectory,
    PasswordDirectory,
    PasswordFiles,
    ReplaceEnvironment,
    Rotate,
    changes_credentials,
    environment_files,
    files_of_passwords,
    known_passwords,
    passwords_of,
    write_all,
)
from moor.showing import print_json
from moor.tables import Columns, print_table
from moor.worker_settings import DATABASE
from placement_worker.tables import metadata as placement_tables
from scheduler_worker.tables import metadata as scheduler_tables

# Which roles a database has, one for each kind of worker, and the rights that each needs there.
#
# A worker may do with each of its tables what its statements do, and has no right on another worker's table. SELECT ... FOR UPDATE
# needs the right to update. On PostgreSQL the tests of each store connect by its role (tests/contracts/sql_stores.py).

PLACEMENT, SCHEDULER, CONDUCTOR, COMPUTE, IRONIC, KEEPER = (
    *("placement_worker", "scheduler_worker", "cell_conductor", "compute_sim"),
    *("ironic_sync", "keeper"),
)
# Placement's tables and the bare-metal daemons' may be in databases of their own; these may not.
OTHERS = (SCHEDULER, CONDUCTOR, COMPUTE, KEEPER)
# The packages whose tables are in a cell's own database, where a cell has one.
OF_CELLS = (CONDUCTOR, COMPUTE)
OWNER = "owner"

_TABLES: Mapping[str, tuple[str, ...]] = {
    package: (*metadata.tables, version_table(package))
    for package, metadata in {
        PLACEMENT: placement_tables,
        SCHEDULER: scheduler_tables,
        CONDUCTOR: conductor_tables,
        COMPUTE: compute_tables,
        IRONIC: ironic_tables,
        KEEPER: keeper_tables,
    }.items()
}
READ, ADD, CHANGE, DELETE = "SELECT", "INSERT", "UPDATE", "DELETE"
ALL = (READ, ADD, CHANGE, DELETE)


class DatabaseRole(Struct, frozen=True):
    """The role of one kind of worker. It may do everything with the tables of its package, except with those that are listed."""

    worker: str
    package: str
    listed: Mapping[str, tuple[str, ...]]
    numbers: tuple[str, ...] = ()
    # An operator only has the tables that are listed.
    others: tuple[str, ...] = ALL

    def rights(self, cell: str = "") -> RoleRights:
        listed = {version_table(self.package): (READ,), **self.listed}
        tables = {table: listed.get(table, self.others) for table in _TABLES[self.package]}
        return RoleRights(role_name(self.worker, cell), tables, self.numbers)


# Names that a deployment no longer uses stay as rows (placement_worker/tables.py); the pairs of a key have nothing to change.
_PLACEMENT = {
    "resource_classes": (READ, ADD, CHANGE),
    "traits": (READ, ADD, CHANGE),
    "provider_traits": (READ, ADD, DELETE),
    "provider_places": (READ, ADD, DELETE),
    "provider_aggregates": (READ, ADD, DELETE),
    "holders": (READ, ADD, DELETE),
    "change_log": (READ, ADD, DELETE),
    "feed": (READ, CHANGE),
}
ROLES = (
    DatabaseRole("placement", PLACEMENT, _PLACEMENT, numbers=("providers",)),
    DatabaseRole(
        "placement-api",
        PLACEMENT,
        # Operators set quotas by the workers.
        {**_PLACEMENT, "quotas": (READ, CHANGE)},
        numbers=("providers",),
    ),
    DatabaseRole(
        "scheduler",
        SCHEDULER,
        {
            "application_orders": (READ, ADD, CHANGE),
            "known_flavors": (READ, ADD, DELETE),
            "known_cells": (READ, ADD, CHANGE),
        },
    ),
    DatabaseRole("conductor", CONDUCTOR, {"cell_hosts": (READ, ADD, CHANGE)}),
    DatabaseRole("ironic", IRONIC, {}),
    DatabaseRole("keeper", KEEPER, {"keeper_ledger": (READ, CHANGE)}),
    # `moor node ring` and `moor node` read the nodes' rows, and drain daemons.
    DatabaseRole("operator", IRONIC, {"ironic_nodes": (READ,), "ironic_daemons": (READ, CHANGE)}, others=()),
)


class DatabaseUse(Struct, frozen=True):
    """One database: whose tables are there, and the cells whose instances are."""

    url: str
    packages: tuple[str, ...]
    cells: tuple[str, ...]

    @property
    def owner(self) -> RoleRights:
        owned = {table: () for package in self.packages for table in _TABLES[package]}
        return RoleRights(role_name(OWNER), owned)

    @property
    def roles(self) -> tuple[RoleRights, ...]:
        return tuple(
            role.rights(cell)
            for role in ROLES
            if role.package in self.packages
            for cell in (self.cells if role.package == CONDUCTOR else ("",))
        )


def role_name(worker: str, cell: str = "") -> str:
    """The name of a worker's role on PostgreSQL; that of a cell's worker has the cell in it."""
    name = f"moor_{worker.replace('-', '_')}"
    return f"{name}_{cell}" if cell else name


def databases_of(addresses: Addresses) -> tuple[DatabaseUse, ...]:
    """The named databases, each once, with what it has. The tables of a cell without a database of its own are in the common one."""
    apart = [cell for cell in addresses.cells if cell in addresses.cell_db_urls]
    common = [cell for cell in addresses.cells if cell not in addresses.cell_db_urls]
    uses: list[tuple[str, Iterable[str], Iterable[str]]] = [
        (addresses.placement_db, (PLACEMENT,), ()),
        (addresses.db_url, OTHERS, common),
        (addresses.ironic_db, (IRONIC,), ()),
        *((addresses.cell_db_urls[cell], OF_CELLS, (cell,)) for cell in apart),
    ]
    found: dict[str, DatabaseUse] = {}
    for url, packages, cells in uses:
        if url:
            before = found.get(url, DatabaseUse(url, (), ()))
            found[url] = DatabaseUse(
                url,
                tuple(dict.fromkeys((*before.packages, *packages))),
                tuple(dict.fromkeys((*before.cells, *cells))),
            )
    return tuple(found.values())


app = Commands("The database's tables, and the roles of workers there.")

RIGHTS = Columns[tuple[str, str, str]](
    {"role": lambda each: each[0], "table": lambda each: each[1], "may": lambda each: each[2]}
)


@app.verb()
def upgrade(
    db: DatabaseUrl = "", placement_db: PlacementDatabaseUrl = "", ironic_db: IronicDatabaseUrl = ""
) -> None:
    """Create or alter the tables that this release needs, in every named database. Safe to repeat and to run concurrently.

    Where `moor db users` has made roles, they get their rights on new tables.
    """
    addresses = _named(db, placement_db, ironic_db)
    settings = tuned(DATABASE)

    async def work() -> None:
        for use in databases_of(addresses):
            of_cell = f" of {', '.join(use.cells)}" if use.packages == OF_CELLS else ""
            with _telling(use.url):
                for owner in use.packages:
                    before, after = await upgrade_tables(use.url, owner, settings)
                    what = "is up to date" if before == after else f"upgraded from {before or 'nothing'}"
                    out.print(f"{owner}{of_cell}: [green]{after}[/green] ({what})")
                granted = await grant_rights(use.url, use.owner, use.roles, settings)
            if granted:
                out.print(f"rights of {', '.join(granted)}: [green]granted[/green]")

    run(work())


@app.verb()
@changes_credentials
def users(
    db: DatabaseUrl = "",
    placement_db: PlacementDatabaseUrl = "",
    ironic_db: IronicDatabaseUrl = "",
    cells: Cells = "",
    *,
    credentials: Annotated[
        Path,
        option(
            help="The file of the roles' passwords: known ones are read from it, new ones are made and added.",
        ),
    ],
    env_dir: EnvironmentDirectory = None,
    replace_env: ReplaceEnvironment = False,
    password_dir: PasswordDirectory = None,
    rotate: Rotate = None,
) -> None:
    """Make a role for each kind of worker in every named database, with the rights that it needs, and one that owns the tables.

    The URLs name an administrator, who may create roles. Safe to repeat: passwords and rights are set again as they must be.
    `moor db upgrade` then runs as moor_owner.
    """
    addresses = _named(db, placement_db, ironic_db, cells)
    uses = databases_of(addresses)
    if not addresses.cells:
        raise click.BadParameter(
            "no cell is named, and each has a conductor with a role: give --cells or MOOR_CELLS"
        )
    _check_postgresql(uses)
    known = known_passwords(credentials)
    password_files = files_of_passwords(password_dir, "database")
    names = dict.fromkeys((role_name(OWNER), *(role.name for use in uses for role in use.roles)))
    passwords = passwords_of(names, known, rotate)
    _check_passwords(passwords, credentials)
    with wrong_value("a database's URL: "):
        variables = _variables(addresses, passwords, password_files)
    files = environment_files(env_dir, variables, replace=replace_env)
    settings = tuned(DATABASE)

    async def tried() -> None:
        for use in uses:
            with _telling(use.url):
                await make_roles(use.url, use.owner, use.roles, passwords, settings, is_trial=True)

    # What the databases refuse must not be in the files.
    run(tried())
    write_all(credentials, known, passwords, files=files, password_files=password_files)

    async def work() -> None:
        for use in uses:
            with _telling(use.url):
                done = await make_roles(use.url, use.owner, use.roles, passwords, settings)
            made = f"made {', '.join(done.made)}" if done.made else "all were there"
            out.print(f"roles in {escape(without_password(use.url))}: [green]{made}[/green]", soft_wrap=True)
            if done.former_owners:
                out.print(f"tables of {', '.join(done.former_owners)} now belong to {use.owner.name}")

    run(work())
    out.print(f"their passwords are in {escape(str(credentials))}", soft_wrap=True)


@app.verb()
def rights(cells: Cells = "", *, _output: Output = None) -> None:
    """Show what the role of each kind of worker may do with which table. Reads no database."""
    here = command_settings(cells=cells).addresses.cells or ("one-cell",)
    use = DatabaseUse("", (PLACEMENT, *OTHERS, IRONIC), here)
    rows = [
        (role.name, table, ", ".join(may))
        for role in use.roles
        for table, may in sorted(role.tables.items())
        if may
    ]
    if wants_document():
        print_json([{"role": role, "table": table, "may": may.split(", ")} for role, table, may in rows])
        return
    print_table(rows, RIGHTS)


def _named(db: str, placement_db: str, ironic_db: str, cells: str = "") -> Addresses:
    addresses = command_settings(db=db, placement_db=placement_db, ironic_db=ironic_db, cells=cells).addresses
    if not databases_of(addresses):
        raise click.BadParameter("no database is named: give --db, MOOR_DB_URL or db_url in a file")
    return addresses


@contextmanager
def _telling(url: str) -> Iterator[None]:
    """Name the database in what goes wrong with it: of several, one may be that of a variable that is set for another command."""
    try:
        yield
    except Failure as problem:
        raise Failure(f"{without_password(url)}: {problem}") from None


def _check_postgresql(uses: tuple[DatabaseUse, ...]) -> None:
    for use in uses:
        if not use.url.startswith("postgresql"):
            raise click.BadParameter(
                f"the database is {without_password(use.url)!r}: roles exist only on PostgreSQL; whoever may read "
                "a SQLite file may do everything with it"
            )


def _check_passwords(passwords: Mapping[str, str], file: Path) -> None:
    for name, password in passwords.items():
        if not password.isascii() or not password.isprintable():
            raise click.BadParameter(
                f"the password of {name} in {str(file)!r} has other characters than ASCII's printable ones"
            )


def _variables(
    addresses: Addresses, passwords: Mapping[str, str], files: PasswordFiles
) -> dict[str, dict[str, str]]:
    """The variables of each environment file, by its name. The files of workers are those of their users on the broker."""

    def url(of: str, worker: str, cell: str = "") -> str:
        name = role_name(worker, cell)
        return files.login(of, name, passwords[name]) if of else ""

    variables = {
        "moor-placement": {"MOOR_DB_URL": url(addresses.placement_db, "placement")},
        "moor-placement-api": {"MOOR_DB_URL": url(addresses.placement_db, "placement-api")},
        "moor-scheduler": {"MOOR_DB_URL": url(addresses.db_url, "scheduler")},
        "moor-keeper": {"MOOR_DB_URL": url(addresses.db_url, "keeper")},
        "moor-ironic": {"MOOR_DB_URL": url(addresses.ironic_db, "ironic")},
        "moor-operator": {"MOOR_IRONIC_DB_URL": url(addresses.ironic_db, "operator")},
        **{
            f"moor-conductor-{cell}": {"MOOR_DB_URL": url(addresses.db_of(cell), "conductor", cell)}
            for cell in addresses.cells
        },
        "moor-owner": {
            "MOOR_DB_URL": url(addresses.db_url, OWNER),
            "MOOR_PLACEMENT_DB_URL": url(addresses.placement_db_url, OWNER),
            "MOOR_IRONIC_DB_URL": url(addresses.ironic_db_url, OWNER),
            "MOOR_CELL_DB_URLS": ",".join(
                f"{cell}={url(of, OWNER)}" for cell, of in addresses.cell_db_urls.items()
            ),
            "MOOR_CELLS": ",".join(addresses.cells),
        },
    }
    return {name: each for name, each in variables.items() if any(each.values())}
