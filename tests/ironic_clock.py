"""The clock of a simulated Ironic in a test: its work lasts until the test says that it is over, however slow the machine is."""

import time

from laboratory.ironic import SimulatedIronic

LONG_S = 1000.0


class IronicClock:
    def __init__(self) -> None:
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self._ahead_s

    def end_work(self, ironic: SimulatedIronic) -> None:
        """End all work that takes `LONG_S`."""
        self._ahead_s += LONG_S
        ironic.advance()
