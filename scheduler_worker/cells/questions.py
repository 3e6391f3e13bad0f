"""Answers questions about cells: which are up, their conductors, and how many hosts and instances each has."""

from collections.abc import Sequence

from msgspec import structs

from bus.messages.cells import AskCells, CellsFound, CellState
from bus.topology import CELL0
from bus.workers.handling import Answer, Handlers, ReadOnly, Received, Said
from scheduler_worker.cells.registry import CellRegistry
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.store import SchedulerStore


def cell_questions(store: SchedulerStore, cells: CellRegistry, hosts: HostRegistry) -> Handlers:
    async def on_ask_cells(asks: Sequence[Received[AskCells]]) -> list[Said]:
        everywhere = await _states(store, cells, hosts)
        return [
            Answer(
                ask,
                CellsFound(cells=tuple([each for each in everywhere if ask.message.name in ("", each.cell)])),
            )
            for ask in asks
        ]

    return {AskCells: ReadOnly(on_ask_cells)}


async def _states(store: SchedulerStore, cells: CellRegistry, hosts: HostRegistry) -> list[CellState]:
    counts = {each.cell: each for each in await store.cell_counts() if each.cell != CELL0}
    known, up = hosts.count_by_cell()
    return [
        CellState(
            **structs.asdict(cells.heard(name)),
            conductors=cells.conductors_of(name),
            hosts=known[name],
            hosts_up=up[name],
            instances=counts[name].instances if name in counts else 0,
            waiting=counts[name].waiting if name in counts else 0,
        )
        for name in sorted({*cells.names, *known, *counts})
    ]
