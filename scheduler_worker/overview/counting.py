"""Counts of hosts by what state they are in, how much room they have, and how full they are."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from bus.messages.hosts import HostState
from bus.messages.overview import FILL_PARTS, CellFill, ClassUse, HostCount
from scheduler_worker.core.picture.picture import Picture


def count_hosts(hosts: Iterable[HostState]) -> tuple[HostCount, ...]:
    counted = Counter((host.cell, host.kind, _state(host)) for host in hosts)
    return tuple(
        HostCount(state=state, cell=cell, kind=kind, count=count)
        for (cell, kind, state), count in sorted(counted.items())
    )


def _state(host: HostState) -> str:
    """What keeps a host from being used, the orders of operators first."""
    match host.setting.mode:
        case "dead" | "down" as mode:
            return mode
        case mode if host.must_clean:
            return "must clean up"
        case mode if not host.up:
            return "silent"
    return mode


def uses_of(picture: Picture) -> tuple[ClassUse, ...]:
    """What hosts have of each class and use of it, by cell. A host that is down counts: its instances are still there."""
    columns = picture.columns
    rows, cells = columns.rows, len(columns.cells.names)
    provided = np.flatnonzero(columns.provided[:rows])
    cell = columns.cell[provided]
    found = []
    for name, stock in sorted(columns.stocks.items()):
        capacity = np.bincount(cell, weights=stock.capacity[provided], minlength=cells)
        used = np.bincount(cell, weights=stock.used[provided], minlength=cells)
        found += [
            ClassUse(
                resource_class=name,
                cell=columns.cells.names[code],
                used=int(used[code]),
                capacity=int(capacity[code]),
            )
            for code in np.flatnonzero((capacity > 0) | (used > 0)).tolist()
        ]
    return tuple(found)


def fill_of(picture: Picture) -> tuple[CellFill, ...]:
    """How many hosts of each cell are how full, each by its fullest class."""
    columns = picture.columns
    rows = columns.rows
    provided = np.flatnonzero(columns.provided[:rows])
    fullest = np.zeros(len(provided))
    for stock in columns.stocks.values():
        capacity = stock.capacity[provided]
        share = np.divide(
            stock.used[provided], capacity, out=np.zeros(len(provided)), where=capacity > 0, casting="unsafe"
        )
        np.maximum(fullest, share, out=fullest)
    parts = np.minimum((fullest * FILL_PARTS).astype(np.int64), FILL_PARTS)
    counted = np.zeros((len(columns.cells.names), FILL_PARTS + 1), dtype=np.int64)
    np.add.at(counted, (columns.cell[provided], parts), 1)
    return tuple(
        CellFill(cell=name, hosts=tuple(counted[code].tolist()))
        for code, name in enumerate(columns.cells.names)
        if counted[code].any()
    )
