"""Publishes the change log as messages `ProvidersChanged`. Handlers only write the log, and publish nothing of it.

One process is the leader and publishes. The messages of a leader are numbered by positions, and each new leader starts a
new term, so a reader notices when it has missed a message. The log is marked as published only after the broker has
confirmed the messages. A crash between the two repeats them. Readers drop what they know already, by its revision.
"""

import asyncio
import logging
import random
from collections.abc import Iterator

from msgspec import Struct

from bus.messages.cloud import VALUES_BYTES_MAX
from bus.messages.placement import LogPosition, ProvidersChanged
from bus.workers.publisher import Outgoing, Publisher
from kit.parts import Supervised, wait_at_most
from placement_worker.store import FEED_ENTRIES, ChangeFeed, PlacementStore, Unpublished
from placement_worker.view import how_many_fit

log = logging.getLogger(__name__)

HOLDERS_PER_MESSAGE = 400
# Members of server groups that joined or left have messages of their own: most claims are in no group.
MEMBERS_PER_MESSAGE = 400
# The pause after publishing, as a multiple of the time that publishing took; at most `FeedPace.rest_s_max`.
RESTS_PER_MESSAGE = 2.0
# Room that this many of each kind of holder leave in a message, at less than 100 bytes each: half of it for whole providers,
# half for usage.
CHANGES_ROOM = (VALUES_BYTES_MAX - 3 * HOLDERS_PER_MESSAGE * 100) // 2


class FeedPace(Struct, frozen=True):
    """How often the change log is read. A program that simulates time gives another pace."""

    # The leader looks so often for changes that other processes wrote, as the HTTP API does.
    poll_s: float = 0.05
    # The longest pause between two publications, in which changes gather.
    rest_s_max: float = 0.02
    # Another process tries so often to become the leader.
    lead_again_s: float = 1.0
    entries_max: int = FEED_ENTRIES


FEED_PACE = FeedPace()


def rest_s(unpublished: Unpublished, took_s: float, max_s: float) -> float:
    """How long to wait after these changes were published, which took `took_s`, before the log is read again.

    The pause lets further changes gather, since several often concern the same providers. It is a multiple of the time
    that publishing took, at most `max_s`. After the change of a single provider there is no pause: it would only delay
    the next change.
    """
    is_lone = len(unpublished.providers) + len(unpublished.usage) <= 1
    return 0.0 if is_lone else min(max_s, RESTS_PER_MESSAGE * took_s)


class ChangePublisher(Supervised):
    """A part of a placement worker that publishes the change log, whenever no other process is the leader that does so.

    It needs one publisher for each broker on which readers listen for changes.
    """

    def __init__(
        self,
        store: PlacementStore,
        publishers: tuple[Publisher, ...],
        chance: random.Random | None = None,
        *,
        pace: FeedPace = FEED_PACE,
    ) -> None:
        super().__init__("publish the feed of changes", self._take_part, is_cut_short=False, chance=chance)
        self._store = store
        self._publishers = publishers
        self._pace = pace
        self._written = asyncio.Event()

    def written(self) -> None:
        """Wake the publisher after a commit, so that it reads the change log at once and not at its next poll."""
        self._written.set()

    async def _take_part(self) -> None:
        while not self.stopping.is_set():
            async with self._store.lead_feed() as feed:
                self.status.well()
                if feed is not None:
                    await self._lead(feed)
            await wait_at_most(self.stopping, self._pace.lead_again_s)

    async def stop(self) -> None:
        await super().stop()
        self._written.set()

    async def _lead(self, feed: ChangeFeed) -> None:
        """As the leader, publish the change log until this part is stopped. All changes written before the stop are still
        published.
        """
        log.info("leading the feed", extra={"term": feed.published.term})
        loop = asyncio.get_running_loop()
        while True:
            # Clear first, then read: a write during the reading is seen by the next one.
            self._written.clear()
            began_s = loop.time()
            unpublished = await feed.read(self._pace.entries_max)
            has_said = await self._publish(feed, unpublished)
            if unpublished.is_cut:
                continue
            if self.stopping.is_set():
                return
            if not has_said:
                await wait_at_most(self._written, self._pace.poll_s)
            elif pause_s := rest_s(unpublished, loop.time() - began_s, self._pace.rest_s_max):
                await wait_at_most(self.stopping, pause_s)

    async def _publish(self, feed: ChangeFeed, unpublished: Unpublished) -> bool:
        messages = list(messages_of(unpublished, feed.published))
        if messages:
            outgoing = [Outgoing(message) for message in messages]
            await asyncio.gather(*(publisher.send_all(outgoing) for publisher in self._publishers))
            await feed.mark(messages[-1].at.position, unpublished.cursor)
        elif unpublished.is_cut:
            # All providers in these entries are gone by now: mark them, and read the next entries.
            await feed.mark(feed.published.position, unpublished.cursor)
        return bool(messages)


def messages_of(unpublished: Unpublished, after: LogPosition) -> Iterator[ProvidersChanged]:
    """Split changes into messages `ProvidersChanged`. The first one gets the position that follows `after`.

    Members of server groups come first, and whole providers follow. Then comes the usage of other providers, which
    refers to states that were published before. Claims come last. Schedulers need this order: when they read that a
    claim was taken or ended, they drop their own copy of it. By then they must know the usage and members that it stood
    for.
    """
    position = after.position
    providers, gone, usage = unpublished.providers, unpublished.gone, unpublished.usage
    claimed, ended = unpublished.claimed, unpublished.ended
    for of_members in _messages_of_members(unpublished, after):
        position = of_members.at.position
        yield of_members
    while providers or gone or usage or claimed or ended:
        position += 1
        is_last = not providers or how_many_fit(providers, CHANGES_ROOM) == len(providers)
        # One provider always fits alone: the size of a report is limited.
        fit = len(providers) if is_last else max(how_many_fit(providers), 1)
        told, providers = providers[:fit], providers[fit:]
        # After a lone claim there is one usage, and no need to measure it.
        fit = 1 if len(usage) == 1 else max(how_many_fit(usage, CHANGES_ROOM), 1)
        used, usage = (usage[:fit], usage[fit:]) if is_last else ((), usage)
        few = HOLDERS_PER_MESSAGE if is_last and not usage else 0
        left = (providers, gone[few:], usage, claimed[few:], ended[few:])
        yield ProvidersChanged(
            at=LogPosition(term=after.term, position=position),
            providers=told,
            gone=gone[:few],
            usage=used,
            claimed=claimed[:few],
            ended=ended[:few],
            # Only a reader that has all messages has reached the cursor.
            cursor="" if any(left) else unpublished.cursor,
        )
        providers, gone, usage, claimed, ended = left


def _messages_of_members(unpublished: Unpublished, after: LogPosition) -> Iterator[ProvidersChanged]:
    """The messages with members of server groups: first those that joined, then those that left.

    The same consumer may have joined and left. Only later messages have the claims of these members, and the cursor up
    to which a reader of all messages knows the log.
    """
    position, joined, left = after.position, unpublished.joined, unpublished.left
    while joined or left:
        position += 1
        few = MEMBERS_PER_MESSAGE if len(joined) <= MEMBERS_PER_MESSAGE else 0
        yield ProvidersChanged(
            at=LogPosition(term=after.term, position=position),
            joined=joined[:MEMBERS_PER_MESSAGE],
            left=left[:few],
        )
        joined, left = joined[MEMBERS_PER_MESSAGE:], left[few:]
