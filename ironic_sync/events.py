"""Hears Ironic's notifications and applies them. A body that cannot be read becomes a dead letter on the API level's
broker.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial

from bus.settings import BusSettings
from bus.workers.publisher import Publisher
from bus.workers.sending import Link
from ironic_sync.applying import NOTIFICATIONS_UNREADABLE, NodeWriter
from ironic_sync.core.notifications import (
    AllocationNotified,
    Ignored,
    Notification,
    UnreadableNotification,
    read,
)
from ironic_sync.inbox import Inbox, InboxBatch, InboxMessage, inbox_dead_letter, read_inbox
from kit.metrics import Readings
from kit.parts import Supervised
from kit.times import moment

log = logging.getLogger(__name__)

# Unknown types are told once each, and these are remembered.
TYPES_REMEMBERED_MAX = 1000
# After several notifications the next batch waits so many times as long as they took, and so long at most.
RESTS_PER_BATCH = 2.0
REST_S_MAX = 0.015


def rest_s(count: int, took_s: float) -> float:
    """How long the reader waits for the next batch, after a batch of `count` notifications that took `took_s` to
    apply.

    During the wait, notifications that come fast gather into a larger batch: for the database, placement and the
    schedulers, a batch costs little more than one notification. There is no wait after a single notification.
    """
    return min(REST_S_MAX, RESTS_PER_BATCH * took_s) if count > 1 else 0.0


class EventReader(Supervised):
    """The part that reads Ironic's notifications in batches and has them applied. A batch is acknowledged after its
    changes are committed and its dead letters are confirmed.
    """

    def __init__(
        self,
        link: Link,
        inbox: Inbox,
        writer: NodeWriter,
        graves: Publisher,
        *,
        name: str,
        settings: BusSettings,
        on_gap: Callable[[str], None],
        on_allocations: Callable[[Sequence[AllocationNotified]], None],
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("hear Ironic", self._hear, is_needed=True, chance=chance)
        self._link = link
        self._inbox = inbox
        self._writer = writer
        self._graves = graves
        self._name = name
        self._settings = settings
        self._on_gap = on_gap
        self._on_allocations = on_allocations
        self._unknown_types: set[str] = set()
        self.unreadable = 0

    @property
    def readings(self) -> Readings:
        return (NOTIFICATIONS_UNREADABLE.numbers({(): self.unreadable}),)

    async def _hear(self) -> None:
        loop = asyncio.get_running_loop()
        batches = read_inbox(self._link, self._inbox, settings=self._settings, status=self.status)
        async with aclosing(batches):
            async for batch in batches:
                if batch.gap:
                    self._on_gap(batch.gap)
                began_s = loop.time()
                # A database that is away is waited for here: to begin to read anew would count as a gap.
                await self.status.until_done(partial(self._apply, batch))
                if wait_s := rest_s(len(batch.messages), loop.time() - began_s):
                    await asyncio.sleep(wait_s)

    async def _apply(self, batch: InboxBatch) -> None:
        notifications: list[Notification] = []
        wrong: list[tuple[InboxMessage, UnreadableNotification]] = []
        for heard in batch.messages:
            result = read(heard.body)
            if isinstance(result, Ignored):
                self._ignore(result)
                continue
            if isinstance(result, UnreadableNotification):
                wrong.append((heard, result))
            notifications.append(result)
        if notifications:
            await self._writer.hear(notifications)
            # Most allocations do not say which node they took.
            nameless = [
                each for each in notifications if isinstance(each, AllocationNotified) and each.node is None
            ]
            if nameless:
                self._on_allocations(nameless)
        for heard, unreadable in wrong:
            await self._bury(heard, unreadable)

    def _ignore(self, notification: Ignored) -> None:
        if (
            not notification.is_known
            and notification.event_type not in self._unknown_types
            and len(self._unknown_types) < TYPES_REMEMBERED_MAX
        ):
            self._unknown_types.add(notification.event_type)
            log.info("notifications of type %r are ignored: %s", notification.event_type, notification.reason)

    async def _bury(self, heard: InboxMessage, wrong: UnreadableNotification) -> None:
        self.unreadable += 1
        letter = f"{self._name}-{self.unreadable}"
        await self._graves.offer(
            inbox_dead_letter(
                heard,
                reason=wrong.reason,
                where=self._name,
                letter=letter,
                at=moment(self._writer.clock_us()),
            )
        )
