"""The picture, kept true: subscribe first, then read the books, and merge both by revision.

A jump in the feed's positions, or another term, means that something was missed, and placement is asked what
(catching_up.py), which is also how a scheduler makes sure before it says no.
"""

import asyncio
import logging
from contextlib import aclosing, suppress

from bus.errors import Transient
from bus.handling import Received
from bus.listening import listen
from bus.message import Message
from bus.messages.hosts import HostsAlive, HostsReported
from bus.messages.placement import ProvidersChanged, ShapeMoved
from bus.station import Station
from bus.topology import EVENTS, Grant
from scheduler_worker.catching_up import CatchingUp
from scheduler_worker.core.picture import Picture
from scheduler_worker.core.progress import Progress
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.own_choices import OwnChoices

log = logging.getLogger(__name__)

HEARD = (Grant(EVENTS, ("providers.changed", "host.*.*")),)


class Replica:
    """A part of a scheduler worker. `whole` is set when the first snapshot is in the picture."""

    def __init__(
        self,
        station: Station,
        picture: Picture,
        registry: HostRegistry,
        *,
        page: int,
        verify_every_s: float = 60.0,
    ) -> None:
        self._station = station
        self._picture = picture
        self._registry = registry
        self._verify_every_s = verify_every_s
        self._progress = Progress()
        self._stopping = asyncio.Event()
        self.choices = OwnChoices(picture)
        self.catching_up = CatchingUp(station, picture, self.choices, self._progress, page=page)
        self.whole = self.catching_up.whole

    async def run(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        working = [asyncio.create_task(self._listen()), asyncio.create_task(self._verify())]
        try:
            done, _ = await asyncio.wait((*working, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*working, stopping):
                task.cancel()
            await asyncio.gather(*working, stopping, return_exceptions=True)
            await self.catching_up.close()

    async def stop(self) -> None:
        self._stopping.set()

    async def catch_up(self) -> None:
        """On return, whatever was written before the call is in the picture."""
        await self.catching_up.catch_up()

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
                    self.catching_up.soon()
                for each in batch:
                    self._take(each)

    def _take(self, heard: Received[Message]) -> None:
        match heard.message:
            case ProvidersChanged() as changed:
                self._merge(changed)
            case HostsReported() as report:
                self._registry.hear_facts(report)
            case HostsAlive(cell=cell, hosts=hosts):
                self._registry.hear_beats(cell, hosts)
            case _:
                pass

    def _merge(self, changed: ProvidersChanged) -> None:
        self._picture.apply(changed.providers)
        self._picture.remove(changed.gone)
        all_stand = self._picture.use(changed.usage)
        self.choices.drop((each.consumer, each.attempt) for each in (*changed.claimed, *changed.ended))
        if self._progress.heard(changed.at, changed.cursor):
            log.info("the feed jumped to %s: asking what was missed", changed.at)
            self.catching_up.soon()
        elif not all_stand and self.whole.is_set():
            log.error(
                "the feed tells what is used of providers that it has not told: reading all pages again"
            )
            self.catching_up.doubt()

    async def _verify(self) -> None:
        await self.whole.wait()
        while True:
            await asyncio.sleep(self._verify_every_s)
            # Who could not be asked now is asked the next time.
            with suppress(Transient):
                await self.catching_up.verify()
