"""A scheduler's picture, planted."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from bus.handling import Kept
from scheduler_worker import handlers
from scheduler_worker.core.progress import Progress
from scheduler_worker.late import LateTransaction, Names
from scheduler_worker.own_choices import OwnChoices
from scheduler_worker.replica import Replica
from tests.simulation.replacing import replaced


def gap_in_the_feed_ignored() -> AbstractContextManager[None]:
    """A jump in the feed's positions is taken for nothing."""

    def by(real: Any) -> Any:
        def heard(self: Any, at: Any, cursor: str) -> bool:
            real(self, at, cursor)
            return False

        return heard

    return replaced(Progress, "heard", by)


def choices_never_dropped() -> AbstractContextManager[None]:
    """A choice counts for ever, whatever becomes of it."""
    return replaced(OwnChoices, "drop", lambda _real: lambda _self, _keys: None)


def foreign_word_believed() -> AbstractContextManager[None]:
    """A cell that says how an instance of another cell ended is believed."""

    def by(real: Any) -> Any:
        return lambda row, word, now: real(row, structs.replace(word, cell=row.told.cell), now)

    return replaced(handlers, "heard", by)


def nothing_is_noted() -> AbstractContextManager[None]:
    """No note names what a transaction has to say: after a crash only the request that comes again says it."""

    def by(_real: Any) -> Any:
        async def note(_self: Any, _rows: Any) -> Names:
            return Names(Kept("note", 0))

        return note

    return replaced(LateTransaction, "note", by)


def usage_not_merged() -> AbstractContextManager[None]:
    """What the feed tells of what is used is not looked at."""

    def by(real: Any) -> Any:
        return lambda self, changed: real(self, structs.replace(changed, usage=()))

    return replaced(Replica, "_merge", by)
