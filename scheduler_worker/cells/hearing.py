"""What cells publish for every scheduler to hear, on their own brokers or on the API level's."""

from collections.abc import Sequence

from bus.message import Message
from bus.messages.cells import ConductorAlive
from bus.messages.consoles import ConsoleTold
from bus.messages.overview import WorkerAlive
from bus.workers.handling import Received
from scheduler_worker.cells.consoles import ConsoleRelay
from scheduler_worker.cells.registry import CellRegistry
from scheduler_worker.cells.workers import WorkerRegistry
from scheduler_worker.hosts.registry import HostRegistry


def hear_cells(
    cells: CellRegistry,
    workers: WorkerRegistry,
    hosts: HostRegistry,
    consoles: ConsoleRelay,
    batch: Sequence[Received[Message]],
) -> None:
    """Give each message to the object that keeps what it says."""
    for heard in batch:
        match heard.message:
            case ConductorAlive() as beat:
                cells.hear(beat, heard.cell)
                hosts.hear_of_cell(beat.cell, heard.cell)
            case ConsoleTold() as told:
                consoles.hear(told)
            case WorkerAlive() as beat:
                workers.hear(beat, heard.sender, heard.cell)
            case _:
                hosts.hear(heard)
