"""Goes through all rows of this daemon's nodes at an interval, for work that no event starts or that other daemons left
undone.

It reports nodes again whose provider another program keeps, reports each node to the host registry again, and prunes
the rows of nodes that Ironic deleted long ago.
"""

import logging
import random
from collections.abc import Callable, Sequence

from bus.moments import SECOND_US
from bus.parts import Periodic
from ironic_sync.core.rows import NodeRow
from ironic_sync.settings import IronicSettings
from ironic_sync.store import NodeStore, pages_of

log = logging.getLogger(__name__)

Listener = Callable[[Sequence[NodeRow]], None]


class Review(Periodic):
    """The part that goes through the rows of this daemon's nodes. Its listeners are called with each page of rows,
    and must not wait.
    """

    def __init__(
        self,
        store: NodeStore,
        daemon: str,
        settings: IronicSettings,
        clock_us: Callable[[], int],
        *,
        listeners: Sequence[Listener] = (),
        forgotten: Callable[[], None] = lambda: None,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(
            "review all nodes",
            self._review,
            settings.sweep_s,
            rests_first=True,
            is_cut_short=True,
            chance=chance,
        )
        self._store = store
        self._daemon = daemon
        self._settings = settings
        self._clock_us = clock_us
        self._listeners = listeners
        # Called after rows were pruned.
        self._forgotten = forgotten

    async def _review(self) -> None:
        async for rows in pages_of(self._store, self._daemon, self._settings.page):
            for listener in self._listeners:
                listener(rows)
            await self._prune(rows)

    async def _prune(self, rows: Sequence[NodeRow]) -> None:
        before_us = self._clock_us() - round(self._settings.deleted_kept_s * SECOND_US)
        old = [row for row in rows if row.is_over and max(row.heard_at_us, row.read_at_us) < before_us]
        if not old:
            return
        async with self._store.transaction() as transaction:
            gone = await transaction.forget(old)
        self._forgotten()
        log.info("forgot %d nodes that were deleted more than %g s ago", gone, self._settings.deleted_kept_s)
