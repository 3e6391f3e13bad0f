"""Which versions of Nova's and Placement's databases are read: by their last migration."""

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct


class Version(Struct, frozen=True):
    migration: str


class NovaDatabaseKind(Enum):
    """A kind of database: what it is called, and its tables that are read."""

    API = "Nova API"
    CELL = "Nova cell"
    PLACEMENT = "Placement"

    def __str__(self) -> str:
        return self.value

    @property
    def expected(self) -> str:
        return {
            NovaDatabaseKind.API: "the one that [api_database] connection of nova.conf names",
            NovaDatabaseKind.CELL: "the one that `nova-manage cell_v2 list_cells` names",
            NovaDatabaseKind.PLACEMENT: "the one that [placement_database] connection of placement.conf names",
        }[self]


# Of each kind, in their order. Nova's first ones are those of Wallaby and Xena; the last ones are those of Nova 34 and Placement 16.
KNOWN: dict[NovaDatabaseKind, tuple[str, ...]] = {
    NovaDatabaseKind.API: ("d67eeaabee36", "b30f573d3377", "cdeec0c85668"),
    NovaDatabaseKind.CELL: (
        *("8f2f1571d55b", "16f1fbcab42b", "ccb0fa1a2252", "960aac0e09ea", "1b91788ec3a6", "1acf2c98e646"),
        *("13863f4e1612", "d60bddf7a903", "2903cd72dc14", "ab450ba04102"),
    ),
    NovaDatabaseKind.PLACEMENT: (
        "b4ed3a175331",
        "611cd6dffd7b",
        "b5c396305c25",
        "422ece571366",
        "a082b8bb98d0",
    ),
}
_TABLES: dict[NovaDatabaseKind, tuple[str, ...]] = {
    NovaDatabaseKind.API: (
        *(
            "cell_mappings",
            "host_mappings",
            "instance_mappings",
            "flavors",
            "flavor_extra_specs",
            "request_specs",
        ),
        *("build_requests", "aggregates", "aggregate_hosts", "aggregate_metadata", "instance_groups"),
        *("instance_group_policy", "instance_group_member"),
    ),
    NovaDatabaseKind.CELL: (
        *("compute_nodes", "services", "instances", "instance_extra", "instance_faults", "instance_actions"),
        *("migrations", "pci_devices", "block_device_mapping"),
    ),
    NovaDatabaseKind.PLACEMENT: (
        *("resource_providers", "inventories", "allocations", "consumers", "resource_classes", "projects"),
        *("users",),
    ),
}


def tables_of(kind: NovaDatabaseKind) -> tuple[str, ...]:
    return (*_TABLES[kind], "alembic_version")


def judge_version(kind: NovaDatabaseKind, found: Sequence[str]) -> Version | str:
    """The version; or why a database whose last migrations are these is not read."""
    known = KNOWN[kind]
    if len(found) == 1 and found[0] in known:
        return Version(found[0])
    if not found:
        return f"this {kind} database has no version: its last migration is missing, known are {known[0]} to {known[-1]}"
    return (
        f"this is a {kind} database of another version: its last migration is {', '.join(found)}, known are {known[0]} to "
        f"{known[-1]}"
    )
