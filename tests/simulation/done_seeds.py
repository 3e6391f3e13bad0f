"""A file with the results of a long run, so that an interrupted run continues where it stopped.

One seed a line: `5000050 held` or `5000051 broke and how`. Lines that begin with # say how long the seeds took.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

HELD, BROKE = "held", "broke"


class DoneSeeds:
    def __init__(self, path: Path | None) -> None:
        """Without a path nothing is recorded."""
        self._path = path
        # How each seed failed; empty for one that passed.
        self.how: dict[int, str] = {}
        self.took_s = 0.0
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            self._read(line)

    def _read(self, line: str) -> None:
        first, _, rest = line.partition(" ")
        if first == "#":
            self.took_s += float(rest.removesuffix(" s"))
        elif rest == HELD or rest.startswith(BROKE):
            # A line that the interruption cut off is no result: its seed runs again.
            self.how[int(first)] = rest.removeprefix(BROKE).strip() if rest != HELD else ""

    def left_of(self, seeds: Iterable[int]) -> list[int]:
        return [seed for seed in seeds if seed not in self.how]

    def broken_of(self, seeds: Iterable[int]) -> dict[int, str]:
        return {seed: self.how[seed] for seed in seeds if self.how.get(seed)}

    def add(self, seeds: Iterable[int], broken: Mapping[int, str], took_s: float) -> None:
        self.how |= {seed: broken.get(seed, "") for seed in seeds}
        self.took_s += took_s
        if self._path is None:
            return
        lines = [f"{seed} {BROKE} {how}" if (how := broken.get(seed)) else f"{seed} {HELD}" for seed in seeds]
        with self._path.open("a") as file:
            # The line before may have been cut off by an interruption.
            file.write("\n".join(("", *lines, f"# {took_s:.1f} s")))
