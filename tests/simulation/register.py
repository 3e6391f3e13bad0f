"""What is written by name, kept a second time by who applies every write in the order of the commits, by simpler means.

Each verdict is judged by what stood here before it: what was done might be done, and what was refused is refused for a
reason that is true. After each commit the books are what was made of them here, row by row; and whatever wrote, trees are
trees, what is used is what is held, and one shape means one set of qualities.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import Done, ProviderWritten, Write, WriteVerdict
from bus.messages.placement import ResourceAmount
from placement_worker.core.ledger import ClaimChanges, Consumer, ProviderBook, TreeChanges
from placement_worker.store_memory import MemoryPlacementStore
from placement_worker.store_memory.books import Books, ProviderEntry
from tests.simulation.applying import apply
from tests.simulation.excuses import is_excused
from tests.simulation.findings import Findings
from tests.simulation.hosts_seen import short
from tests.simulation.pages import Holding, Pages, Plot, holding_of, plot_of

WRITE = "written by name"
# What was asked before in the very same words, and what was judged together with its like.
AGAIN, TOGETHER = "written again", "written together"
Held = tuple[ResourceAmount, ...]
# What one tree offers to claims: of each provider where it stands, its inventories, traits and aggregates.
Qualities = frozenset[object]


class OpenBooks(MemoryPlacementStore):
    """The memory store, with its rows for whoever checks."""

    @property
    def rows(self) -> Books:
        """With what the transaction has written that is open at this moment; between transactions, what is committed."""
        return self._books

    @asynccontextmanager
    async def committed(self) -> AsyncIterator[Books]:
        """The rows while no transaction is open. Nothing in the block may wait."""
        async with self._lock:
            yield self._books


class Register:
    def __init__(self, findings: Findings, books: OpenBooks) -> None:
        self._findings = findings
        self._books = books
        self.pages = Pages()
        self._judged: list[tuple[Write, WriteVerdict]] = []
        self._asked: set[bytes] = set()
        # The rows as they were last compared: what is the same value still needs no second look.
        self._plots: dict[ProviderId, tuple[ProviderEntry, Plot]] = {}
        self._lives: dict[ConsumerId, tuple[Consumer, Held, Holding]] = {}
        # What each shape of a tree meant when it was first seen.
        self._qualities: dict[tuple[ProviderId, int], Qualities] = {}

    # What is told

    def opened(self) -> None:
        """A transaction begins; what was judged in one that came to nothing is nothing."""
        self._judged.clear()

    def judged(self, writes: Sequence[Write], verdicts: Sequence[WriteVerdict]) -> None:
        self._judged += zip(writes, verdicts, strict=True)
        if len(writes) > 1:
            self._findings.see(TOGETHER, type(writes[0]).__name__)

    def written(self, written: Sequence[TreeChanges | ClaimChanges]) -> None:
        """It was committed."""
        for write, verdict in self._judged:
            self._see(write, f"{type(write).__name__} / {type(verdict).__name__}")
            self._follow(write, verdict)
        if self._judged:
            self._compare()
        else:
            self._adopt()
        self._judged.clear()
        for changes in written:
            if isinstance(changes, TreeChanges):
                self._check_trees(changes)

    def differences(self) -> list[str]:
        """Where the books are not what was made of them here."""
        return [*self._of_providers(), *self._of_consumers(), *self._of_names()]

    def _see(self, write: Write, pair: str) -> None:
        self._findings.see(WRITE, pair)
        words = msgspec.json.encode(write)
        if words in self._asked:
            self._findings.see(AGAIN, pair)
        self._asked.add(words)

    def _follow(self, write: Write, verdict: WriteVerdict) -> None:
        if not isinstance(verdict, Done | ProviderWritten):
            self._findings.tell("books", "{} is refused: {}", write, verdict)
            if not is_excused(self.pages, write, verdict):
                self._findings.breaks("every no has its reasons", f"{write!r} was told {verdict!r}")
            return
        self._findings.tell("books", "{} is done", write)
        for promise, how in apply(self.pages, write):
            self._findings.breaks(promise, f"{write!r} was done, and {how}")

    # The books beside these pages

    def _adopt(self) -> None:
        """Reports and claims are checked by others: what they made of the books is taken over."""
        rows, pages = self._books.rows, self.pages
        for provider in self._plots.keys() - rows.providers.keys():
            del pages.plots[provider], self._plots[provider]
        for provider, entry in rows.providers.items():
            known = self._plots.get(provider)
            if known is None or known[0] is not entry:
                plot = pages.plots[provider] = plot_of(entry.book)
                self._plots[provider] = (entry, plot)
        for consumer in self._lives.keys() - rows.held.keys():
            del pages.holdings[consumer], self._lives[consumer]
        for consumer, held in rows.held.items():
            row, life = rows.consumers[consumer], self._lives.get(consumer)
            if life is None or life[0] is not row or life[1] is not held:
                holding = pages.holdings[consumer] = holding_of(row, held)
                self._lives[consumer] = (row, held, holding)
        if len(rows.classes) + len(rows.traits) != len(pages.classes) + len(pages.traits):
            pages.classes, pages.traits = set(rows.classes), set(rows.traits)

    def _compare(self) -> None:
        if wrong := self.differences():
            self._findings.breaks("the books are what was written", "; ".join(wrong[:3]))
            return
        for provider, entry in self._books.rows.providers.items():
            self._plots[provider] = (entry, self.pages.plots[provider])
        for provider in self._plots.keys() - self.pages.plots.keys():
            del self._plots[provider]
        rows = self._books.rows
        self._lives = {
            consumer: (rows.consumers[consumer], held, self.pages.holdings[consumer])
            for consumer, held in rows.held.items()
        }

    def _of_providers(self) -> Iterator[str]:
        rows, plots = self._books.rows, self.pages.plots
        for provider in sorted(rows.providers.keys() ^ plots.keys()):
            yield f"provider {short(provider)} is {'there' if provider in rows.providers else 'gone'}"
        for provider, plot in plots.items():
            entry = rows.providers.get(provider)
            known = self._plots.get(provider)
            if entry is None or (known is not None and known[0] is entry and known[1] is plot):
                continue
            if (found := plot_of(entry.book)) != plot:
                yield f"provider {short(provider)} is {found!r}, and should be {plot!r}"
        sums = self.pages.sums()
        for provider, entry in rows.providers.items():
            for resource, inventory in entry.book.inventories.items():
                if inventory.used != (held := sums.pop((provider, resource), 0)):
                    yield f"{resource} of {short(provider)}: used is {inventory.used}, and {held} is held"
        for provider, resource in sums:
            yield f"{resource} of {short(provider)} is held, and there is no such inventory"

    def _of_consumers(self) -> Iterator[str]:
        rows, holdings = self._books.rows, self.pages.holdings
        for consumer in sorted(rows.held.keys() ^ holdings.keys()):
            yield f"consumer {short(consumer)} holds {rows.held.get(consumer, 'nothing')}"
        for consumer, holding in holdings.items():
            if consumer not in rows.held:
                continue
            row, held = rows.consumers[consumer], rows.held[consumer]
            life = self._lives.get(consumer)
            if life is not None and life[0] is row and life[1] is held and life[2] is holding:
                continue
            if (found := holding_of(row, held)) != holding:
                yield f"consumer {short(consumer)} is {found!r}, and should be {holding!r}"

    def _of_names(self) -> Iterator[str]:
        rows = self._books.rows
        if strange := (rows.classes.keys() ^ self.pages.classes) | (rows.traits.keys() ^ self.pages.traits):
            yield f"of the names {sorted(strange)} one side knows nothing"

    # Trees

    def _check_trees(self, changes: TreeChanges) -> None:
        rows = self._books.rows
        roots = {tree.root for tree in changes.trees}
        for provider, entry in rows.providers.items():
            if entry.root in roots or entry.book.parent in changes.removed:
                self._check_place(rows, provider, entry)
        for root in roots & rows.trees.keys():
            self._check_qualities(rows, root)
        for known in [
            each for each in self._qualities if each[0] not in rows.trees and each[0] not in rows.stumps
        ]:
            # With its stump the shapes of a tree are forgotten.
            del self._qualities[known]

    def _check_place(self, rows: Books, provider: ProviderId, entry: ProviderEntry) -> None:
        way = [provider]
        while (parent := rows.providers[way[-1]].book.parent) is not None:
            if parent not in rows.providers or parent in way:
                lost = "does not exist" if parent not in rows.providers else "stands below it"
                self._findings.breaks("trees stay trees", f"{short(parent)}, above {entry.book.name}, {lost}")
                return
            way.append(parent)
        if entry.root != way[-1] or provider not in rows.trees[way[-1]].members:
            self._findings.breaks(
                "trees stay trees",
                f"{entry.book.name} is said to stand in the tree of {short(entry.root)}, and stands below "
                f"{rows.providers[way[-1]].book.name}",
            )

    def _check_qualities(self, rows: Books, root: ProviderId) -> None:
        tree = rows.trees[root]
        members = [rows.providers[each].book for each in tree.members if each in rows.providers]
        now: Qualities = frozenset((book.id, *_offered(book)) for book in members)
        meant = self._qualities.setdefault((root, tree.shape), now)
        if meant != now:
            differing = sorted({str(each[0])[:8] for each in meant ^ now if isinstance(each, tuple)})
            self._findings.breaks(
                "qualities are law",
                f"shape {tree.shape} of {rows.providers[root].book.name} meant something else before: {differing} differ",
            )


def _offered(book: ProviderBook) -> tuple[object, ...]:
    plot = plot_of(book)
    return plot.parent, frozenset(plot.inventories.items()), plot.traits, plot.aggregates
