"""Answers questions about cells: which are up, their conductors, and how many hosts and instances each has."""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import structs

from bus.messages.cells import AskCells, CellsFound, CellState
from bus.messages.overview import InstanceCount
from bus.topology import CELL0
from bus.workers.handling import Answer, Handlers, ReadOnly, Received, Said
from scheduler_worker.cells.registry import CellRegistry
from scheduler_worker.core.instances.rows import UNANSWERED
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.store import SchedulerStore


def cell_questions(store: SchedulerStore, cells: CellRegistry, hosts: HostRegistry) -> Handlers:
    async def on_ask_cells(asks: Sequence[Received[AskCells]]) -> list[Said]:
        everywhere = cell_states(await store.instance_counts(), cells, hosts)
        return [
            Answer(
                ask,
                CellsFound(cells=tuple([each for each in everywhere if ask.message.name in ("", each.cell)])),
            )
            for ask in asks
        ]

    return {AskCells: ReadOnly(on_ask_cells)}


def cell_states(counts: Iterable[InstanceCount], cells: CellRegistry, hosts: HostRegistry) -> list[CellState]:
    instances, unanswered = Counter[str](), Counter[str]()
    for each in counts:
        if each.cell not in ("", CELL0):
            instances[each.cell] += each.count
            unanswered[each.cell] += each.count if each.state in UNANSWERED else 0
    known, up = hosts.count_by_cell()
    return [
        CellState(
            **structs.asdict(cells.heard(name)),
            conductors=cells.conductors_of(name),
            hosts=known[name],
            hosts_up=up[name],
            instances=instances[name],
            waiting=unanswered[name],
        )
        for name in sorted({*cells.names, *known, *instances})
    ]
