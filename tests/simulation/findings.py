"""What was found, what was seen, and in what order: the first broken promise ends a run."""

import asyncio
from collections import Counter

from msgspec import Struct


class Broken(Struct, frozen=True):
    """A promise that was not kept: when, which, and how it showed."""

    at_s: float
    promise: str
    how: str

    def __str__(self) -> str:
        return f"{self.at_s:9.3f}  {self.promise}: {self.how}"


class Findings:
    """Told by all who check. `is_over` is set by the first broken promise."""

    def __init__(self) -> None:
        self.broken: Broken | None = None
        self.is_over = asyncio.Event()
        # Faults, verdicts, message types, pairs of state and message: how often each was seen.
        self.seen: Counter[tuple[str, str]] = Counter()
        # When, who, what; as values, since nobody reads most of it.
        self.timeline: list[tuple[float, str, str, tuple[object, ...]]] = []
        self._loop = asyncio.get_running_loop()

    @property
    def now_s(self) -> float:
        return self._loop.time()

    def tell(self, who: str, what: str, *details: object) -> None:
        self.timeline.append((self._loop.time(), who, what, details))

    def see(self, kind: str, what: str) -> None:
        self.seen[kind, what] += 1

    def breaks(self, promise: str, how: str) -> None:
        if self.broken is None:
            self.broken = Broken(self._loop.time(), promise, how)
            self.tell("CHECK", "{}: {}", promise, how)
            self.is_over.set()
