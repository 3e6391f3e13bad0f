"""Reads the CPU time of each process at the start of a run, after each tenth of the boots, and at the end."""

import time
from collections.abc import Callable, Mapping
from itertools import pairwise

from msgspec import Struct

from moor.laboratory.load.cpu import machine_cpu_s

PARTS = 10


class Reading(Struct, frozen=True):
    """CPU times of all processes at one moment, and how many boots had ended by then."""

    at_s: float
    ended: int
    cpu_s: Mapping[str, float]
    generator_s: float
    machine_s: float
    publishers_s: Mapping[str, float] = {}

    @property
    def total_s(self) -> float:
        return sum(self.cpu_s.values())


class Meter:
    """Measures the CPU time per boot. `cpu_clocks` read the CPU time of the processes that count as the cost of a boot. That
    of the load generator, its publishers and of the whole machine is measured too, and not counted.
    """

    def __init__(
        self,
        cpu_clocks: Mapping[str, Callable[[], float]],
        boots: int,
        generator: Callable[[], float] | None = None,
        publishers: Mapping[str, Callable[[], float]] | None = None,
    ) -> None:
        self._cpu_clocks = cpu_clocks
        self.count = boots
        self._generator = generator
        self._publishers = publishers or {}
        self.readings: list[Reading] = []

    def read(self, ended: int) -> None:
        cpu_s = {name: clock() for name, clock in self._cpu_clocks.items()}
        generator_s = self._generator() if self._generator else 0.0
        publishers_s = {name: clock() for name, clock in self._publishers.items()}
        self.readings.append(
            Reading(time.perf_counter(), ended, cpu_s, generator_s, machine_cpu_s(), publishers_s)
        )

    def progress(self, ended: int) -> None:
        """Read the clocks if a further tenth of the boots has ended: a reading costs about a millisecond."""
        if ended < self.count and ended * PARTS // self.count > self.readings[-1].ended * PARTS // self.count:
            self.read(ended)

    def us_per_boot(self, boots: int = 0) -> dict[str, float]:
        """CPU time per boot of each process, and the total; for so many boots, if they are not those that it counts."""
        first, last = self.readings[0], self.readings[-1]
        cpu_us = {
            name: (last.cpu_s[name] - first.cpu_s[name]) * 1e6 / (boots or self.count)
            for name in self._cpu_clocks
        }
        return {"total": sum(cpu_us.values()), **cpu_us}

    def publishers_us(self, boots: int) -> float:
        """The CPU time per boot of the processes of independent publishers."""
        first, last = self.readings[0].publishers_s, self.readings[-1].publishers_s
        return (sum(last.values()) - sum(first.values())) * 1e6 / boots

    def generator_us_per_boot(self) -> float | None:
        if self._generator is None:
            return None
        return (self.readings[-1].generator_s - self.readings[0].generator_s) * 1e6 / self.count

    def parts_us_per_boot(self) -> tuple[float, ...]:
        """CPU time per boot in each part of the run, in the order of time."""
        return tuple(
            (after.total_s - before.total_s) * 1e6 / (after.ended - before.ended)
            for before, after in pairwise(self.readings)
            if after.ended > before.ended
        )

    def shares(self, processors: int) -> tuple[float, float]:
        """The shares of the processors' time that this run used, and that all other processes used."""
        first, last = self.readings[0], self.readings[-1]
        available_s = (last.at_s - first.at_s) * processors
        ours_s = last.total_s - first.total_s + last.generator_s - first.generator_s
        ours_s += sum(last.publishers_s.values()) - sum(first.publishers_s.values())
        return ours_s / available_s, max(0.0, last.machine_s - first.machine_s - ours_s) / available_s
