"""What Nova holds, as the audit sees it: it is counted, and Nova is asked which of it is needed.

Only Nova can say that. A consumer that Nova does not know is freed after two looks that are far apart (moor/books/rules.py).
If Nova does not answer, or one of its cells is silent, the look counts for nothing.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import Struct

from bus.messages.audit import BookEntry
from engine.inventories import ConsumerId
from kit.errors import Operational
from moor.asking import batches_of
from moor.books.books_reader import BooksReader
from moor.books.rules import FirstLook, HoldersAsked, faults_unknown, first_looks, seen_of
from moor.books.views import Fault, InstanceView, Places, is_held_by_nova

# One question to placement names as many.
AGAIN_AT_ONCE_MAX = 200


class AsksNova(Protocol):
    @property
    def name(self) -> str: ...

    async def unknown(self, consumers: Collection[ConsumerId]) -> HoldersAsked:
        """Those of these that Nova knows as no instance and as no migration. Raises `Operational` if Nova does not answer."""


class KeepsLooks(Protocol):
    """Remembers first looks from one audit to the next."""

    def load(self) -> Mapping[ConsumerId, FirstLook]: ...

    def save(self, looks: Mapping[ConsumerId, FirstLook]) -> None: ...


class NovaToAsk(Struct, frozen=True):
    """How the audit asks Nova. `wait` is the least time between the two looks."""

    asks: AsksNova
    looks: KeepsLooks
    wait: timedelta


class HeldByNova(Struct, frozen=True, kw_only=True):
    """What Nova holds: how many consumers, and how much of each class. `is_asked` says whether there is a Nova to ask.

    `problem` says why it could not be asked which of them it needs: then nothing is unknown.
    """

    consumers: int
    amounts: Mapping[str, int]
    unknown: int = 0
    is_asked: bool = False
    problem: str = ""


class NovaBooks:
    """Nova's consumers in one audit. Without `nova` they are only counted, and nothing is kept of them."""

    def __init__(self, reader: BooksReader, clock: Callable[[], datetime], nova: NovaToAsk | None) -> None:
        self._reader = reader
        self._clock = clock
        self._nova = nova
        self._consumers = 0
        self._amounts: Counter[str] = Counter()
        self._entries: dict[ConsumerId, BookEntry] = {}
        self._unknown: dict[ConsumerId, BookEntry] = {}
        self._problem = ""
        # Consumers that Nova does not know since just now.
        self.in_flight = 0

    def note(self, view: InstanceView) -> None:
        if view.consumer is None or not is_held_by_nova(view):
            return
        self._consumers += 1
        for each in view.consumer.held:
            self._amounts[each.resource] += each.amount
        if self._nova is not None:
            self._entries[view.id] = view.consumer

    @property
    def held(self) -> HeldByNova | None:
        """None if Nova holds nothing, and there is none to ask."""
        if not self._consumers and self._nova is None:
            return None
        return HeldByNova(
            consumers=self._consumers,
            amounts=dict(sorted(self._amounts.items())),
            unknown=len(self._unknown),
            is_asked=self._nova is not None,
            problem=self._problem,
        )

    async def faults(self, places: Places, settle: timedelta) -> list[Fault]:
        """Ask Nova, and return the faults of what it does not know. None, and a problem, if it does not answer.

        What it has not known for less than `settle` is in flight: Nova deletes an instance before it frees what that held.
        """
        if self._nova is None:
            return []
        began = self._clock()
        asked = HoldersAsked()
        if self._entries:
            try:
                asked = await self._nova.asks.unknown(self._entries)
            except Operational as problem:
                asked = HoldersAsked(problem=str(problem))
        if asked.problem:
            self._problem = asked.problem
            return []
        # What was deleted since placement was read holds nothing any more.
        self._unknown = await self._unchanged(sorted(asked.unknown & self._entries.keys()))
        now = self._clock()
        looks = first_looks(self._unknown.values(), self._nova.looks.load(), now)
        self._nova.looks.save(looks)
        settled = [each for each in self._unknown.values() if now - looks[each.id].at >= settle]
        self.in_flight = len(self._unknown) - len(settled)
        return faults_unknown(settled, looks, began=began, wait=self._nova.wait, places=places)

    async def left(self, faults: Sequence[Fault]) -> list[Fault]:
        """Those of these faults whose consumer still holds the same."""
        still = await self._unchanged([each.about for each in faults if each.about is not None])
        return [each for each in faults if each.about in still]

    async def _unchanged(self, ids: Sequence[ConsumerId]) -> dict[ConsumerId, BookEntry]:
        found: dict[ConsumerId, BookEntry] = {}
        for some in batches_of(ids, AGAIN_AT_ONCE_MAX):
            views, _ = await self._reader.views_of(some, ())
            found |= {
                id_: view.consumer
                for id_, view in views.items()
                if view.consumer is not None and is_held_by_nova(view) and self._is_as_before(view.consumer)
            }
        return found

    def _is_as_before(self, consumer: BookEntry) -> bool:
        before = self._entries[consumer.id]
        return (seen_of(before), before.held) == (seen_of(consumer), consumer.held)
