"""Publishes what was written, as `ProvidersChanged`, from the change log and never from a handler.

One process leads and publishes. Positions count its messages, and a new leader starts a new term, so a reader sees each
gap. The log is marked only after its messages are confirmed. A crash between the two repeats them; readers merge by
revision and do not notice.
"""

import asyncio
import logging
import random
from collections.abc import Iterator

from bus.messages.placement import LogPosition, ProvidersChanged
from bus.parts import Supervised, wait_at_most
from bus.workers.publisher import Outgoing, Publisher
from placement_worker.paging import ROOM, bytes_of_provider, bytes_of_usage, how_many_fit
from placement_worker.settings import PlacementSettings
from placement_worker.store import ChangeFeed, PlacementStore, Unpublished

log = logging.getLogger(__name__)

HOLDERS_PER_MESSAGE = 400
# Members of server groups that joined or left have messages of their own: most claims are in no group.
MEMBERS_PER_MESSAGE = 400
# The pause after publishing, as a multiple of the time that publishing took; at most `feed_rest_ms`.
RESTS_PER_MESSAGE = 2.0
# Room that this many of each kind of holder leave in a message, at less than 100 bytes each: half of it for whole providers,
# half for usage.
CHANGES_ROOM = (ROOM - 3 * HOLDERS_PER_MESSAGE * 100) // 2


def rest_s(unpublished: Unpublished, took_s: float, max_s: float) -> float:
    """The pause after publishing this.

    After the changes of several providers it lets the next ones gather, often of the same providers. After a short
    publication it is short, so publishing never takes all the time. Changes that come one by one do not wait: a single slow
    publication would delay the next change three times.
    """
    is_lone = len(unpublished.providers) + len(unpublished.usage) <= 1
    return 0.0 if is_lone else min(max_s, RESTS_PER_MESSAGE * took_s)


class ChangePublisher(Supervised):
    """A part of a placement worker: publishes the log while no other process does. It needs one publisher for each broker
    with listeners.
    """

    def __init__(
        self,
        store: PlacementStore,
        publishers: tuple[Publisher, ...],
        settings: PlacementSettings,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("publish the feed of changes", self._take_part, is_cut_short=False, chance=chance)
        self._store = store
        self._publishers = publishers
        self._settings = settings
        self._written = asyncio.Event()

    def written(self) -> None:
        """Call after a commit: the log is read at once, without waiting for the next poll."""
        self._written.set()

    async def _take_part(self) -> None:
        while not self.stopping.is_set():
            async with self._store.lead_feed() as feed:
                self.status.well()
                if feed is not None:
                    await self._lead(feed)
            await wait_at_most(self.stopping, self._settings.feed_lead_again_ms / 1000)

    async def stop(self) -> None:
        await super().stop()
        self._written.set()

    async def _lead(self, feed: ChangeFeed) -> None:
        """Publish the changes of the change log until stopped. Everything written before the stop is published."""
        log.info("leading the feed", extra={"term": feed.published.term})
        loop = asyncio.get_running_loop()
        while True:
            # Clear first, then read: a write during the reading is seen by the next one.
            self._written.clear()
            began_s = loop.time()
            unpublished = await feed.read(self._settings.feed_entries_max)
            has_said = await self._publish(feed, unpublished)
            if unpublished.is_cut:
                continue
            if self.stopping.is_set():
                return
            if not has_said:
                await wait_at_most(self._written, self._settings.feed_poll_ms / 1000)
            elif pause_s := rest_s(unpublished, loop.time() - began_s, self._settings.feed_rest_ms / 1000):
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
    """The changes, in as many messages as they need, each at the next position.

    Members of server groups come first, so that a picture does not lose sight of a member when it drops its own copy of
    the claim.

    A usage refers to a state of its provider, so it comes after the whole providers. Claims that were taken or ended come
    last: a picture that drops its own copy of a claim must already know the usage.
    """
    position = after.position
    providers, gone, usage = unpublished.providers, unpublished.gone, unpublished.usage
    claimed, ended = unpublished.claimed, unpublished.ended
    for of_members in _messages_of_members(unpublished, after):
        position = of_members.at.position
        yield of_members
    while providers or gone or usage or claimed or ended:
        position += 1
        is_last = how_many_fit(map(bytes_of_provider, providers), CHANGES_ROOM) == len(providers)
        # One provider always fits alone: the size of a report is limited.
        fit = len(providers) if is_last else max(how_many_fit(map(bytes_of_provider, providers)), 1)
        told, providers = providers[:fit], providers[fit:]
        fit = max(how_many_fit(map(bytes_of_usage, usage), CHANGES_ROOM), 1) if is_last else 0
        used, usage = usage[:fit], usage[fit:]
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
    """Members that joined come before those that left, which may be the same. Their claims follow, and so does the cursor."""
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
