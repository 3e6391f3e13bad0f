"""Checks whose word counts for inventories: what an administrator wrote stays, whatever is reported, until both agree.

It keeps its own record of what was reported last, so it also knows which trees have more of a class than is reported: at
the end the audit must name these, and no others.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from bus.message import ProviderId
from bus.messages.placement import ReportAccepted, ReportedInventory, ReportInventory, ReportVerdict
from placement_worker.core.ledger import SentReport, TreeChanges
from tests.simulation.expected_books import record_of
from tests.simulation.findings import Findings

Stocks = Mapping[str, ReportedInventory]
PROMISE = "what was written by name stays"


class CapacityChecker:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._there: dict[ProviderId, Stocks] = {}
        self._said: dict[ProviderId, Stocks] = {}
        self._roots: dict[ProviderId, ProviderId] = {}
        self._names: dict[ProviderId, str] = {}
        self._judged: list[ReportInventory] = []

    def opened(self) -> None:
        """A transaction begins: reports of one that was rolled back do not count."""
        self._judged.clear()

    def judged(self, reports: Sequence[SentReport], verdicts: Sequence[ReportVerdict]) -> None:
        self._judged += [
            sent.report
            for sent, verdict in zip(reports, verdicts, strict=True)
            if isinstance(verdict, ReportAccepted)
        ]

    def written(self, written: Sequence[object]) -> None:
        """The transaction has committed."""
        before = dict(self._there)
        for changes in written:
            if isinstance(changes, TreeChanges):
                self._copy(changes)
                # One that a report of this transaction removed, and a later one made again, has nothing of before.
                for removed in changes.removed:
                    before.pop(removed, None)
        named = Counter(one.id for report in self._judged for one in report.providers)
        for report in self._judged:
            for one in report.providers:
                # A later order of the same transaction may have removed the provider.
                if one.inventories is None or one.id not in self._there:
                    continue
                if one.id in before and named[one.id] == 1 and report.foreign != "take":
                    self._check(one.id, before[one.id])
                self._said[one.id] = one.inventories
        self._judged.clear()

    def excesses(self) -> list[str]:
        """How the audit begins its sentence about each tree that has more of a class than is reported of it."""
        there: dict[tuple[ProviderId, str], int] = Counter()
        said: dict[tuple[ProviderId, str], int] = Counter()
        for provider, root in self._roots.items():
            for name, stock in self._there[provider].items():
                there[root, name] += stock.total
            for name, stock in self._said.get(provider, {}).items():
                said[root, name] += stock.total
        return [
            f"the tree of {self._names[root]} has {total} of {name} ("
            for (root, name), total in there.items()
            if 0 < said[root, name] < total
        ]

    def _copy(self, changes: TreeChanges) -> None:
        for removed in changes.removed:
            for rows in (self._there, self._said, self._roots, self._names):
                rows.pop(removed, None)
        for tree in changes.trees:
            for book in tree.providers.values():
                self._there[book.id] = record_of(book).inventories
                self._roots[book.id] = tree.root
                self._names[book.id] = book.name

    def _check(self, provider: ProviderId, before: Stocks) -> None:
        said, after = self._said.get(provider, {}), self._there.get(provider, {})
        for name, stock in before.items():
            if said.get(name) != stock:
                self._findings.count("written by name", "kept in a report")
                self._must_stay(provider, name, stock, after)
        for name in said:
            if name not in before:
                self._must_stay(provider, name, None, after)

    def _must_stay(
        self, provider: ProviderId, name: str, stock: ReportedInventory | None, after: Stocks
    ) -> None:
        if after.get(name) != stock:
            self._findings.breaks(
                PROMISE,
                f"{name} of {self._names.get(provider, provider)} was {stock}, a report made it {after.get(name)}",
            )
