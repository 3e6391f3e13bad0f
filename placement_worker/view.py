"""What reads are answered from: all providers in memory, brought up to date before each answer.

A reader must see whatever was committed before it asked, by whichever process. So before each answer the view reads, from
the change log, what was written since it last did; whoever asks while one reading runs shares the next one, and how many
ask at once does not matter to the database. Where the log does not reach back far enough, all is read anew.
"""

import asyncio
import gc
import logging
from typing import Protocol

import tenacity

from bus.errors import Transient
from bus.messages.placement import SnapshotPage
from placement_worker.replica import Replica
from placement_worker.store import Unpublished

log = logging.getLogger(__name__)

# Providers that are read at once.
PAGE = 1_000
# A collector that looks at ten thousand providers keeps the process from all else for a second. Once they are read they stay,
# and nothing of them is in a cycle: it need not look.
FROZEN_MIN = 1_000
TRIES_MAX = 4
RETRY_DELAY_S_FIRST = 0.005
RETRY_DELAY_S_MAX = 0.2


class Books(Protocol):
    async def snapshot_page(self, after: int, limit: int) -> SnapshotPage: ...

    async def changes_since(self, since: str) -> Unpublished | None: ...


class View:
    """`readings` counts how often the books were asked, and `readings_of_all` how often for all they have."""

    def __init__(self, books: Books, page: int = PAGE) -> None:
        self._books = books
        self._page = page
        self._replica = Replica()
        # How far the books had come when they were last read; empty before.
        self._cursor = ""
        self._reading: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self.readings = 0
        self.readings_of_all = 0

    async def caught_up(self) -> Replica:
        """With all that was committed before the call; what is committed meanwhile may be in it. Raises Transient where the
        books cannot be read.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read_after(self._reading))
            self._next.add_done_callback(_seen)
        await asyncio.shield(self._next)
        return self._replica

    async def close(self) -> None:
        tasks = [task for task in (self._reading, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_after(self, earlier: "asyncio.Task[None] | None") -> None:
        if earlier is not None:
            await asyncio.wait((earlier,))
        # From here on, who asks needs another reading.
        self._reading, self._next = self._next, None
        await _retrying()(self._read)

    async def _read(self) -> None:
        self.readings += 1
        if not (self._cursor and await self._read_changes()):
            await self._read_all()

    async def _read_changes(self) -> bool:
        """Whether the log told them all, and of providers that are known."""
        changes = await self._books.changes_since(self._cursor)
        if changes is None:
            return False
        self._replica.remove(changes.gone)
        self._replica.tell(changes.providers)
        if not self._replica.use(changes.usage):
            log.error("the log tells what is used of providers that it has not told: reading all pages again")
            return False
        self._cursor = changes.cursor
        return True

    async def _read_all(self) -> None:
        self.readings_of_all += 1
        there: set[int] = set()
        after: int | None = 0
        # Each page is read from a later view of the books: the next reading goes on from the first.
        came_to = ""
        while after is not None:
            page = await self._books.snapshot_page(after, self._page)
            came_to = came_to or page.cursor
            self._replica.tell(page.providers)
            there.update(state.internal for state in page.providers)
            after = page.next
        self._replica.keep_only(there)
        self._cursor = came_to
        if len(there) >= FROZEN_MIN:
            gc.freeze()


def _retrying() -> tenacity.AsyncRetrying:
    """A connection that broke is no reason to fail whoever asks: the next try has another."""
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(Transient),
        stop=tenacity.stop_after_attempt(TRIES_MAX),
        wait=tenacity.wait_random_exponential(multiplier=RETRY_DELAY_S_FIRST, max=RETRY_DELAY_S_MAX),
        reraise=True,
    )


def _seen(task: "asyncio.Task[None]") -> None:
    """Whoever waits hears of its failure; if all of them have gone, nobody needs to."""
    if not task.cancelled():
        task.exception()
