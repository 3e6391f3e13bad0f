"""`moor db`: upgrades the tables of all workers to this release."""

import typer

from bus.sql import upgrade as upgrade_tables
from moor.options import (
    DatabaseUrl,
    IronicDatabaseUrl,
    PlacementDatabaseUrl,
    command_settings,
    out,
    run,
    tuned,
)
from moor.worker_settings import DATABASE

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The database's tables.")

# Every package with migrations. Placement's tables and the bare-metal daemons' may be in their own databases.
PLACEMENT = "placement_worker"
IRONIC = "ironic_sync"
OTHERS = ("scheduler_worker", "cell_conductor", "compute_sim")
# The packages whose tables are in a cell's own database, where a cell has one.
OF_CELLS = ("cell_conductor", "compute_sim")


@app.callback()
def _group() -> None:
    """Without a callback, typer would run the group's only command as `moor db`."""


@app.command()
def upgrade(
    db: DatabaseUrl = "", placement_db: PlacementDatabaseUrl = "", ironic_db: IronicDatabaseUrl = ""
) -> None:
    """Create or alter the tables that this release needs, in every named database. Safe to repeat and to run concurrently."""
    addresses = command_settings(db=db, placement_db=placement_db, ironic_db=ironic_db).addresses
    named = [
        (addresses.placement_db, (PLACEMENT,), ""),
        (addresses.db_url, OTHERS, ""),
        (addresses.ironic_db, (IRONIC,), ""),
        *((url, OF_CELLS, f" of {cell}") for cell, url in addresses.cell_db_urls.items()),
    ]
    if not any(url for url, _, _ in named):
        raise typer.BadParameter("no database is named: give --db, MOOR_DB_URL or db_url in a file")
    settings = tuned(DATABASE)

    async def work() -> None:
        for url, owners, of_cell in named:
            for owner in owners if url else ():
                before, after = await upgrade_tables(url, owner, settings)
                what = "is up to date" if before == after else f"upgraded from {before or 'nothing'}"
                out.print(f"{owner}{of_cell}: [green]{after}[/green] ({what})")

    run(work())
