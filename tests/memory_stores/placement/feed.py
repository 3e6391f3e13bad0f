"""The change log of a store in memory, as its publisher reads it."""

import asyncio

from bus.messages.placement import LogPosition
from placement_worker.store import FEED_ENTRIES, Unpublished
from tests.memory_stores.placement.memory_tables import MemoryTables


class MemoryFeed:
    def __init__(self, tables: MemoryTables, lock: asyncio.Lock, term: int) -> None:
        self._tables = tables
        self._lock = lock
        self._term = term

    @property
    def published(self) -> LogPosition:
        return self._tables.published

    async def read(self, entries_max: int = FEED_ENTRIES) -> Unpublished:
        async with self._lock:
            return logged_since(self._tables, self._tables.marked, entries_max)

    async def mark(self, position: int, cursor: str) -> None:
        async with self._lock:
            self._tables.marked = int(cursor)
            self._tables.published = LogPosition(term=self._term, position=position)


def logged_since(tables: MemoryTables, number: int, entries_max: int | None = None) -> Unpublished:
    entries = tables.logged_after(number)[:entries_max]
    is_cut = len(entries) == entries_max
    touched = dict.fromkeys(provider for entry in entries for provider in entry.touched)
    return Unpublished(
        cursor=str(entries[-1].number if is_cut else tables.logged),
        is_cut=is_cut,
        providers=tables.states_of(touched),
        usage=tables.usage_of(one for entry in entries for one in entry.used if one not in touched),
        gone=tuple(gone for entry in entries for gone in entry.gone),
        claimed=tuple(holder for entry in entries for holder in entry.claimed),
        ended=tuple(holder for entry in entries for holder in entry.ended),
        joined=tuple(member for entry in entries for member in entry.joined),
        left=tuple(holder for entry in entries for holder in entry.left),
    )
