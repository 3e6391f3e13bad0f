"""Cursors into the change log, as readers keep them: on PostgreSQL a snapshot, on SQLite a position."""

import re
from typing import Self

from msgspec import Struct

# PostgreSQL's text of a snapshot: xmin (it sees all before), xmax (it sees nothing from here), and what was open in between.
_SNAPSHOT = re.compile(r"(\d{1,18}):(\d{1,18}):((?:\d{1,18},)*\d{1,18})?", re.ASCII)
_POSITION = re.compile(r"\d{1,18}", re.ASCII)

# PostgreSQL numbers its transactions from 3 on.
NOTHING_SEEN = "1:1:"


class Snapshot(Struct, frozen=True):
    """A snapshot of PostgreSQL. It covers all transactions before `end`, except for those in `missed`, which were still
    open.
    """

    end: int
    missed: tuple[int, ...] = ()

    @classmethod
    def of(cls, cursor: str) -> Self | None:
        """Parse a cursor as PostgreSQL writes a snapshot; None if the text is no snapshot."""
        match = _SNAPSHOT.fullmatch(cursor)
        if match is None:
            return None
        first, end = int(match[1]), int(match[2])
        missed = tuple([int(number) for number in (match[3] or "").split(",") if number])
        in_order = [first, *missed, end]
        return cls(end, missed) if first > 0 and in_order == sorted(in_order) else None

    def before(self, end: int) -> "Snapshot":
        """This snapshot, limited to the transactions with numbers below `end`."""
        return Snapshot(min(end, self.end), tuple([number for number in self.missed if number < end]))

    def sees_all_of(self, other: "Snapshot") -> bool:
        return other.end <= self.end and not set(self.before(other.end).missed).difference(other.missed)

    def __str__(self) -> str:
        first = self.missed[0] if self.missed else self.end
        return f"{first}:{self.end}:{','.join(map(str, self.missed))}"


def has_seen(cursor: str, forgotten: str) -> bool:
    """Has the reader with this cursor seen all log rows that were pruned?

    `forgotten` is the snapshot, as text, that covers the transactions that wrote those rows. It is empty if nothing was
    pruned yet.
    """
    seen, gone = Snapshot.of(cursor), Snapshot.of(forgotten or NOTHING_SEEN)
    return seen is not None and gone is not None and seen.sees_all_of(gone)


def is_position(cursor: str) -> bool:
    """Does this text have the form of a cursor on SQLite (a position in the change log)?"""
    return _POSITION.fullmatch(cursor) is not None
