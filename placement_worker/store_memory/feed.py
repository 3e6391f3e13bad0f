"""The change log of books that are kept in memory, as who publishes it reads it."""

import asyncio

from bus.messages.placement import LogPosition
from placement_worker.store import FEED_ENTRIES, Unpublished
from placement_worker.store_memory.books import Books


class MemoryFeed:
    def __init__(self, books: Books, lock: asyncio.Lock, term: int) -> None:
        self._books = books
        self._lock = lock
        self._term = term

    @property
    def published(self) -> LogPosition:
        return self._books.published

    async def read(self, entries_max: int = FEED_ENTRIES) -> Unpublished:
        async with self._lock:
            return logged_since(self._books, self._books.marked, entries_max)

    async def mark(self, position: int, cursor: str) -> None:
        async with self._lock:
            self._books.marked = int(cursor)
            self._books.published = LogPosition(term=self._term, position=position)


def logged_since(books: Books, number: int, entries_max: int | None = None) -> Unpublished:
    entries = books.logged_after(number)[:entries_max]
    is_cut = len(entries) == entries_max
    touched = dict.fromkeys(provider for entry in entries for provider in entry.touched)
    return Unpublished(
        cursor=str(entries[-1].number if is_cut else books.logged),
        is_cut=is_cut,
        providers=books.states_of(touched),
        usage=books.usage_of(one for entry in entries for one in entry.used if one not in touched),
        gone=tuple(gone for entry in entries for gone in entry.gone),
        claimed=tuple(holder for entry in entries for holder in entry.claimed),
        ended=tuple(holder for entry in entries for holder in entry.ended),
    )
