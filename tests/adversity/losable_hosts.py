"""Simulated hosts that a test loses while their process goes on, by files in a folder. A host with a file `silent/HOST` cannot be heard while
its guests go on, and one with `off/HOST` was switched off with everything on it.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from compute_sim.core.attempts import WELL, Condition, Dead, Silent
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import SimulatedHost

# How often a host looks for its files.
LOOK_S = 0.2


class LosableDriver(SimulatedDriver):
    def __init__(self, host: SimulatedHost, script: FaultScript, folder: str) -> None:
        super().__init__(host, script)
        self._silent, self._off = (Path(folder, each, host.name) for each in ("silent", "off"))

    def next_change_s(self, at_s: float) -> float | None:
        return at_s + LOOK_S

    def condition(self, at_s: float) -> Condition:  # noqa: ARG002 - the test says so
        if os.path.exists(self._off):  # noqa: PTH110 - without an object for each look
            return Dead()
        return Silent() if os.path.exists(self._silent) else WELL  # noqa: PTH110


def drivers_of(hosts: Sequence[SimulatedHost], folder: str) -> list[SimulatedDriver]:
    """Their drivers. The file `hosts` has a line for each host that may be lost: its name and its place."""
    lines = [each.split() for each in Path(folder, "hosts").read_text().splitlines()]
    places = {each[0]: each[1] for each in lines}
    script = FaultScript()
    return [
        LosableDriver(structs.replace(each, place=places[each.name]), script, folder)
        if each.name in places
        else SimulatedDriver(each, script)
        for each in hosts
    ]
