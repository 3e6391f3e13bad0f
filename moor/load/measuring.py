"""Who spent how much CPU while boots were made: read at the beginning, after each tenth, and when all is quiet again."""

import time
from collections.abc import Callable, Mapping
from itertools import pairwise

from msgspec import Struct

from moor.load.cpu import machine_spent_s

PARTS = 10


class Reading(Struct, frozen=True):
    """So many boots had ended when these had spent so much."""

    at_s: float
    ended: int
    spent_s: Mapping[str, float]
    generator_s: float
    machine_s: float

    @property
    def total_s(self) -> float:
        return sum(self.spent_s.values())


class Meter:
    """`spenders` is what a boot is paid to; who only makes the load is read beside them, and so is the machine."""

    def __init__(
        self,
        spenders: Mapping[str, Callable[[], float]],
        boots: int,
        generator: Callable[[], float] | None = None,
    ) -> None:
        self._spenders = spenders
        self._boots = boots
        self._generator = generator
        self.readings: list[Reading] = []

    def read(self, ended: int) -> None:
        spent_s = {name: spent() for name, spent in self._spenders.items()}
        generator_s = self._generator() if self._generator else 0.0
        now = Reading(time.perf_counter(), ended, spent_s, generator_s, machine_spent_s())
        self.readings.append(now)

    def progress(self, ended: int) -> None:
        """A reading costs a millisecond or so: one for each part of the boots."""
        if (
            ended < self._boots
            and ended * PARTS // self._boots > self.readings[-1].ended * PARTS // self._boots
        ):
            self.read(ended)

    def us_per_boot(self) -> dict[str, float]:
        """In all, and to whom."""
        first, last = self.readings[0], self.readings[-1]
        spent = {
            name: (last.spent_s[name] - first.spent_s[name]) * 1e6 / self._boots for name in self._spenders
        }
        return {"total": sum(spent.values()), **spent}

    def generator_us_per_boot(self) -> float | None:
        if self._generator is None:
            return None
        return (self.readings[-1].generator_s - self.readings[0].generator_s) * 1e6 / self._boots

    def parts_us_per_boot(self) -> tuple[float, ...]:
        """What a boot cost in each part of the run, in the order of time."""
        return tuple(
            (after.total_s - before.total_s) * 1e6 / (after.ended - before.ended)
            for before, after in pairwise(self.readings)
            if after.ended > before.ended
        )

    def shares(self, processors: int) -> tuple[float, float]:
        """Of all that so many processors can give in the time: what was spent here, and what others took."""
        first, last = self.readings[0], self.readings[-1]
        given_s = (last.at_s - first.at_s) * processors
        ours_s = last.total_s - first.total_s + last.generator_s - first.generator_s
        return ours_s / given_s, max(0.0, last.machine_s - first.machine_s - ours_s) / given_s
