"""Cursors into the change log, as their readers hold them: PostgreSQL's are snapshots, SQLite's are positions."""

import re
from typing import Self

from msgspec import Struct

# As PostgreSQL writes a snapshot: what it sees all before, what it sees nothing from, and what it misses in between.
_SNAPSHOT = re.compile(r"(\d{1,18}):(\d{1,18}):((?:\d{1,18},)*\d{1,18})?", re.ASCII)
_POSITION = re.compile(r"\d{1,18}", re.ASCII)

# PostgreSQL's transactions are numbered from 3 on.
NOTHING_SEEN = "1:1:"


class Snapshot(Struct, frozen=True):
    """Sees what was written by the transactions before `end`, but for those `missed`, which were still open."""

    end: int
    missed: tuple[int, ...] = ()

    @classmethod
    def of(cls, cursor: str) -> Self | None:
        """None if it is no snapshot."""
        match = _SNAPSHOT.fullmatch(cursor)
        if match is None:
            return None
        first, end = int(match[1]), int(match[2])
        missed = tuple([int(number) for number in (match[3] or "").split(",") if number])
        in_order = [first, *missed, end]
        return cls(end, missed) if first > 0 and in_order == sorted(in_order) else None

    def before(self, end: int) -> "Snapshot":
        """No more of it than that."""
        return Snapshot(min(end, self.end), tuple([number for number in self.missed if number < end]))

    def sees_all_of(self, other: "Snapshot") -> bool:
        return other.end <= self.end and not set(self.before(other.end).missed).difference(other.missed)

    def __str__(self) -> str:
        first = self.missed[0] if self.missed else self.end
        return f"{first}:{self.end}:{','.join(map(str, self.missed))}"


def has_seen(cursor: str, forgotten: str) -> bool:
    """Has whoever holds this snapshot seen all of what was forgotten, as feed.forgotten has it?"""
    seen, gone = Snapshot.of(cursor), Snapshot.of(forgotten or NOTHING_SEEN)
    return seen is not None and gone is not None and seen.sees_all_of(gone)


def is_position(cursor: str) -> bool:
    """Can this be a cursor of SQLite's?"""
    return _POSITION.fullmatch(cursor) is not None
