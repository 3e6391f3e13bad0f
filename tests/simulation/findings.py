"""The results of a run: the broken promise, the counts, and the timeline. The first broken promise ends the run."""

import asyncio
from collections import Counter

from msgspec import Struct


class Broken(Struct, frozen=True):
    """A promise that was broken: when, which one, and how."""

    at_s: float
    promise: str
    how: str

    def __str__(self) -> str:
        return f"{self.at_s:9.3f}  {self.promise}: {self.how}"


class Findings:
    """All checkers report here. The first broken promise sets `is_over`."""

    def __init__(self) -> None:
        self.broken: Broken | None = None
        self.is_over = asyncio.Event()
        # How often each fault, verdict, message type, and pair of state and message was seen.
        self.seen: Counter[tuple[str, str]] = Counter()
        # Time, actor, text and its arguments; formatted only when a person reads them, which is rare.
        self.timeline: list[tuple[float, str, str, tuple[object, ...]]] = []
        self._loop = asyncio.get_running_loop()

    @property
    def now_s(self) -> float:
        return self._loop.time()

    def log(self, who: str, what: str, *details: object) -> None:
        self.timeline.append((self._loop.time(), who, what, details))

    def count(self, kind: str, what: str) -> None:
        self.seen[kind, what] += 1

    def breaks(self, promise: str, how: str) -> None:
        if self.broken is None:
            self.broken = Broken(self._loop.time(), promise, how)
            self.log("CHECK", "{}: {}", promise, how)
            self.is_over.set()
