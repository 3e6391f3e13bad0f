"""Actions ordered by time; the owner of the clock runs them."""

import heapq
from collections.abc import Callable

Action = Callable[[float], None]


class ActionTimers:
    """Runs actions when they are due. An action is called with its due time, however late it runs."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._number = 0

    @property
    def next_due_s(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def at(self, due_s: float, action: Action) -> None:
        self._number += 1
        heapq.heappush(self._heap, (due_s, self._number, action))

    def run_due(self, now_s: float, count_max: int | None = None) -> int:
        """Run the actions that are due, and those that they schedule for now. Returns how many were run."""
        count = 0
        while self._heap and self._heap[0][0] <= now_s and (count_max is None or count < count_max):
            due_s, _, action = heapq.heappop(self._heap)
            action(due_s)
            count += 1
        return count
