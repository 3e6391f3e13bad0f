"""When what is confirmed is taken off its row: after the row has been left alone for a while, and many at a time.

An instance's next step rewrites its row anyway, without the order that was obeyed; so whoever waits a little writes a
row once less, and the words that are left are taken off by one statement for thousands. They are remembered here
meanwhile. A process that dies has forgotten them, and the next one says them again.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice, takewhile

from msgspec import Struct

from bus.handling import Kept
from bus.message import Message
from cell_conductor.store import ConductorStore, ConductorTransaction

# Most instances of a simulator, and few of a real cell, take their next step within this.
REST_S = 2.0
# When so many rest, or the oldest has for twice as long, those that have rested are taken off; so many at once at most.
MANY = 1000
AT_ONCE_MAX = 5000


def _loop_s() -> float:
    return asyncio.get_running_loop().time()


class _Resting(Struct, gc=False):
    since_s: float
    said: list[Kept]


class Clearing:
    """What is confirmed and still on its row. Of one process: its worker and its timers share it."""

    def __init__(self, store: ConductorStore, clock_s: Callable[[], float] = _loop_s) -> None:
        self._store = store
        self._clock_s = clock_s
        # By instance; who has said something last is last.
        self._resting: dict[str, _Resting] = {}

    @property
    def is_due(self) -> bool:
        """Have some rested for so long that they are not to wait for others?"""
        first = next(iter(self._resting.values()), None)
        return first is not None and first.since_s + 2 * REST_S <= self._clock_s()

    async def clear(self, tx: ConductorTransaction, said: Sequence[Kept]) -> None:
        """These are confirmed. With them in mind, take off those that have rested, if it is worth it."""
        now_s = self._clock_s()
        for each in said:
            before = self._resting.pop(each.entity, None)
            self._resting[each.entity] = _Resting(now_s, [*before.said, each] if before else [each])
        if len(self._resting) >= MANY or self.is_due:
            await self._take_off(tx, now_s - REST_S)

    async def pending(self) -> Sequence[tuple[Kept, Message]]:
        """What is kept and not known to be confirmed."""
        kept = await self._store.pending()
        confirmed = {each for resting in self._resting.values() for each in resting.said} if kept else set()
        return [each for each in kept if each[0] not in confirmed]

    async def _take_off(self, tx: ConductorTransaction, until_s: float) -> None:
        """Should the transaction fail, they are said once more, and come here again."""
        oldest_first = islice(self._resting.items(), AT_ONCE_MAX)
        rested = list(takewhile(lambda each: each[1].since_s <= until_s, oldest_first))
        if rested:
            for entity, _ in rested:
                del self._resting[entity]
            await self._store.clear(tx, [said for _, resting in rested for said in resting.said])
