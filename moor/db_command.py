"""`moor db`: the tables of every worker, brought up to this release."""

import typer

from bus.errors import Failure
from bus.sql import upgrade as bring_up
from moor.options import DatabaseUrl, fail, out, run

app = typer.Typer(no_args_is_help=True, help="The database's tables.")

# Every package with migrations; they may share one database, or have one each.
OWNERS = ("placement_worker", "scheduler_worker", "cell_conductor")


@app.callback()
def _group() -> None:
    """One command so far; the group keeps its name."""


@app.command()
def upgrade(db: DatabaseUrl) -> None:
    """Create or alter what this release needs. Safe to repeat, and while others do it."""

    async def work() -> None:
        for owner in OWNERS:
            before, after = await bring_up(db, owner)
            what = "is up to date" if before == after else f"upgraded from {before or 'nothing'}"
            out.print(f"{owner}: [green]{after}[/green] ({what})")

    try:
        run(work())
    except (Failure, ValueError) as problem:
        fail(f"not upgraded: {problem}")
