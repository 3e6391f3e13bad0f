"""`moor db`: the tables of every worker, brought up to this release."""

import typer

from bus.sql import DatabaseSettings
from bus.sql import upgrade as bring_up
from moor.options import DatabaseUrl, IronicDatabaseUrl, PlacementDatabaseUrl, out, run, settled, tuned
from moor.tuning import DATABASE

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The database's tables.")

# Every package with migrations; the tables of placement and of the bare-metal daemons may be in databases of their own.
PLACEMENT = "placement_worker"
IRONIC = "ironic_sync"
OTHERS = ("scheduler_worker", "cell_conductor", "compute_sim")
# Those that a cell with a database of its own has there.
OF_CELLS = ("cell_conductor", "compute_sim")


@app.callback()
def _group() -> None:
    """One command so far; the group keeps its name."""


@app.command()
def upgrade(
    db: DatabaseUrl = "", placement_db: PlacementDatabaseUrl = "", ironic_db: IronicDatabaseUrl = ""
) -> None:
    """Create or alter what this release needs, in every database that is named. Safe to repeat, and while others do it."""
    places = settled(db=db, placement_db=placement_db, ironic_db=ironic_db).places
    if not places.placement_db and not places.ironic_db and not places.cell_db_urls:
        raise typer.BadParameter("no database is named: give --db, MOOR_DB_URL or db_url in a file")

    settings = tuned(DATABASE)

    async def work() -> None:
        if places.placement_db:
            await _bring_up(places.placement_db, PLACEMENT, PLACEMENT, settings)
        for owner in OTHERS if places.db_url else ():
            await _bring_up(places.db_url, owner, owner, settings)
        if places.ironic_db:
            await _bring_up(places.ironic_db, IRONIC, IRONIC, settings)
        for cell, url in places.cell_db_urls.items():
            for owner in OF_CELLS:
                await _bring_up(url, owner, f"{owner} of {cell}", settings)

    run(work())


async def _bring_up(url: str, owner: str, whose: str, settings: DatabaseSettings) -> None:
    before, after = await bring_up(url, owner, settings)
    what = "is up to date" if before == after else f"upgraded from {before or 'nothing'}"
    out.print(f"{whose}: [green]{after}[/green] ({what})")
