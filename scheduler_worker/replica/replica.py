"""The replica of placement's data: subscribe to the feed, then read a snapshot, and merge both by revision.

Each message of the feed has a position, and a term, which changes when another placement process begins to publish.
After a jump in the positions, or with another term, messages may be missing. Then placement is asked for the changes
(catching_up.py); a scheduler does the same before it refuses a request for lack of a host.
"""

import random
from collections.abc import Callable, Sequence

from bus.message import Message
from bus.messages.aggregates import AggregateChanged
from bus.messages.build import InstanceWaiting
from bus.messages.placement import ProvidersChanged, ShapeMoved
from bus.parts import PartGroup, Periodic
from bus.topology import EVENTS, Grant
from bus.workers.handling import Received
from bus.workers.station import FeedListener, Station
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.replica.catching_up import CatchingUp
from scheduler_worker.waiting import WaitingSpecs

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
