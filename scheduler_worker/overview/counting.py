"""Counts of hosts by what state they are in, how much room they have, and how full they are."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from bus.messages.hosts import HostState
from bus.messages.overview import (
    FILL_PARTS,
    FULL,
    TILE_STATES,
    WITHOUT_PROVIDER,
    CellFill,
    ClassUse,
    HostCount,
)
from placement_worker.core.candidates.columns import Ints
from scheduler_worker.core.picture.capacity import capacities
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.hosts.registry import count_by_state, state_of

_LEVELS = (*"0123456789", FULL)


def count_hosts(hosts: Iterable[HostState]) -> tuple[HostCount, ...]:
    return tuple(
        HostCount(state=state, cell=cell, kind=kind, count=count)
        for (cell, kind, state), count in sorted(count_by_state(hosts).items())
    )


def uses_of(picture: Picture) -> tuple[ClassUse, ...]:
    """What cells have of each class and use of it. A host that is down counts: its instances are still there."""
    return tuple(
        ClassUse(resource_class=name, cell=cell, used=each.used, capacity=each.capacity)
        for (cell, name), each in sorted(capacities(picture).items())
    )


def fill_of(picture: Picture) -> tuple[CellFill, ...]:
    """How many hosts of each cell are how full, each by its fullest class."""
    columns = picture.columns
    provided = np.flatnonzero(columns.provided[: columns.rows])
    parts = _tenths(picture)[provided]
    counted = np.zeros((len(columns.cells.names), FILL_PARTS + 1), dtype=np.int64)
    np.add.at(counted, (columns.cell[provided], parts), 1)
    return tuple(
        CellFill(cell=name, hosts=tuple(counted[code].tolist()))
        for code, name in enumerate(columns.cells.names)
        if counted[code].any()
    )


def _tenths(picture: Picture) -> Ints:
    """For each row, how many tenths of its host's fullest class are used; ten if it is full."""
    rows = picture.columns.rows
    fullest = np.zeros(rows)
    for stock in picture.columns.stocks.values():
        capacity = stock.capacity[:rows]
        share = np.divide(
            stock.used[:rows], capacity, out=np.zeros(rows), where=capacity > 0, casting="unsafe"
        )
        np.maximum(fullest, share, out=fullest)
    return np.minimum((fullest * FILL_PARTS).astype(np.int64), FILL_PARTS)


def tiles_of(hosts: Iterable[HostState], picture: Picture) -> dict[str, list[tuple[str, str]]]:
    """The hosts of each cell in the order of their names, each with its letter (`Tiles`)."""
    tenths = _tenths(picture).tolist()
    letters = {state: letter for letter, state in TILE_STATES.items()}
    found = defaultdict[str, list[tuple[str, str]]](list)
    for host in hosts:
        state = state_of(host)
        if state == "up":
            row = picture.row_of(host.id)
            is_there = row >= 0 and bool(picture.columns.provided[row])
            tile = _LEVELS[tenths[row]] if is_there else WITHOUT_PROVIDER
        else:
            tile = letters[state]
        found[host.cell].append((host.name, tile))
    for of_cell in found.values():
        of_cell.sort()
    return found
