"""`moor nova export-history`: the arrivals that a Nova remembers, as a trace for `moor replay`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from kit.clock import now
from moor.flags import argument, option
from moor.options import check_writable, fail, run, say, tell
from moor.traces import ArrivedInstance, arrived, write_trace
from nova_bridge.databases import NovaDatabase, NovaDatabaseError, NovaDatabaseKind, open_nova_database
from nova_bridge.importing.records import ContradictionError, moment_in, whole_in

# So many rows are read at once.
ROWS = 10_000
USED = {
    "instances": (
        *("id", "uuid", "reservation_id", "vcpus", "memory_mb", "root_gb", "ephemeral_gb", "created_at"),
        *("launched_at", "terminated_at", "deleted_at", "deleted", "node"),
    ),
    "compute_nodes": ("hypervisor_hostname", "hypervisor_type", "deleted"),
}
# Also those that were deleted: Nova keeps their rows until an operator archives them.
_INSTANCES = (
    "SELECT id, uuid, reservation_id, vcpus, memory_mb, root_gb, ephemeral_gb, created_at, launched_at, terminated_at, deleted_at,"
    " deleted, node FROM instances WHERE id > :after ORDER BY id LIMIT :rows"
)
_NODES = "SELECT hypervisor_hostname FROM compute_nodes WHERE hypervisor_type = 'ironic'"


def export_history(
    file: Annotated[Path, argument(metavar="FILE", help="Where to write it: CSV.")],
    *,
    cell_db: Annotated[
        list[str],
        option(
            metavar="URL",
            show_default=False,
            help="The database of a cell of Nova: mysql://USER:PASSWORD@HOST/nova, or sqlite:///FILE; may be repeated.",
        ),
    ],
) -> None:
    """Write which instances a Nova was asked for, when, and how long each lived, as a trace for `moor replay`. It names no
    instance, no project and no host.

    The databases are only read. Deleted instances are there until they are archived (`nova-manage db archive_deleted_rows`).
    """
    check_writable("FILE", file)
    try:
        found, left_out = run(_read_all(cell_db))
    except (NovaDatabaseError, ContradictionError) as problem:
        fail(str(problem))
    say(f"{write_trace(file, found, now()):,} instances are in {file}")
    if left_out:
        tell(f"{left_out:,} are left out: they never had a host, or are on bare-metal nodes", "yellow")


async def _read_all(urls: Sequence[str]) -> tuple[list[ArrivedInstance], int]:
    found: list[ArrivedInstance] = []
    left_out = 0
    for number, url in enumerate(urls, 1):
        database = open_nova_database(f"--cell-db {number}", url)
        try:
            await database.check(NovaDatabaseKind.CELL, USED)
            more, over = await _read(database)
        finally:
            await database.close()
        found += more
        left_out += over
    return found, left_out


async def _read(database: NovaDatabase) -> tuple[list[ArrivedInstance], int]:
    found: list[ArrivedInstance] = []
    left_out = after = 0
    async with database.reading() as reading:
        nodes = {str(row["hypervisor_hostname"]) for row in await reading.rows(_NODES)}
        while rows := await reading.rows(_INSTANCES, after=after, rows=ROWS):
            after = int(rows[-1]["id"])
            for row in rows:
                what = f"instances of {row['uuid']}"
                ended_at = moment_in(row, "terminated_at", f"{what}.terminated_at")
                if ended_at is None and row["deleted"]:
                    ended_at = moment_in(row, "deleted_at", f"{what}.deleted_at")
                amounts = {
                    "VCPU": whole_in(row, "vcpus", f"{what}.vcpus"),
                    "MEMORY_MB": whole_in(row, "memory_mb", f"{what}.memory_mb"),
                    "DISK_GB": sum(
                        whole_in(row, column, f"{what}.{column}")
                        for column in ("root_gb", "ephemeral_gb")
                        if row[column] is not None
                    ),
                }
                has_run = row["launched_at"] is not None and str(row["node"]) not in nodes
                one = arrived(
                    moment_in(row, "created_at", f"{what}.created_at"),
                    ended_at,
                    str(row["reservation_id"] or row["uuid"]),
                    amounts if has_run else {},
                )
                if one is None:
                    left_out += 1
                else:
                    found.append(one)
    return found, left_out
