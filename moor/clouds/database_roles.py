"""Which roles a database has, one for each kind of worker, and the rights that each needs there.

A worker may do with each of its tables what its statements do, and has no right on another worker's table. SELECT ... FOR UPDATE
needs the right to update. On PostgreSQL the tests of each store connect by its role (tests/contracts/worker_roles.py).
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from bus.addresses import Addresses
from cell_conductor.tables import metadata as conductor_tables
from compute_sim.tables import metadata as compute_tables
from ironic_sync.tables import metadata as ironic_tables
from kit.sql import RoleRights, version_table
from placement_worker.tables import metadata as placement_tables
from scheduler_worker.tables import metadata as scheduler_tables

PLACEMENT, SCHEDULER, CONDUCTOR, COMPUTE, IRONIC = (
    *("placement_worker", "scheduler_worker", "cell_conductor", "compute_sim"),
    "ironic_sync",
)
# Placement's tables and the bare-metal daemons' may be in databases of their own; these may not.
OTHERS = (SCHEDULER, CONDUCTOR, COMPUTE)
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
        {
            **_PLACEMENT,
            # What its clients write is published, and removed when it is old, by the workers; operators set quotas by these.
            "change_log": (READ, ADD),
            "feed": (READ,),
            "quotas": (READ, CHANGE),
        },
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
    # `moor ring` and `moor node` read the nodes' rows, and drain daemons.
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
