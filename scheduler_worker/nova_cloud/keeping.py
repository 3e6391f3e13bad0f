"""Keeps in memory what Nova knows: read at the start and at intervals, and changed by Nova's notifications in between.

The notifications come by a queue of this process alone, on Nova's own broker. The queue is bounded, drops its oldest, and is deleted
when nobody reads it: Nova never waits for it. So a notification may be lost. Nothing has to tell of that: all is read again after
each interruption, and at each interval. Which services are up is in no notification, and is read more often.
"""

import asyncio
import logging
import random
from contextlib import suppress
from typing import Protocol

from bus.broker import Connection, Consuming
from bus.configuration.settings import BusSettings
from bus.errors import NotFound, Operational
from bus.measuring import Readings
from bus.parts import PartGroup, Periodic, Supervised
from bus.topology import Binding, Limits, Objects, Queue, QueueKind
from bus.workers.link import Link, pauses_of
from scheduler_worker.metrics import NOVA_NOTIFICATIONS
from scheduler_worker.nova.cloud.answers import ServicesRead
from scheduler_worker.nova.cloud.changes import HeardCloud, after_read, hear, with_services
from scheduler_worker.nova.cloud.notifications import Heard, NotHeard, read_notification
from scheduler_worker.nova.cloud.values import NovaCloud
from scheduler_worker.nova_cloud.settings import NovaCloudSettings

log = logging.getLogger(__name__)

# How often the queue is bound again: an exchange that was deleted and created again has lost its bindings.
BIND_S = 30.0
# Of the queue: its oldest notifications are dropped, and it goes some minutes after its reader. All is read again then.
HEARD_MAX, HEARD_EXPIRES_MS = 10_000, 600_000
# Unreadable types are told once each, and these are remembered.
TYPES_REMEMBERED_MAX = 100


class ReadsNova(Protocol):
    async def cloud(self) -> NovaCloud: ...

    async def services(self) -> ServicesRead: ...


class NovaCloudKeeper(PartGroup):
    """Implements `KnowsNovaCloud`. `link` is a connection to Nova's broker; without one, nothing is heard and all is read.

    `queue` is the name of the queue of this process there.
    """

    def __init__(
        self,
        reader: ReadsNova,
        settings: NovaCloudSettings,
        *,
        link: Link | None = None,
        queue: str = "",
        bus: BusSettings | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._reader = reader
        self._settings = settings
        self._known: HeardCloud | None = None
        # What was heard since each reading that is under way began.
        self._since: list[list[Heard]] = []
        # How many notifications came, by outcome.
        self.counted = dict.fromkeys(("applied", "ignored", "unreadable"), 0)
        self._unreadable_types: set[str] = set()
        self._reading = Periodic(
            "read Nova", self._read, settings.read_s, is_needed=True, is_cut_short=True, chance=chance
        )
        self._services = Periodic(
            "read Nova's services",
            self._read_services,
            settings.services_s,
            is_cut_short=True,
            rests_first=True,
            chance=chance,
        )
        parts: list[Periodic | Supervised] = [self._reading, self._services]
        if link is not None:
            self._link = link
            self._bus = bus or BusSettings()
            self._queue = queue
            parts.append(Supervised("hear Nova", self._hear, pauses=pauses_of(self._bus), chance=chance))
            self._hearing = parts[-1]
        super().__init__(*parts)

    @property
    def cloud(self) -> NovaCloud | None:
        return None if self._known is None else self._known.cloud

    def read_soon(self) -> None:
        """Read all now: something may have changed."""
        self._reading.wake()

    @property
    def readings(self) -> Readings:
        return (NOVA_NOTIFICATIONS.numbers({(outcome,): count for outcome, count in self.counted.items()}),)

    # Reading

    async def _read(self) -> None:
        since: list[Heard] = []
        self._since.append(since)
        try:
            read = await self._reader.cloud()
        finally:
            self._since = [each for each in self._since if each is not since]
        self._set(after_read(read, since))

    async def _read_services(self) -> None:
        if self._known is None:
            return
        since: list[Heard] = []
        self._since.append(since)
        try:
            read = await self._reader.services()
        finally:
            self._since = [each for each in self._since if each is not since]
        self._set(with_services(self._known, read, since))

    def _set(self, known: HeardCloud) -> None:
        self._known = known
        if known.doubt:
            log.info("Nova is read again: %s", known.doubt)
            self._known = HeardCloud(known.cloud, known.heard_at)
            self._reading.wake()

    # Hearing

    async def _hear(self) -> None:
        async with self._link.opened() as connection:
            limits = Limits(
                feed_length_max=HEARD_MAX,
                unused_expires_ms=HEARD_EXPIRES_MS,
            )
            await connection.declare(Objects((), (Queue(self._queue, QueueKind.FEED),), limits))
            consuming = await connection.open_consuming(self._queue, self._bus.prefetch)
            try:
                await self._consume(connection, consuming)
            finally:
                with suppress(Operational):
                    await consuming.close()

    async def _consume(self, connection: Connection, consuming: Consuming) -> None:
        is_bound = await self._bound(connection, was_bound=None)
        self._hearing.status.well()
        # What was said before may be lost.
        self._reading.wake()
        receiving = asyncio.ensure_future(consuming.receive())
        try:
            while True:
                done, _ = await asyncio.wait((receiving,), timeout=BIND_S)
                if not done:
                    is_bound = await self._bound(connection, was_bound=is_bound)
                    continue
                deliveries = receiving.result()
                for each in deliveries:
                    self._take(each.parcel.body)
                await consuming.acknowledge(deliveries[-1].tag, multiple=True)
                receiving = asyncio.ensure_future(consuming.receive())
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _bound(self, connection: Connection, *, was_bound: bool | None) -> bool:
        """Bind the queue to Nova's exchange. Returns False if there is none: no Nova has run there yet."""
        bindings = [Binding(self._settings.exchange, f"{topic}.*") for topic in self._settings.topics]
        try:
            await connection.bind(self._queue, bindings)
        except NotFound:
            if was_bound is not False:
                log.warning(
                    "the queue %r is bound as soon as the exchange %r exists: it does not yet",
                    self._queue,
                    self._settings.exchange,
                )
            return False
        if was_bound is False:
            self._reading.wake()
        return True

    def _take(self, body: bytes) -> None:
        heard = read_notification(body)
        if isinstance(heard, NotHeard):
            self.counted["unreadable" if heard.reason else "ignored"] += 1
            if heard.reason and heard.event not in self._unreadable_types:
                if len(self._unreadable_types) < TYPES_REMEMBERED_MAX:
                    self._unreadable_types.add(heard.event)
                log.warning(
                    "a notification %r of Nova cannot be read, and all is read again: %s",
                    heard.event,
                    heard.reason,
                )
                self._reading.wake()
            return
        self.counted["applied"] += 1
        for since in self._since:
            since.append(heard)
        if self._known is not None:
            self._set(hear(self._known, heard))
