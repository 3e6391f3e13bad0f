"""Planted bugs in a scheduler's picture, and in what it chooses."""

from collections import defaultdict
from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from bus.workers.handling import OutboxKey
from engine.picture.picture import Picture
from scheduler_worker.outbox import Outbox, OutboxTransaction
from scheduler_worker.replica import CatchingUp, Progress, Replica
from scheduler_worker.requests import cell_events
from tests.planted.replacing import replaced


def gap_in_the_feed_ignored() -> AbstractContextManager[None]:
    """A gap in the feed's positions is ignored."""

    def planted(real: Any) -> Any:
        def heard(self: Any, at: Any, cursor: str) -> bool:
            real(self, at, cursor)
            return False

        return heard

    return replaced(Progress, "heard", planted)


def new_feed_queue_not_doubted() -> AbstractContextManager[None]:
    """A scheduler that gets a new feed queue while it runs does not ask what it has missed."""

    def planted(real: Any) -> Any:
        def take(self: Any, batch: Any) -> None:
            if batch or not self.whole.is_set():
                real(self, batch)

        return take

    return replaced(Replica, "_take", planted)


def choices_never_dropped() -> AbstractContextManager[None]:
    """A choice of this scheduler counts for ever, whatever its verdict was."""
    return replaced(Picture, "drop", lambda _real: lambda _self, _keys: None)


def foreign_event_believed() -> AbstractContextManager[None]:
    """A cell's report about an instance of another cell is believed."""

    def planted(real: Any) -> Any:
        return lambda row, word, now: real(row, structs.replace(word, cell=row.told.cell), now)

    return replaced(cell_events, "heard", planted)


def no_notes_written() -> AbstractContextManager[None]:
    """No outbox note is written: after a crash only a repeated request makes the scheduler publish its decision."""

    def planted(_real: Any) -> Any:
        async def note(self: Any, _rows: Any) -> None:
            self._kept = defaultdict(lambda: OutboxKey(0))

        return note

    return replaced(OutboxTransaction, "note", planted)


def notes_confirmed_before_sending() -> AbstractContextManager[None]:
    """A scheduler's timer counts the messages of its rows as sent before it sends them."""

    def planted(real: Any) -> Any:
        async def publish(self: Any, told: Any, publisher: Any) -> None:
            await self._notes.confirm([tell.kept for tell in told if tell.kept is not None])
            await real(self, told, publisher)

        return publish

    return replaced(Outbox, "publish", planted)


def usage_ignored() -> AbstractContextManager[None]:
    """Changes of usage in the feed are ignored."""

    def planted(real: Any) -> Any:
        return lambda self, changed: real(self, structs.replace(changed, usage=()))

    return replaced(CatchingUp, "merge", planted)


def failed_hosts_chosen_again() -> AbstractContextManager[None]:
    """An instance that has used up its alternates is sent to hosts that have failed to build it."""
    return replaced(cell_events, "_tried", lambda _real: lambda *_, **__: [])
