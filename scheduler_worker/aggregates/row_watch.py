"""The rows of aggregates, read at start and now and then: an event about one may be lost."""

import random

from bus.parts import Periodic
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.store import SchedulerStore


class AggregateWatch(Periodic):
    def __init__(
        self, store: SchedulerStore, picture: Picture, poll_s: float, chance: random.Random | None = None
    ) -> None:
        super().__init__("read aggregates", self.refresh, poll_s, is_needed=True, chance=chance)
        self._store = store
        self._picture = picture

    async def refresh(self) -> None:
        """On return, the picture has the metadata of every aggregate as it was written before the call, or later."""
        known = self._picture.aggregates.all()
        rows = await self._store.aggregates()
        self._picture.put_aggregates(rows)
        there = {row.id for row in rows}
        for each in known:
            if each.id not in there:
                self._picture.remove_aggregate(each)
