"""Rates, from the counters in the heartbeats of workers. Pure."""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from bus.messages.cloud import Overview, WorkerHeard
from moor.tables import Columns

# Verdicts about claims that are no conflicts.
CLAIMED = ("claims.claimed", "claims.already_claimed")


class Rate(Struct, frozen=True):
    """How many messages of a queue are handled a second, by how many workers, and how many were since these started."""

    queue: str
    per_s: float
    workers: int
    handled: int


class Rates:
    """Remembers the last two heartbeats of each worker that differ."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[WorkerHeard, WorkerHeard | None]] = {}

    def take(self, overview: Overview) -> None:
        known = self._last
        self._last = {}
        for each in overview.workers:
            last, before = known.get(each.beat.worker, (each, None))
            is_new = each.beat.told_at > last.beat.told_at
            # The newest says whether it is still heard.
            self._last[each.beat.worker] = (each, last if is_new else before)

    def by_queue(self) -> list[Rate]:
        """The busiest queue first. A worker of which only one heartbeat is known adds no rate yet."""
        per_s, workers, handled = Counter[str](), Counter[str](), Counter[str]()
        for now, before in self._last.values():
            handled.update(now.beat.handled)
            workers.update(now.beat.handled.keys())
            per_s.update(_rates(now, before, now.beat.handled, before.beat.handled if before else {}))
        found = [
            Rate(queue, per_s[queue], workers[queue], count) for queue, count in handled.items() if count
        ]
        return sorted(found, key=lambda each: (-each.per_s, each.queue))

    def conflicts_per_s(self) -> float:
        """Claims that placement refused, since a picture of a scheduler was outdated."""
        return sum(
            rate
            for now, before in self._last.values()
            for name, rate in _rates(
                now, before, now.beat.counts, before.beat.counts if before else {}
            ).items()
            if name.startswith("claims.") and name not in CLAIMED
        )


def _rates(
    now: WorkerHeard, before: WorkerHeard | None, counts: Mapping[str, int], earlier: Mapping[str, int]
) -> dict[str, float]:
    if before is None or now.life != "up":
        return {}
    seconds = (now.beat.told_at - before.beat.told_at).total_seconds()
    return {name: (count - earlier.get(name, 0)) / seconds for name, count in counts.items()}


RATES = Columns[Rate](
    {
        "queue": lambda each: each.queue,
        "messages/s": lambda each: f"{each.per_s:,.1f}",
        "workers": lambda each: str(each.workers),
        "handled": lambda each: f"{each.handled:,}",
    }
)
