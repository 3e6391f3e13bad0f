"""`moor cell`: the cells, when each was last heard, and how much waits for it."""

from typing import Annotated

import typer
from rich.markup import escape

from bus.messages.cells import AskCells, CellsFound, CellState
from moor.asking import asked
from moor.completing import complete_cells
from moor.message_commands import command_that_sends
from moor.options import BusUrl, Output, out
from moor.showing import cell_life, grid_of, print_all, time_in_words
from moor.tables import Columns, styled

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Cells: list, show.")


@app.command("list")
def list_cells(
    bus: BusUrl = "",
    *,
    down: Annotated[bool, typer.Option("--down", help="Only cells that are down.")] = False,
    _output: Output = None,
) -> None:
    """List all cells: whether each is up, when it was last heard, and what it has."""
    cells = asked(bus, AskCells(), CellsFound, operates=False).cells
    print_all([each for each in cells if not down or each.life == "down"], CELLS, "no cells")


CELLS = Columns[CellState](
    {
        "cell": lambda each: each.cell,
        "state": lambda each: styled(cell_life(each.life)),
        "last heard": lambda each: time_in_words(each.heard_at),
        "conductors": lambda each: (
            f"{sum(one.life == 'up' for one in each.conductors)} of {len(each.conductors)} up"
        ),
        "hosts": lambda each: f"{each.hosts_up} of {each.hosts} up",
        "instances": lambda each: str(each.instances),
        "waiting": lambda each: str(each.waiting),
        "reason": lambda each: each.reason,
    },
    prose=("reason",),
)


def _print_cell(cell: CellState) -> None:
    grid = grid_of(
        ("cell", cell.cell),
        ("state", cell_life(cell.life)),
        ("heard", time_in_words(cell.heard_at)),
        ("reason", escape(cell.reason)),
        ("hosts", f"{cell.hosts_up} of {cell.hosts} up"),
        ("instances", str(cell.instances)),
        ("waiting", f"{cell.waiting} have an order that the cell has not answered"),
    )
    for each in cell.conductors:
        trouble = f": [red]{escape(each.trouble)}[/red]" if each.trouble else ""
        told = f"{escape(each.name)} {cell_life(each.life)}, heard {time_in_words(each.heard_at)}{trouble}"
        grid.add_row("conductor", told)
    out.print(grid)


app.command("show")(
    command_that_sends(
        AskCells,
        arguments={"name": "NAME"},
        completes=complete_cells,
        words="Show one cell, with its conductors.",
        answer=CellsFound,
        items=lambda found: found.cells,
        missing="there is no cell {name!r}; `moor cell list` shows all cells",
        is_about_one=True,
        show=_print_cell,
    )
)
