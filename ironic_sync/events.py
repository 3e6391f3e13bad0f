"""Hears Ironic's notifications and applies them. A body that cannot be read becomes a dead letter on the API level's
broker.
"""

import asyncio
import logging
import random
import traceback
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from bus.broker import Delivery, Origin
from bus.message import Parcel
from bus.settings import BusSettings
from bus.topology import IRONIC_EVENTS
from bus.workers.consuming import InboxConsuming, consumer
from bus.workers.dead_letters import dead_letter_parcel
from bus.workers.publisher import Publisher
from bus.workers.sending import Link
from ironic_sync.applying import NOTIFICATIONS_UNREADABLE, Listener, NodeWriter, node_of
from ironic_sync.core.notifications import (
    AllocationNotified,
    Ignored,
    Notification,
    UnreadableNotification,
    read,
)
from ironic_sync.settings import Inbox
from kit.clock import moment
from kit.metrics import Readings
from kit.parts import Supervised

log = logging.getLogger(__name__)

# Reads the messages of another program, such as Ironic: raw bytes, over a connection and from a queue of our own.
#
# The broker often belongs to that program. It then has no retry or dead-letter exchanges of ours and does not verify
# senders. Nothing is judged here: every user that may write to the exchange is trusted. All processes that read share one
# queue, an inbox (bus/topology.py). A full inbox drops its oldest messages, so it never blocks the program.
#
# Messages can be missed while the queue is not bound: the reader is told of each such gap, and must then read the missed state in
# another way. Nobody tells it what a full inbox dropped: so it also reads all of the state at an interval.


# How often the queue is bound again: an exchange that was deleted and created again has lost its bindings.
BIND_S = 5.0


def inbox_dead_letter(
    delivery: Delivery, *, reason: str, where: str, letter: str, at: datetime | None = None
) -> Parcel:
    """Make the parcel that brings an unreadable message of another program to the dead letters of the API level's
    broker.

    The caller sends it by `Publisher.offer`. `where` names the process; `letter` is a unique name. An operator can look
    at the dead letter and drop it. It is never replayed, since an inbox has no retry exchange.
    """
    parcel = delivery.parcel
    origin = Origin(exchange=parcel.exchange, key=parcel.routing_key)
    # The queue's name in the topology, whatever the inbox is called: the role may only dead-letter under that name.
    return dead_letter_parcel(
        parcel.body, IRONIC_EVENTS, origin, reason=reason, attempts=1, where=where, letter=letter, at=at
    )


# Applies them to the rows of nodes.


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


def _read(body: bytes) -> Notification | Ignored:
    """A bug at one notification holds up no others: it is told where it is buried."""
    try:
        return read(body)
    except Exception:  # noqa: BLE001 - whatever it is, no other daemon can read it either
        return UnreadableNotification(reason=traceback.format_exc(limit=-3))


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
        on_came_back: Listener,
        chance: random.Random | None = None,
    ) -> None:
        """`on_came_back` gets the rows of nodes whose notifications an earlier reader had received: it may have written
        them, and died before it told of them.
        """
        super().__init__("hear Ironic", self._hear, is_needed=True, chance=chance)
        self._link = link
        self._inbox = inbox
        self._writer = writer
        self._graves = graves
        self._name = name
        self._settings = settings
        self._on_gap = on_gap
        self._on_allocations = on_allocations
        self._on_came_back = on_came_back
        self._unknown_types: set[str] = set()
        self.unreadable = 0

    @property
    def readings(self) -> Readings:
        return (NOTIFICATIONS_UNREADABLE.numbers({(): self.unreadable}),)

    async def _hear(self) -> None:
        loop = asyncio.get_running_loop()
        opens = partial(
            InboxConsuming.open,
            inbox=self._inbox.objects,
            prefetch=self._settings.prefetch,
            bind_s=BIND_S,
        )
        gap = (
            f"reading was interrupted: {why}"
            if (why := self.status.last_error)
            else "reading begins: earlier messages may have been missed"
        )
        async with consumer(self._link, self.status, opens) as consuming:
            self._on_gap(gap)
            while True:
                deliveries = await consuming.receive()
                if not deliveries:
                    self._on_gap(f"the exchange {self._inbox.exchange!r} did not exist for a while")
                    continue
                began_s = loop.time()
                # A database that is away is waited for here: to begin to read anew would count as a gap.
                await self.status.until_done(partial(self._apply, deliveries))
                if wait_s := rest_s(len(deliveries), loop.time() - began_s):
                    await asyncio.sleep(wait_s)
                await consuming.acknowledge(deliveries[-1].tag, multiple=True)

    async def _apply(self, deliveries: Sequence[Delivery]) -> None:
        notifications: list[Notification] = []
        wrong: list[tuple[Delivery, UnreadableNotification]] = []
        came_back: list[Notification] = []
        for heard in deliveries:
            result = _read(heard.parcel.body)
            if isinstance(result, Ignored):
                self._ignore(result)
                continue
            if isinstance(result, UnreadableNotification):
                wrong.append((heard, result))
            notifications.append(result)
            if heard.returns:
                came_back.append(result)
        if notifications:
            await self._writer.hear(notifications)
            if again := {node for each in came_back if (node := node_of(each)) is not None}:
                self._on_came_back([*(await self._writer.read(again)).values()])
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

    async def _bury(self, heard: Delivery, wrong: UnreadableNotification) -> None:
        self.unreadable += 1
        await self._graves.offer(
            inbox_dead_letter(
                heard,
                reason=wrong.reason,
                where=self._name,
                letter=f"{self._name}-{self.unreadable}",
                at=moment(self._writer.clock_us()),
            )
        )
