"""Prints what cells have themselves beside what the API level has; and when each cell was last heard."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape

from bus.messages.build import CellHeard, InstanceDetails, InstanceId, InstanceState
from moor.instances.live import MISSING, Compared, LiveView
from moor.options import NOT_IN_TIME, fail, out, say
from moor.showing import instance_state, plain, print_json, shortened, time_in_words
from moor.tables import Columns, print_table, styled


def as_document(
    state: InstanceState,
    heard: Mapping[str, CellHeard],
    details: Mapping[InstanceId, InstanceDetails],
) -> dict[str, Any]:
    """The instance as JSON: its state, its size and times, and what its cell says of it."""
    cell = heard.get(state.cell)
    known = details.get(state.id) or InstanceDetails(id=state.id)
    return {
        **plain(state),
        **{field: plain(getattr(known, field)) for field in _OF_ROW},
        "cell_life": cell.life if cell else "",
        "cell_heard_at": plain(cell.heard_at) if cell else None,
    }


def print_last_heard(states: Sequence[InstanceState], heard: Mapping[str, CellHeard]) -> None:
    """Print, below a list of instances, when each of their cells was last heard: how old the states may be."""
    lines = [_last_heard(heard[cell]) for cell in sorted({each.cell for each in states}) if cell in heard]
    for line in shortened(lines):
        out.print(line, style="dim")


def last_heard(cell: str, heard: Mapping[str, CellHeard]) -> str:
    """When this cell was last heard, as text for the view of one instance; empty if it has no cell."""
    return _last_heard(heard[cell]).removeprefix("cell ") if cell in heard else ""


def _last_heard(cell: CellHeard) -> str:
    if cell.life == "unknown":
        return f"cell {cell.cell}: no conductor was heard yet"
    down = " [red]and is down[/red]" if cell.life == "down" else ""
    return f"cell {cell.cell} was last heard {time_in_words(cell.heard_at)}{down}"


# The fields of InstanceDetails that `--json` shows. Only audits need the others.
_OF_ROW = ("size", "accepted_at", "placed_at", "move_placed_at")


def print_live(view: LiveView, nothing: str = "", *, as_json: bool) -> None:
    """Print the view; exit with 3 if a cell has not answered."""
    if as_json:
        print_json(_document(view))
    elif view.instances or view.only_in_cells:
        if view.instances:
            print_table(view.instances, _columns(view))
        for each in view.only_in_cells:
            where = f"[yellow]only in cell {each.cell}[/yellow]: {each.id} {escape(each.name)}"
            out.print(f"{where} {each.state} {escape(each.host)}")
    else:
        say(nothing)
    if not as_json:
        print_last_heard([each.told for each in view.instances], view.heard)
    if view.silent:
        fail("\n".join(_silence(view, each.cell, each.silent) for each in view.silent), NOT_IN_TIME)


def _silence(view: LiveView, cell: str, why: str) -> str:
    heard = view.heard.get(cell)
    last = f"; it was last heard {time_in_words(heard.heard_at)}" if heard and heard.heard_at else ""
    return f"cell {cell} has not answered: {why}{last}"


def _columns(view: LiveView) -> Columns[Compared]:
    silent = {each.cell for each in view.silent}
    return Columns(
        {
            "id": lambda each: str(each.told.id),
            "name": lambda each: each.told.name,
            "state": lambda each: styled(instance_state(each.told)),
            "cell": lambda each: each.told.cell,
            "host": lambda each: each.told.host,
            "in the cell": lambda each: styled(_in_cell(each, has_answered=each.told.cell not in silent)),
        },
        prose=("in the cell",),
        ids={"id": lambda each: each.told.state != "deleted"},
    )


def _in_cell(each: Compared, *, has_answered: bool) -> str:
    """How an instance in its cell differs from what the API level says, as text; empty if it does not."""
    if MISSING in each.differs:
        return "[yellow]not there[/yellow]"
    live = each.live
    if live is None:
        return "" if has_answered else "[red]not known[/red]"
    if not each.differs:
        return ""
    host = f" on {escape(live.host)}" if live.host else ""
    return f"[yellow]{live.state}{host}, attempt {live.attempt}[/yellow]"


def _document(view: LiveView) -> dict[str, Any]:
    return {
        "instances": [
            {
                **as_document(each.told, view.heard, view.details),
                "live": plain(each.live),
                "differs": list(each.differs),
            }
            for each in view.instances
        ],
        "only_in_cells": [plain(each) for each in view.only_in_cells],
        "cells": [
            {
                "cell": each.cell,
                "answered": not each.silent,
                "silent": each.silent,
                "life": view.heard[each.cell].life if each.cell in view.heard else "",
                "heard_at": plain(view.heard[each.cell].heard_at) if each.cell in view.heard else None,
            }
            for each in view.answers
        ],
    }
