"""Asks placement, the API level, the cells and their hosts what they have, page by page and side by side.

Each of them answers in the order of ids. So the pages are merged as they come, and no more than a page of each is in
memory, however many instances there are.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol
from uuid import UUID

from bus.message import Message
from bus.messages.audit import (
    NAMED_MAX,
    AskBooks,
    AskCellBooks,
    AskHostBooks,
    BookEntry,
    BooksFound,
    CellBooksFound,
    CellEntry,
    HostBooksFound,
)
from bus.messages.build import AskInstances, InstanceDetails, InstancesFound, InstanceState
from bus.workers.connections import NoAnswer
from engine.inventories import ConsumerId, ProviderId
from kit.parts import batches_of
from moor.client.books.views import InstanceView, OnHost
from moor.client.bus_client import Asks, answer_of, items_of

# A younger claim may still get its row: by then a scheduler that died before it wrote the row is replaced, and the request
# that it had taken is delivered again.
NEW_S = 900
INSTANCES_PAGE = 200
# Before all others.
FIRST_ID = ConsumerId(UUID(int=0))

# The id of the instance or consumer, and what one of them has about it.
Entry = tuple[ConsumerId, InstanceState | InstanceDetails | CellEntry | BookEntry | OnHost]


class Speaks(Asks, Protocol):
    """A client on one broker that asks questions and sends orders."""

    async def send(self, message: Message) -> None:
        """Publish an order that has no answer. Returns when the broker has it."""


# The entries of a page, and the id after which the next one begins.
_Page = tuple[Sequence[Entry], ConsumerId | None]


class _Pages:
    """Reads the entries of one source, such as placement or a cell, page by page. All ids up to `read_to` are read."""

    def __init__(self, fetch: Callable[[ConsumerId | None], Awaitable[_Page]]) -> None:
        self._fetch = fetch
        self._after: ConsumerId | None = None
        self._entries: list[Entry] = []
        self.read_to = FIRST_ID
        self.is_over = False

    async def read_on(self) -> None:
        entries, self._after = await self._fetch(self._after)
        self._entries += entries
        if self._after is None:
            self.is_over = True
        else:
            self.read_to = self._after

    def take(self, up_to: ConsumerId | None) -> list[Entry]:
        """Remove and return the entries up to this id, or all of them."""
        count = sum(up_to is None or id_ <= up_to for id_, _ in self._entries)
        taken, self._entries = self._entries[:count], self._entries[count:]
        return taken


class BooksReader:
    """Asks placement, the API level, the cells and their hosts, and puts their entries together, by instance.

    `cells` are the cells whose conductor has always answered so far, `computes` those whose compute process has.
    """

    def __init__(
        self, api: Speaks, cells: Mapping[str, Speaks], computes: Collection[str], new_s: int = NEW_S
    ) -> None:
        """`cells` has the client for each cell: that of the API level, unless the cell has a broker of its own. `computes`
        are the cells that have hypervisors. Claims of the last `new_s` seconds are marked as new.
        """
        self.api = api
        self._new_s = new_s
        self.in_cell = cells
        self.cells = {*cells}
        self.computes = {*computes} & {*cells}
        self._with_computes = frozenset(self.computes)

    def unanswered(self) -> list[str]:
        """The cells and hosts that have not answered, in words."""
        return [
            *[f"the conductor of cell {cell}" for cell in sorted(self.in_cell.keys() - self.cells)],
            *[f"the compute of cell {cell}" for cell in sorted(self._with_computes - self.computes)],
        ]

    async def views(self) -> AsyncIterator[list[InstanceView]]:
        """All instances and consumers, some at a time, in the order of their ids."""
        pages = [
            _Pages(self._consumers),
            _Pages(self._instances),
            *[_Pages(partial(self._rows_of, cell)) for cell in sorted(self.in_cell)],
            *[_Pages(partial(self._attempts_in, cell)) for cell in sorted(self.computes)],
        ]
        while open_pages := [each for each in pages if not each.is_over]:
            behind = min(each.read_to for each in open_pages)
            await asyncio.gather(*[each.read_on() for each in open_pages if each.read_to == behind])
            up_to = min((each.read_to for each in pages if not each.is_over), default=None)
            yield _views_of([entry for each in pages for entry in each.take(up_to)])

    async def views_of(
        self, ids: Sequence[ConsumerId], hosts: Collection[ProviderId]
    ) -> tuple[dict[ConsumerId, InstanceView], frozenset[ProviderId]]:
        """Ask again about these instances and consumers, and about what they have on `hosts`.

        Return the views by id, and the hosts that could be asked each time. One question names a part of the ids.
        """
        views: dict[ConsumerId, InstanceView] = {}
        asked = frozenset(hosts)
        for some in batches_of(ids, NAMED_MAX):
            found, there = await self._some_views_of(some, hosts)
            views |= found
            asked &= there
        return views, asked

    async def _some_views_of(
        self, ids: Sequence[ConsumerId], hosts: Collection[ProviderId]
    ) -> tuple[dict[ConsumerId, InstanceView], set[ProviderId]]:
        """Placement is read first, since a claim is made before its row, and ends after it."""
        books = AskBooks(consumers=tuple(ids), new_s=self._new_s)
        rows = AskInstances(instances=tuple(ids), limit=INSTANCES_PAGE)
        asked: set[ProviderId] = set()
        entries = await items_of(self.api, books, BooksFound, _of_books)
        entries += await items_of(self.api, rows, InstancesFound, _of_rows)
        for cell in sorted(self.cells):
            rows_of_cell, _ = await self._cell_rows(AskCellBooks(cell=cell, instances=tuple(ids), limit=1000))
            entries += rows_of_cell
        for cell in sorted(self.computes):
            found = await self._host_books(
                AskHostBooks(cell=cell, instances=tuple(ids), hosts=tuple(hosts), limit=1000)
            )
            entries += _on_hosts(cell, found)
            asked |= {*found.asked}
        return {view.id: view for view in _views_of(entries)}, asked

    async def _consumers(self, after: ConsumerId | None) -> _Page:
        found = await answer_of(self.api, AskBooks(after=after), BooksFound)
        return _of_books(found), found.next

    async def _instances(self, after: ConsumerId | None) -> _Page:
        found = await answer_of(self.api, AskInstances(after=after, limit=INSTANCES_PAGE), InstancesFound)
        return _of_rows(found), found.next

    async def _rows_of(self, cell: str, after: ConsumerId | None) -> _Page:
        return await self._cell_rows(AskCellBooks(cell=cell, after=after))

    async def _cell_rows(self, question: AskCellBooks) -> _Page:
        """A page of a cell's instances. A cell that does not answer has none, and is not judged."""
        try:
            found = await answer_of(self.in_cell[question.cell], question, CellBooksFound)
        except NoAnswer:
            self.cells.discard(question.cell)
            return (), None
        return [(each.instance.id, each) for each in found.entries], found.next

    async def _attempts_in(self, cell: str, after: ConsumerId | None) -> _Page:
        found = await self._host_books(AskHostBooks(cell=cell, after=after))
        return _on_hosts(cell, found), found.next

    async def _host_books(self, question: AskHostBooks) -> HostBooksFound:
        try:
            return await answer_of(self.in_cell[question.cell], question, HostBooksFound)
        except NoAnswer:
            self.computes.discard(question.cell)
            return HostBooksFound(entries=())


