"""Ends attempts that are due, and sends their answers, many at once.

An attempt stays due until the broker has confirmed its answer. A process that is killed before leaves it due for its
successor, and a process that cannot send retries a little later. One timer serves all attempts; there is no task per
attempt.
"""

import asyncio
import random
from collections.abc import Sequence

from msgspec import structs

from bus.errors import Operational
from bus.parts import Background, Status, Supervised, wait_at_most
from bus.workers.publisher import Outgoing, Publisher
from compute_sim.core.attempts import AttemptRecord, due
from compute_sim.fleet import BuildSlots, Fleet
from compute_sim.settings import ComputeSettings
from compute_sim.store import ComputeStore

# The number of batches of answers that may wait for their confirms.
SAYING_MAX = 16
# An ended attempt: while its answer is due, and after that was confirmed.
Ended = tuple[AttemptRecord, AttemptRecord]


class Finisher:
    """Ends attempts that are due and sends their answers, beside the worker that takes the orders."""

    def __init__(
        self,
        fleet: Fleet,
        store: ComputeStore,
        publisher: Publisher,
        settings: ComputeSettings,
        chance: random.Random | None = None,
    ) -> None:
        self._finishing = Supervised(
            "end attempts that are due", self._finish_until_told, is_cut_short=False, chance=chance
        )
        self._telling = Status("tell of ended attempts", chance=chance)
        self.parts = (self._finishing, self._telling)
        self._fleet = fleet
        self._store = store
        self._publisher = publisher
        self._settings = settings
        self._woken = asyncio.Event()
        self._stop_by_s: float | None = None
        self._saying = Background()
        self._forgot_at_s = 0.0
        store.wake_with(self._woken.set)

    async def run(self) -> None:
        # Waits for answers that are being sent; a bug in sending ends the part.
        async with self._saying:
            await self._finishing.run()

    async def _finish_until_told(self) -> None:
        while not self._is_done(next_s := await self._store.next_due_s()):
            self._finishing.status.well()
            await self._until(next_s)
            # If the broker accepts nothing, attempts stay due until it does.
            await self._saying.until_fewer_than(SAYING_MAX)
            await self._finish()

    async def stop(self) -> None:
        """Stop, after sending the answers that are due soon."""
        self._stop_by_s = self._fleet.clock_s() + self._settings.drain_s
        self._woken.set()

    def _is_done(self, next_s: float | None) -> bool:
        return self._stop_by_s is not None and (next_s is None or next_s > self._stop_by_s)

    async def _until(self, next_s: float | None) -> None:
        """Wait until the time `next_s`, or until another attempt becomes due before it."""
        wait_s = None if next_s is None else max(0.0, next_s - self._fleet.clock_s())
        await wait_at_most(self._woken, wait_s)
        self._woken.clear()

    async def _finish(self) -> None:
        at_s = self._fleet.clock_s()
        ended: list[Ended] = []
        unheard: list[AttemptRecord] = []
        answers: list[Outgoing] = []
        asked: list[Ended] = []
        async with self._store.transaction() as tx:
            slots = BuildSlots(tx, self._fleet, self._settings.builds_at_once_max)
            for attempt in await tx.due(at_s, self._settings.due_at_once_max):
                driver = self._fleet.get(attempt.host)
                if driver is None:
                    # The host was not started again: its attempt stays due for a process that has the host.
                    continue
                after, answer = due(attempt, driver.condition(at_s), driver.look_at(attempt, at_s), at_s)
                asked.append((attempt, after))
                if answer is None:
                    unheard.append(after)
                else:
                    ended.append((structs.replace(after, due_s=attempt.due_s), after))
                    answers.append(Outgoing(answer, after.cause, after.trace))
                slots.changed(attempt, after)
            # Asked before anything is saved: the slots are those that the store knows, less what was counted here.
            begun = list(slots.begin_waiting({}, at_s))
            await tx.remember([before for before, _ in ended])
            await tx.save([*unheard, *begun])
        for before, after in asked:
            self._fleet.failed_builds.count(before, after)
        if answers:
            self._saying.start(self._say(ended, answers))
        if at_s - self._forgot_at_s > self._settings.over_kept_s / 10:
            self._forgot_at_s = at_s
            await self._store.forget(at_s - self._settings.over_kept_s)

    async def _say(self, ended: Sequence[Ended], answers: Sequence[Outgoing]) -> None:
        """Send the answers, and only when they are confirmed, save that they were sent."""
        try:
            await self._publisher.send_all(answers)
            async with self._store.transaction() as tx:
                # An attempt that got another order meanwhile has another answer due.
                await tx.replace(ended)
        except Operational as problem:
            self._telling.failed(problem)
            again_s = self._fleet.clock_s() + self._settings.again_s
            self._store.due_again([before.key for before, _ in ended], again_s)
        else:
            self._telling.well()
