"""Received parcels that are not decoded yet. Projects take turns: the next parcel of each is opened before the second of any.

So a project with thousands of requests delays another one's request by one parcel, and not by all of these. Parcels of one
project stay in order. Messages that name no project share one line. They are most of all messages: then this is a plain queue.

Turns are taken among the parcels that a worker has received (`prefetch`). The broker's queue behind them is first in, first out.
"""

from collections import deque

from bus.broker import Consuming, Delivery
from bus.topology import project_of_key

_Arrived = tuple[Consuming, Delivery]


class Unopened:
    """`append` in the order of delivery; `popleft` in turns between projects."""

    def __init__(self) -> None:
        # By project, the next in turn first. None of them is empty.
        self._lines: dict[str, deque[_Arrived]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def lowest_tag(self) -> int | None:
        """The tag of the parcel that was delivered first. None if there is none."""
        return min((line[0][1].tag for line in self._lines.values()), default=None)

    def append(self, consuming: Consuming, delivery: Delivery) -> None:
        project = project_of_key(delivery.parcel.routing_key)
        line = self._lines.get(project)
        if line is None:
            line = self._lines[project] = deque()
        line.append((consuming, delivery))
        self._count += 1

    def popleft(self) -> _Arrived:
        project, line = next(iter(self._lines.items()))
        if len(self._lines) > 1 or len(line) == 1:
            del self._lines[project]
        arrived = line.popleft()
        if line and project not in self._lines:
            # Behind all others.
            self._lines[project] = line
        self._count -= 1
        return arrived

    def clear(self) -> None:
        self._lines.clear()
        self._count = 0
