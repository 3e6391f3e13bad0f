"""The replica of placement's data: subscribe to the feed, then read a snapshot, and merge both by revision.

Each message of the feed has a position, and a term, which changes when another placement process begins to publish.
After a jump in the positions, or with another term, messages may be missing. Then placement is asked for the changes
(`CatchingUp`); a scheduler does the same before it refuses a request for lack of a host.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from bus.message import Message
from bus.messages.build import InstanceWaiting
from bus.messages.hosts import AggregateChanged
from bus.messages.placement import (
    AskMembers,
    AskRevisions,
    AskSnapshot,
    LogPosition,
    MembersPage,
    ProvidersChanged,
    RevisionsPage,
    SnapshotPage,
)
from bus.topology import EVENTS, Grant
from bus.workers.connections import FeedListener, Station
from bus.workers.handlers import Received
from engine.picture.picture import Picture
from engine.refusals import ShapeMoved
from kit.errors import WrongAnswer
from kit.parts import PartGroup, Periodic, SingleFlight
from scheduler_worker.waiting import WaitingSpecs

if TYPE_CHECKING:
    from engine.inventories import GroupMember

# Brings the picture up to date with placement: by the changes that placement publishes, and by reading what changed since
# the picture's cursor, or everything if placement's log does not reach back that far.
#
# How up to date the picture is, two values say: a position in the feed and a cursor of placement's database, up to which the
# picture has every change. Messages of the feed advance both, as long as they follow each other without a gap. A reading of
# the database sets both to the moment when it began. Messages that arrive while a reading is under way form a separate run.
# When the reading has reached the beginning of that run, nothing is missing between them, and the end of the run counts.
#
# The answer has every write that was committed before it was given, by whichever placement worker: it is read from
# placement's database, not from published messages. All callers that wait when a reading begins share that reading.
#
# A change that was lost silently, in the log or in the picture, would be missed for ever, and a false one would count
# for ever. So now and then the revisions of all providers are compared, and if one differs, everything is read. What is
# read then replaces whatever contradicts it.


log = logging.getLogger(__name__)

Page = TypeVar("Page", SnapshotPage, MembersPage, RevisionsPage)

# Placement notes how far it has published after the broker has confirmed it. So the feed may be ahead of that note, but not
# by more messages than this.
UNMARKED_MAX = 1000


class Progress:
    def __init__(self) -> None:
        # Empty: the database was not read yet.
        self.cursor = ""
        self._known: LogPosition | None = None
        self._first: LogPosition | None = None
        # The last message of the feed that was heard.
        self.last: LogPosition | None = None
        # The last cursor of the run, and its position.
        self._told: tuple[LogPosition, str] | None = None

    def heard(self, at: LogPosition, cursor: str) -> bool:
        """The picture has this message of the feed. Returns whether a message before it was missed."""
        last = self.last
        if last is None or last.term != at.term or at.position > last.position + 1:
            self._first, self.last, self._told = at, at, None
        elif at.position <= last.position:
            # A repeated message.
            return False
        self.last = at
        if cursor:
            self._told = at, cursor
        return not self._join() and self._known is not None

    def read(self, published: LogPosition, cursor: str, heard: LogPosition | None = None) -> None:
        """The database was read as of this cursor; that includes every change published up to there. `heard` is the last
        message that was heard before it was asked. If placement is far from there, the message was false, and so is
        the run that it belongs to.
        """
        self._known, self.cursor = published, cursor
        if (
            heard is not None
            and heard.term == published.term
            and heard.position > published.position + UNMARKED_MAX
        ):
            self._first = self.last = self._told = None
        self._join()

    def _join(self) -> bool:
        """Continue at the end of the run, if it begins at or before the known position."""
        known, first, last = self._known, self._first, self.last
        if known is None or first is None or last is None:
            return False
        if first.term != known.term or first.position > known.position + 1:
            return False
        if self._told is not None and self._told[0] > known:
            self.cursor = self._told[1]
        self._known = max(known, last)
        return True


class CatchingUp:
    """Brings the picture up to date with placement. `whole` is set when the first snapshot is in the picture."""

    def __init__(
        self,
        station: Station,
        picture: Picture,
        *,
        page: int,
        chance: random.Random | None = None,
    ) -> None:
        self._station = station
        self._picture = picture
        self._progress = Progress()
        self._page_size = page
        # A change is missing, and it is not known since when.
        self._is_doubted = False
        self.readings_of_all = 0
        self.whole = asyncio.Event()
        self.flight = SingleFlight("read placement's books", self._read, is_needed=True, chance=chance)

    async def catch_up(self) -> None:
        """Read changes from placement. On return, the picture has every write that was committed before the call."""
        await self.flight.done()

    def merge(self, changed: ProvidersChanged) -> None:
        """Put changes that placement has published into the picture. If some before them were missed, they are read."""
        # Most messages have only usage: those of boots and deletes.
        if changed.providers:
            self._picture.apply(changed.providers)
        if changed.gone:
            self._picture.prune(each.internal for each in changed.gone)
        has_all = self._picture.use(changed.usage)
        # Members first: a choice that is dropped must be known as a member by then.
        if changed.joined or changed.left:
            self._picture.groups.join(changed.joined)
            self._picture.groups.leave(changed.left)
        self._picture.drop((each.consumer, each.attempt) for each in (*changed.claimed, *changed.ended))
        if self._progress.heard(changed.at, changed.cursor):
            log.info("the feed jumped to %s: asking what was missed", changed.at)
            self.flight.soon()
        elif not has_all and self.whole.is_set():
            log.error("the feed has usage of providers whose states it never sent: reading all pages again")
            self.doubt()

    def doubt(self) -> None:
        """Have everything read from placement again, since some change is missing and nobody knows since when."""
        self._is_doubted = True
        self.flight.soon()

    async def verify(self) -> bool:
        """Compare the revisions of all providers in the picture with placement's. Returns whether no change was lost, and
        none was false; otherwise everything is read again first.
        """
        before, gone = self._picture.trees.known_now().revisions, self._picture.trees.gone()
        listed = await self._revisions()
        # A deleted provider never comes back: so these were never deleted, and an answer or event was false.
        self._picture.trees.undelete(gone & listed.keys())
        # Changes that were only late are in the picture then. A provider that is still behind has lost one.
        await self.catch_up()
        if differing := await self._read_members():
            log.info("%d members of server groups were news", differing)
        lost = self._picture.trees.behind(listed, before)
        false = [internal for internal, known in before.items() if listed.get(internal, known) < known]
        if lost or false:
            log.error("%d providers differ from placement's, reading all pages again", len({*lost, *false}))
            self._is_doubted = True
            await self.catch_up()
        return not (lost or false)

    async def _read(self) -> None:
        granted_before = self._picture.granted_so_far()
        since, was_doubted = self._progress.cursor, self._is_doubted
        heard = self._progress.last
        first = await self._read_changes(since) if since and not was_doubted else None
        if first is None:
            first = await self._read_all()
        if was_doubted:
            self._is_doubted = False
        self._progress.read(first.published, first.cursor, heard)
        self._picture.drop(granted_before)
        self.whole.set()

    async def _read_changes(self, since: str) -> SnapshotPage | None:
        """Read what has changed since this cursor of placement's log, and put it into the picture.

        Returns the first page, which is the oldest; None if the log does not reach back to the cursor.
        """
        first: SnapshotPage | None = None
        before = self._picture.trees.deleted_now()
        async with aclosing(self._snapshot(since)) as pages:
            async for page in pages:
                if page.since != since:
                    log.debug("placement does not tell changes since so long ago: all is read again")
                    return None
                first = first or page
                self._picture.apply_read(page.providers, before)
                self._picture.prune(each.internal for each in page.gone)
                self._picture.groups.join(page.joined)
                self._picture.groups.leave(page.left)
        return first

    async def _read_all(self) -> SnapshotPage:
        self.readings_of_all += 1
        before = self._picture.trees.known_now()
        there: set[int] = set()
        first: SnapshotPage | None = None
        async for page in self._snapshot(""):
            first = first or page
            self._picture.apply_read(page.providers, before)
            there.update(provider.internal for provider in page.providers)
        self._picture.end_reading_of_all(there, before)
        await self._read_members()
        assert first is not None, "there is a first page"
        return first

    async def _read_members(self) -> int:
        """Read all members of server groups from placement. Returns how many of them were missing or different in the
        picture.
        """
        known, left = self._picture.groups.attempts(), self._picture.groups.left()
        members: list[GroupMember] = []
        async for page in self._pages(MembersPage, lambda after: AskMembers(after=after)):
            members += page.members
        return self._picture.groups.replace(members, known, left)

    async def _revisions(self) -> dict[int, int]:
        listed: dict[int, int] = {}
        async for page in self._pages(RevisionsPage, lambda after: AskRevisions(after=after)):
            listed.update(zip(page.internals, page.revisions, strict=True))
        return listed

    def _snapshot(self, since: str) -> AsyncGenerator[SnapshotPage, None]:
        return self._pages(
            SnapshotPage, lambda after: AskSnapshot(after=after, limit=self._page_size, since=since)
        )

    async def _pages(
        self, kind: type[Page], question: Callable[[int], Message]
    ) -> AsyncGenerator[Page, None]:
        """Ask for one page after the other. `question` makes the message that asks for the page after a given number."""
        after: int | None = 0
        while after is not None:
            page = await self._station.ask(question(after))
            if not isinstance(page, kind):
                raise WrongAnswer(f"placement answered for a {kind.__name__} by {page!r}")
            yield page
            after = page.next


# What schedulers hear of cells, from their own brokers or the API level's.
_OF_CELLS = ("host.*.*", "conductor.beat.*", "console.told.*", "worker.beat.*")
HEARD_OF_CELLS = (Grant(EVENTS, _OF_CELLS),)
HEARD = (Grant(EVENTS, ("providers.changed", "aggregate.changed", *_OF_CELLS, "instance.waiting.*")),)


class Replica(PartGroup):
    """A part that keeps the picture up to date. `whole` is set when the first snapshot is in the picture."""

    def __init__(
        self,
        station: Station,
        picture: Picture,
        hear: Callable[[Sequence[Received[Message]]], None],
        *,
        waiting: WaitingSpecs,
        page: int,
        verify_every_s: float = 60.0,
        chance: random.Random | None = None,
    ) -> None:
        """`hear` is called with the messages that are not about the picture."""
        self._picture = picture
        self._hear = hear
        self._waiting = waiting
        self.catching_up = CatchingUp(station, picture, page=page, chance=chance)
        self.whole = self.catching_up.whole
        super().__init__(
            FeedListener("hear the feed", station, HEARD, self._take, is_needed=True),
            Periodic(
                "compare all revisions",
                self._verify,
                verify_every_s,
                rests_first=True,
                is_cut_short=True,
                chance=chance,
            ),
            self.catching_up.flight,
        )

    async def catch_up(self) -> None:
        await self.catching_up.catch_up()

    def moved(self, moved: ShapeMoved) -> bool:
        """Merge the provider trees that come with a refused claim, because their shapes had moved.

        Returns whether the refusal has all of these trees; otherwise the picture must catch up.
        """
        self._picture.apply(moved.trees)
        self._picture.forget(moved.gone)
        return {provider.root for provider in moved.trees} >= set(moved.roots)

    # The feed

    def _take(self, batch: Sequence[Received[Message]]) -> None:
        if not batch:
            # A new queue: the feed does not have what was published before it stood.
            self.catching_up.flight.soon()
            self._waiting.doubt()
        for each in batch:
            if isinstance(each.message, ProvidersChanged):
                self.catching_up.merge(each.message)
            elif isinstance(each.message, AggregateChanged):
                self._hear_aggregate(each.message)
            elif isinstance(each.message, InstanceWaiting):
                if each.message.instance.waiting is not None:
                    self._waiting.heard(each.message.instance.id)
            else:
                self._hear((each,))

    def _hear_aggregate(self, changed: AggregateChanged) -> None:
        if changed.deleted:
            self._picture.remove_aggregate(changed.aggregate)
        else:
            self._picture.put_aggregates((changed.aggregate,))

    async def _verify(self) -> None:
        if self.whole.is_set():
            await self.catching_up.verify()
