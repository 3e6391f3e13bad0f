"""The picture, kept true: subscribe first, then page the snapshot, and merge both by revision.

A jump in the feed's positions, or another term, means that something was missed: all pages are read again, which is
also how a scheduler makes sure before it says no. Whoever asks for that shares the next reading with all who asked
before it began.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from bus.errors import Transient
from bus.handling import Received
from bus.listening import listen
from bus.message import ConsumerId, Message
from bus.messages.hosts import HostsAlive, HostsReported
from bus.messages.placement import (
    AskSnapshot,
    LogPosition,
    ProvidersChanged,
    ShapeMoved,
    Share,
    SnapshotPage,
)
from bus.station import Station
from bus.topology import EVENTS, Grant, cell_of_user, user_of
from scheduler_worker.core.picture import Picture
from scheduler_worker.hosts import HostRegistry

log = logging.getLogger(__name__)

HEARD = (Grant(EVENTS, ("providers.changed", "host.*.*")),)
Key = tuple[ConsumerId, int]


class Replica:
    """A part of a scheduler worker. `whole` is set when the first snapshot is in the picture."""

    def __init__(
        self, station: Station, picture: Picture, registry: HostRegistry, *, page: int, retry_s: float = 1.0
    ) -> None:
        self._station = station
        self._picture = picture
        self._registry = registry
        self._page = page
        self._retry_s = retry_s
        self._heard: LogPosition | None = None
        self._reading: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._readings = 0
        # Own choices, and whether placement has said yes to them.
        self._held: dict[Key, bool] = {}
        self._stopping = asyncio.Event()
        self.whole = asyncio.Event()

    @property
    def catching_up_count(self) -> int:
        """How often all pages were read."""
        return self._readings

    async def run(self) -> None:
        listening = asyncio.create_task(self._listen())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((listening, stopping), return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                listening.result()
        finally:
            tasks = [task for task in (listening, stopping, self._reading, self._next) if task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        self._stopping.set()

    async def catch_up(self) -> None:
        """On return, whatever was written before the call is in the picture."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read_after(self._reading))
        await asyncio.shield(self._next)

    # Own choices

    def hold(self, consumer: ConsumerId, attempt: int, share: Share) -> None:
        self._held[consumer, attempt] = False
        self._picture.hold(consumer, attempt, share)

    def granted(self, consumer: ConsumerId, attempt: int) -> None:
        """It counts until the feed names it, or a reading that began later contains it."""
        if (consumer, attempt) in self._held:
            self._held[consumer, attempt] = True

    def drop(self, consumer: ConsumerId, attempt: int) -> None:
        if self._held.pop((consumer, attempt), None) is not None:
            self._picture.drop(consumer, attempt)

    def moved(self, moved: ShapeMoved) -> bool:
        """A claim was refused with the new state of the trees it named; whether that was the whole of it."""
        self._picture.apply(moved.trees)
        self._picture.forget(moved.gone)
        return {provider.root for provider in moved.trees} >= set(moved.roots)

    # The feed

    async def _listen(self) -> None:
        station = self._station
        feed = listen(
            station.consuming, HEARD, process=station.name, settings=station.settings, codec=station.codec
        )
        async with aclosing(feed):
            async for batch in feed:
                if not batch:
                    # A new queue: what was said before it stood is in no feed.
                    self._catch_up_soon()
                for each in batch:
                    self._take(each)

    def _take(self, heard: Received[Message]) -> None:
        match heard.message:
            case ProvidersChanged() as changed if self._is_from_placement(heard.sender):
                self._merge(changed)
            case HostsReported(cell=cell, hosts=facts) if speaks_for(self._station, heard.sender, cell):
                self._registry.hear_facts(cell, facts)
            case HostsAlive(cell=cell, hosts=hosts) if speaks_for(self._station, heard.sender, cell):
                self._registry.hear_beats(cell, hosts)
            case ProvidersChanged() | HostsReported() | HostsAlive():
                log.warning("not believed: %s by %r", type(heard.message).__name__, heard.sender)
            case _:
                pass

    def _merge(self, changed: ProvidersChanged) -> None:
        self._picture.apply(changed.providers)
        self._picture.remove(changed.gone)
        for holder in (*changed.claimed, *changed.ended):
            self.drop(holder.consumer, holder.attempt)
        before, self._heard = self._heard, changed.at
        if before is not None and not _follows(before, changed.at):
            log.info("the feed jumped from %s to %s: reading all pages again", before, changed.at)
            self._catch_up_soon()

    def _is_from_placement(self, sender: str) -> bool:
        return not has_users(self._station) or sender == user_of("placement")

    # The pages

    def _catch_up_soon(self) -> None:
        """The task is kept and its failures retried by itself, so nobody needs to wait for it."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read_after(self._reading))

    async def _read_after(self, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait((earlier,))
        # From here on, who asks needs another reading.
        self._reading, self._next = self._next, None
        await _until_done(self._read_all, self._retry_s)
        self.whole.set()

    async def _read_all(self) -> None:
        self._readings += 1
        known = self._picture.internals()
        granted_before = [key for key, granted in self._held.items() if granted]
        there: set[int] = set()
        after: int | None = 0
        while after is not None:
            page = await self._station.ask(AskSnapshot(after=after, limit=self._page))
            assert isinstance(page, SnapshotPage), f"placement answered a snapshot by {page!r}"
            self._picture.apply(page.providers)
            there.update(provider.internal for provider in page.providers)
            if self._heard is None:
                self._heard = page.published
            after = page.next
        self._picture.prune(known - there)
        for key in granted_before:
            self.drop(*key)


def has_users(station: Station) -> bool:
    """Where this worker has its own user, everybody has one."""
    return station.consuming.broker.user == user_of("scheduler")


def speaks_for(station: Station, sender: str, cell: str) -> bool:
    """May this sender say things of that cell?"""
    return not has_users(station) or cell_of_user(sender) == cell


def _follows(before: LogPosition, after: LogPosition) -> bool:
    """The next one, or one that was said again."""
    return before.term == after.term and after.position <= before.position + 1


async def _until_done(work: Callable[[], Awaitable[None]], pause_s: float) -> None:
    while True:
        try:
            return await work()
        except Transient as problem:
            log.warning("placement's snapshot could not be read, trying again: %s", problem)
            await asyncio.sleep(pause_s)
