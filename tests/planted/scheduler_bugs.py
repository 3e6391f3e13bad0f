"""Planted bugs in a scheduler's picture, and in what it chooses."""

from collections import defaultdict
from typing import Any

from msgspec import structs

from bus.workers.handling import OutboxKey
from engine.picture.picture import Picture
from scheduler_worker.outbox import Outbox, OutboxTransaction
from scheduler_worker.replica import CatchingUp, Progress, Replica
from scheduler_worker.requests import cell_events
from tests.planted.replacing import ANY_CLOUD, planted, planted_by


# A gap in the feed's positions is ignored.
@planted("a gap in the feed ignored", Progress, "heard", world=ANY_CLOUD)
def gap_in_the_feed_ignored(real: Any, self: Any, at: Any, cursor: str) -> bool:
    real(self, at, cursor)
    return False


# A scheduler that gets a new feed queue while it runs does not ask what it has missed.
@planted("a new feed queue raises no doubt", Replica, "_take", world="feeds")
def new_feed_queue_not_doubted(real: Any, self: Any, batch: Any) -> None:
    if batch or not self.whole.is_set():
        real(self, batch)


# A choice of this scheduler counts for ever, whatever its verdict was.
planted_by("choices never dropped", Picture, "drop", world=ANY_CLOUD)(lambda _real: lambda _self, _keys: None)


# A cell's report about an instance of another cell is believed.
@planted_by("an event of another cell believed", cell_events, "heard", world=ANY_CLOUD)
def foreign_event_believed(real: Any) -> Any:
    return lambda row, word, now: real(row, structs.replace(word, cell=row.told.cell), now)


# No outbox note is written: after a crash only a repeated request makes the scheduler publish its decision.
@planted("no outbox notes written", OutboxTransaction, "note", world=ANY_CLOUD)
async def no_notes_written(_real: Any, self: Any, _rows: Any) -> None:
    self._kept = defaultdict(lambda: OutboxKey(0))


# A scheduler's timer counts the messages of its rows as sent before it sends them.
@planted("a timer's notes confirmed before they are sent", Outbox, "publish", world=ANY_CLOUD)
async def notes_confirmed_before_sending(real: Any, self: Any, told: Any, publisher: Any) -> None:
    await self._notes.confirm([tell.kept for tell in told if tell.kept is not None])
    await real(self, told, publisher)


# Changes of usage in the feed are ignored.
@planted_by("changes of usage ignored", CatchingUp, "merge", world=ANY_CLOUD)
def usage_ignored(real: Any) -> Any:
    return lambda self, changed: real(self, structs.replace(changed, usage=()))


# An instance that has used up its alternates is sent to hosts that have failed to build it.
planted_by("hosts that failed chosen again", cell_events, "_tried", world=ANY_CLOUD)(
    lambda _real: lambda *_, **__: []
)
