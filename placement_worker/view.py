"""All providers in memory, brought up to date before each read.

A reader must see everything that any process committed before it asked. So before each answer the view reads from the
change log what was written since its last reading. Callers that ask during one reading share the next one, so the number
of callers does not matter to the database. If the log does not reach back far enough, the view reads all providers.
"""

import gc
import logging
from functools import partial
from typing import Protocol

from bus.messages.placement import SnapshotPage
from bus.parts import SharedRuns
from bus.retrying import Retrying
from placement_worker.replica import ProviderReplica
from placement_worker.store import Unpublished

log = logging.getLogger(__name__)

# How many providers are read at once.
PAGE = 1_000
# A garbage collection over ten thousand providers blocks the process for a second. Providers stay once they are read, and are
# in no reference cycle, so they are frozen: the collector skips them.
FROZEN_MIN = 1_000
TRIES_MAX = 4


class Books(Protocol):
    async def snapshot_page(self, after: int, limit: int) -> SnapshotPage: ...

    async def changes_since(self, since: str) -> Unpublished | None: ...


class ProviderView:
    """Keeps a copy of all providers in memory.

    `readings` counts how often it read from the database, and `readings_of_all` how often it read all providers.
    """

    def __init__(self, books: Books, page: int = PAGE) -> None:
        self._books = books
        self._page = page
        self._replica = ProviderReplica()
        # The cursor of the last reading; empty before the first.
        self._cursor = ""
        self._shared = SharedRuns(partial(Retrying(TRIES_MAX), self._read))
        self.readings = 0
        self.readings_of_all = 0

    async def caught_up(self) -> ProviderReplica:
        """All providers, with everything committed before the call, and perhaps some of what is committed meanwhile. Raises
        Transient if the database cannot be read.
        """
        await self._shared.done()
        return self._replica

    async def close(self) -> None:
        await self._shared.close()

    async def _read(self) -> None:
        self.readings += 1
        if not (self._cursor and await self._read_changes()):
            await self._read_all()

    async def _read_changes(self) -> bool:
        """Read the changes since the last reading. False if all providers must be read again."""
        changes = await self._books.changes_since(self._cursor)
        if changes is None:
            return False
        self._replica.delete(each.internal for each in changes.gone)
        self._replica.merge(changes.providers)
        if not self._replica.use(changes.usage):
            log.error(
                "the log has usage of providers that this reader never received: reading all providers again"
            )
            return False
        self._cursor = changes.cursor
        return True

    async def _read_all(self) -> None:
        self.readings_of_all += 1
        before = self._replica.known_now()
        there: set[int] = set()
        after: int | None = 0
        # Each page is of a later moment, so the next reading continues from the cursor of the first page.
        came_to = ""
        while after is not None:
            page = await self._books.snapshot_page(after, self._page)
            came_to = came_to or page.cursor
            self._replica.merge_read(page.providers, before)
            there.update(state.internal for state in page.providers)
            after = page.next
        self._replica.end_reading_of_all(there, before)
        self._cursor = came_to
        if len(there) >= FROZEN_MIN:
            gc.freeze()
