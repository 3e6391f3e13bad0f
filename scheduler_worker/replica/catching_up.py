"""Reads from placement what changed since the picture's cursor, or everything if placement's log does not reach back
that far.

The answer has every write that was committed before it was given, by whichever placement worker: it is read from
placement's database, not from published messages. All callers that wait when a reading begins share that reading.

A change that was lost silently, in the log or in the picture, would be missed for ever, and a false one would count
for ever. So now and then the revisions of all providers are compared, and if one differs, everything is read. What is
read then replaces whatever contradicts it.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from bus.errors import WrongAnswer
from bus.message import Message
from bus.messages.placement import (
    AskMembers,
    AskRevisions,
    AskSnapshot,
    GroupMember,
    MembersPage,
    RevisionsPage,
    SnapshotPage,
)
from bus.parts import SingleFlight
from bus.workers.station import Station
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.picture.progress import Progress

log = logging.getLogger(__name__)

Page = TypeVar("Page", SnapshotPage, MembersPage, RevisionsPage)


class CatchingUp:
    """Brings the picture up to date with placement. `whole` is set when the first snapshot is in the picture."""

    def __init__(
        self,
        station: Station,
        picture: Picture,
        progress: Progress,
        *,
        page: int,
        chance: random.Random | None = None,
    ) -> None:
        self._station = station
        self._picture = picture
        self._progress = progress
        self._page_size = page
        # A change is missing, and it is not known since when.
        self._is_doubted = False
        self.readings_of_all = 0
        self.whole = asyncio.Event()
        self.flight = SingleFlight("read placement's books", self._read, is_needed=True, chance=chance)

    async def catch_up(self) -> None:
        """Read changes from placement. On return, the picture has every write that was committed before the call."""
        await self.flight.done()

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
        heard = self._progress.heard_up_to
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
