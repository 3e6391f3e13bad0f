"""Each scheduler's picture has every change of placement soon after the faults, also if no later change tells it that it has
missed one.
"""

import asyncio
from collections.abc import Mapping

from bus.settings import BusSettings
from engine.picture.picture import Picture
from placement_worker.settings import FeedPace
from tests.simulation.findings import Findings
from tests.simulation.stored_books import InspectableStore

FEED = "feed"
HEARD = "each reader of the feed has the newest state"
# Of the network, and of the pages that are read one after the other.
SLOW_S = 3.0


def heard_within_s(bus: BusSettings, feed: FeedPace) -> float:
    """How long a scheduler may lack a change when nothing fails any more.

    It connects again. A question of before got no answer, and is asked again. And the placement worker that publishes is
    gone: another one notices that, and looks for changes.
    """
    reader_ms = bus.CONNECT_DELAY_MS_MAX + bus.answer_timeout_ms + bus.ask_again_ms
    return reader_ms / 1000 + feed.lead_again_s + feed.poll_s + SLOW_S


class FeedsChecker:
    def __init__(self, findings: Findings, books: InspectableStore, pictures: Mapping[str, Picture]) -> None:
        """`pictures` has the picture of each scheduler by its name."""
        self._findings = findings
        self._books = books
        self._pictures = pictures

    async def watch(self, within_s: float) -> None:
        """Compare again and again, beginning now, when nothing fails any more: what is in the books is in each picture
        `within_s` later.
        """
        while True:
            revisions = await self._revisions()
            known = {name: picture.trees.internals() for name, picture in self._pictures.items()}
            await asyncio.sleep(within_s)
            now = await self._revisions()
            for name, picture in self._pictures.items():
                # A provider that is deleted meanwhile may be forgotten in any way.
                behind = [
                    internal
                    for internal in picture.trees.behind(revisions, known.get(name, ()))
                    if internal in now or internal not in revisions
                ]
                if behind:
                    self._findings.breaks(
                        HEARD, f"{name} lacks changes of before {within_s:.0f} s, of the providers {behind}"
                    )
                self._findings.count(FEED, "compared")

    async def _revisions(self) -> dict[int, int]:
        async with self._books.committed() as rows:
            return {entry.internal: entry.revision for entry in rows.providers.values()}
