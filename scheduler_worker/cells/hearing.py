"""What schedulers hear of conductors, on whatever broker."""

from bus.message import Message
from bus.messages.cells import ConductorAlive, LiveTold
from bus.workers.handling import Received
from scheduler_worker.cells.live import LiveRelay
from scheduler_worker.cells.registry import CellRegistry


class CellEars:
    def __init__(self, cells: CellRegistry, live: LiveRelay) -> None:
        self._cells = cells
        self._live = live

    def hear(self, heard: Received[Message]) -> None:
        """Any other message is ignored."""
        match heard.message:
            case ConductorAlive() as beat:
                self._cells.hear(beat, heard.cell)
            case LiveTold() as told:
                self._live.hear(told)
            case _:
                pass