def _of_books(found: BooksFound) -> list[Entry]:
    return [(each.id, each) for each in found.consumers]


def _of_rows(found: InstancesFound) -> list[Entry]:
    details = {each.id: each for each in found.details}
    entries: list[Entry] = []
    for each in found.instances:
        entries.append((each.id, each))
        if each.id in details:
            entries.append((each.id, details[each.id]))
    return entries


def _on_hosts(cell: str, found: HostBooksFound) -> list[Entry]:
    broken = {(each.instance, each.host, each.attempt): each.why for each in found.broken}
    return [
        (each.instance, OnHost(cell, each, broken.get((each.instance, each.host, each.attempt), "")))
        for each in found.entries
    ]


def _views_of(entries: Iterable[Entry]) -> list[InstanceView]:
    by_id: dict[ConsumerId, list[Entry]] = {}
    for entry in entries:
        by_id.setdefault(entry[0], []).append(entry)
    return [_view(by_id[id_]) for id_ in sorted(by_id)]


def _view(entries: Sequence[Entry]) -> InstanceView:
    parts = [part for _, part in entries]
    return InstanceView(
        id=entries[0][0],
        at_api=next((each for each in parts if isinstance(each, InstanceState)), None),
        in_cells=tuple([each for each in parts if isinstance(each, CellEntry)]),
        consumer=next((each for each in parts if isinstance(each, BookEntry)), None),
        on_hosts=tuple([each for each in parts if isinstance(each, OnHost)]),
        details=next((each for each in parts if isinstance(each, InstanceDetails)), None),
    )
