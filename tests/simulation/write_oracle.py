"""Applies every administrator's write a second time, in the order of the commits, by simpler rules, and compares; and judges the reasons of refused ones."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from bus.messages.audit import BookEntry  # noqa: TC001 - like every other import
from bus.messages.books import (
    AlreadyThere,
    ConsumerMoved,
    CreateProvider,
    Done,
    GenerationMoved,
    HasChildren,
    IdTaken,
    InventoryAbsent,
    InventoryPresent,
    NameInUse,
    NameTaken,
    ProviderWritten,
    Reshape,
    SetAllocations,
    UnknownClass,
    UnknownConsumer,
    UnknownProvider,
    UnknownTrait,
    UpdateProvider,
    Write,
    WriteVerdict,
)
from bus.messages.placement import InventoryInUse
from engine.inventories import ConsumerId, ProviderId, ProviderState, ReportedInventory
from engine.refusals import DoesNotFit, NotAllowed, Shortfall
from placement_worker.core.ledger import ClaimChanges, TreeChanges
from placement_worker.wiring import STANDARD
from tests.simulation.findings import Findings
from tests.simulation.host_history import short_id
from tests.simulation.stored_books import InspectableStore, StoredRows
from tests.simulation.write_rules import (
    ExpectedBooks,
    HoldingRecord,
    ProviderRecord,
    broken_bound,
    capacity,
    holding_of,
    record_of,
    summed,
)


def is_refusal_true(expected: ExpectedBooks, write: Write, verdict: WriteVerdict) -> bool:
    return _CHECKS[type(verdict)](expected, write, verdict)


def _generation_moved(expected: ExpectedBooks, _: Write, said: GenerationMoved) -> bool:
    record = expected.providers.get(said.provider)
    return record is not None and record.generation == said.current != said.seen


def _consumer_moved(expected: ExpectedBooks, _: Write, said: ConsumerMoved) -> bool:
    holding = expected.holdings.get(said.consumer)
    return (holding.generation if holding else None) == said.current != said.seen


def _name_taken(expected: ExpectedBooks, _: Write, said: NameTaken) -> bool:
    return said.provider in expected.providers and expected.providers[said.provider].name == said.name


def _has_children(expected: ExpectedBooks, _: Write, said: HasChildren) -> bool:
    return said.child in expected.providers and expected.providers[said.child].parent == said.provider


def _in_use(expected: ExpectedBooks, write: Write, said: InventoryInUse) -> bool:
    # For a reshape the number counts its own allocations as well.
    is_held = isinstance(write, Reshape) or expected.used((said.provider, said.resource)) == said.used
    return said.used > 0 and is_held


def _does_not_fit(expected: ExpectedBooks, write: Write, said: DoesNotFit) -> bool:
    return bool(said.shortfalls) and all(
        _is_short(expected, write, shortfall) for shortfall in said.shortfalls
    )


def _is_short(expected: ExpectedBooks, write: Write, shortfall: Shortfall) -> bool:
    """Whether a reported shortfall is true. It is computed again from the inventory, the usage of others, and the
    amounts that the write asks for; a reshape is judged by the inventories that it brings.
    """
    stock = (shortfall.provider, shortfall.resource)
    inventory = _inventory(expected, write, shortfall)
    if inventory is None:
        return shortfall.rule == "no_inventory"
    if not isinstance(write, SetAllocations | Reshape):
        return False
    consumers = write.consumers if isinstance(write, SetAllocations) else write.allocations
    asked = [amount for one in consumers if (amount := summed(one.amounts).get(stock, 0))]
    held = [expected.holdings[one.consumer] for one in consumers if one.consumer in expected.holdings]
    given_back = sum(each.amounts.get(stock, 0) for each in held)
    if shortfall.free != capacity(inventory) - expected.used(stock) + given_back:
        return False
    if shortfall.rule != "capacity":
        return shortfall.asked in asked and broken_bound(inventory, shortfall.asked) == shortfall.rule
    return shortfall.asked in (*asked, sum(asked)) and shortfall.asked > max(shortfall.free, given_back)


def _inventory(expected: ExpectedBooks, write: Write, shortfall: Shortfall) -> ReportedInventory | None:
    record = expected.providers.get(shortfall.provider)
    found = dict(record.inventories) if record else {}
    for one in write.inventories if isinstance(write, Reshape) else ():
        found |= one.inventories if one.provider == shortfall.provider else {}
    return found.get(shortfall.resource)


def _name_in_use(expected: ExpectedBooks, _: Write, said: NameInUse) -> bool:
    record = expected.providers[said.provider]
    return said.name in record.traits or said.name in record.inventories


# The fields of a refusal, beside its name.
_CHECKS: dict[type, Callable[[ExpectedBooks, Write, Any], bool]] = {
    GenerationMoved: _generation_moved,
    ConsumerMoved: _consumer_moved,
    UnknownProvider: lambda expected, _, said: said.provider not in expected.providers,
    UnknownConsumer: lambda expected, _, said: said.consumer not in expected.holdings,
    UnknownTrait: lambda expected, _, said: not set(said.names) & expected.traits,
    UnknownClass: lambda expected, _, said: not set(said.names) & expected.classes,
    AlreadyThere: lambda expected, _, said: said.name in expected.classes | expected.traits,
    NameTaken: _name_taken,
    IdTaken: lambda expected, _, said: said.provider in expected.providers,
    HasChildren: _has_children,
    InventoryPresent: lambda expected, _, said: (
        said.resource in expected.providers[said.provider].inventories
    ),
    InventoryAbsent: lambda expected, _, said: (
        said.resource not in expected.providers[said.provider].inventories
    ),
    InventoryInUse: _in_use,
    DoesNotFit: _does_not_fit,
    NameInUse: _name_in_use,
    # Of a provider only the parent can be wrong, and a consumer may be named once.
    NotAllowed: lambda _, write, said: (
        (said.field == "parent") is isinstance(write, CreateProvider | UpdateProvider)
    ),
}


WRITE = "admin write"
JUDGED = "a write by name is judged by its rules"
# Counts of writes sent before with identical content, and of writes that were judged in one batch.
AGAIN, TOGETHER = "admin write repeated", "admin writes in one batch"
# The offer of one tree to claims: each provider's parent, inventories, traits, aggregates and place.
Qualities = frozenset[object]


class WriteOracle:
    def __init__(self, findings: Findings, books: InspectableStore) -> None:
        self._findings = findings
        self._books = books
        self.expected = ExpectedBooks(STANDARD.classes | STANDARD.traits)
        self._judged: list[tuple[Write, WriteVerdict]] = []
        self._asked: set[bytes] = set()
        # The rows at the last comparison: an unchanged object is not compared again.
        self._compared_providers: dict[ProviderId, tuple[ProviderState, ProviderRecord]] = {}
        self._compared_holdings: dict[ConsumerId, tuple[BookEntry, HoldingRecord]] = {}
        # The qualities that each shape of a tree stood for when it was first seen.
        self._qualities: dict[tuple[ProviderId, int], Qualities] = {}

    # Called by the stores

    def opened(self) -> None:
        """A transaction begins: verdicts of a transaction that was rolled back do not count."""
        self._judged.clear()
        rows = self._books.rows
        for known in [
            each for each in self._qualities if not rows.has_tree(each[0]) and each[0] not in rows.tombstones
        ]:
            # The shapes of a tree are forgotten together with its tombstone, before this transaction may create it again.
            del self._qualities[known]

    def judged(self, writes: Sequence[Write], verdicts: Sequence[WriteVerdict]) -> None:
        self._judged += zip(writes, verdicts, strict=True)
        if len(writes) > 1:
            self._findings.count(TOGETHER, type(writes[0]).__name__)

    def written(self, written: Sequence[TreeChanges | ClaimChanges]) -> None:
        """The transaction has committed."""
        for write, verdict in self._judged:
            self._count(write, f"{type(write).__name__} / {type(verdict).__name__}")
            self._check_verdict(write, verdict)
        if self._judged:
            self._compare()
        else:
            self._copy_rows()
        self._judged.clear()
        for changes in written:
            if isinstance(changes, TreeChanges):
                self._check_trees(changes)

    def differences(self) -> list[str]:
        """Where the books differ from the expected ones."""
        return [*self._provider_differences(), *self._consumer_differences(), *self._name_differences()]

    def _count(self, write: Write, pair: str) -> None:
        self._findings.count(WRITE, pair)
        words = msgspec.json.encode(write)
        if words in self._asked:
            self._findings.count(AGAIN, pair)
        self._asked.add(words)

    def _check_verdict(self, write: Write, verdict: WriteVerdict) -> None:
        is_done = isinstance(verdict, Done | ProviderWritten)
        self._findings.log("books", "{} is done" if is_done else "{} is refused: {}", write, verdict)
        if not is_done and not is_refusal_true(self.expected, write, verdict):
            self._findings.breaks("every no has its reasons", f"{write!r} was refused with {verdict!r}")
        if (expected := self.expected.judge(write)) != type(verdict).__name__:
            self._findings.breaks(JUDGED, f"{write!r} got {verdict!r}, and must get {expected}")

    # Comparison with the books

    def _copy_rows(self) -> None:
        """Other checkers judge reports and claims: take over their rows."""
        rows, expected = self._books.rows, self.expected
        for provider in self._compared_providers.keys() - rows.providers.keys():
            del expected.providers[provider], self._compared_providers[provider]
        for provider, entry in rows.providers.items():
            known = self._compared_providers.get(provider)
            if known is None or known[0] is not entry:
                record = expected.providers[provider] = record_of(entry)
                self._compared_providers[provider] = (entry, record)
        for consumer in self._compared_holdings.keys() - rows.holders.keys():
            del expected.holdings[consumer], self._compared_holdings[consumer]
        for consumer, row in rows.holders.items():
            compared = self._compared_holdings.get(consumer)
            if compared is None or compared[0] is not row:
                holding = expected.holdings[consumer] = holding_of(row)
                self._compared_holdings[consumer] = (row, holding)
        expected.classes, expected.traits = set(rows.custom["classes"]), set(rows.custom["traits"])

    def _compare(self) -> None:
        if wrong := self.differences():
            self._findings.breaks("the books are what was written", "; ".join(wrong[:3]))
            return
        for provider, entry in self._books.rows.providers.items():
            self._compared_providers[provider] = (entry, self.expected.providers[provider])
        for provider in self._compared_providers.keys() - self.expected.providers.keys():
            del self._compared_providers[provider]
        self._compared_holdings = {
            consumer: (row, self.expected.holdings[consumer])
            for consumer, row in self._books.rows.holders.items()
        }

    def _provider_differences(self) -> Iterator[str]:
        rows, providers = self._books.rows, self.expected.providers
        for provider in sorted(rows.providers.keys() ^ providers.keys()):
            yield f"provider {short_id(provider)} is {'there' if provider in rows.providers else 'gone'}"
        for provider, record in providers.items():
            entry = rows.providers.get(provider)
            known = self._compared_providers.get(provider)
            if entry is None or (known is not None and known[0] is entry and known[1] is record):
                continue
            if (found := record_of(entry)) != record:
                yield f"provider {short_id(provider)} is {found!r}, and should be {record!r}"
        sums = self.expected.sums()
        for provider, entry in rows.providers.items():
            for resource, inventory in entry.inventories.items():
                if inventory.used != (held := sums.pop((provider, resource), 0)):
                    yield f"{resource} of {short_id(provider)}: used is {inventory.used}, and {held} is held"
        for provider, resource in sums:
            yield f"{resource} of {short_id(provider)} is held, but there is no such inventory"

    def _consumer_differences(self) -> Iterator[str]:
        rows, holdings = self._books.rows, self.expected.holdings
        for consumer in sorted(rows.holders.keys() ^ holdings.keys()):
            yield f"consumer {short_id(consumer)} holds {rows.holders.get(consumer, 'nothing')}"
        for consumer, holding in holdings.items():
            if (row := rows.holders.get(consumer)) is None:
                continue
            compared = self._compared_holdings.get(consumer)
            if compared is not None and compared[0] is row and compared[1] is holding:
                continue
            if (found := holding_of(row)) != holding:
                yield f"consumer {short_id(consumer)} is {found!r}, and should be {holding!r}"

    def _name_differences(self) -> Iterator[str]:
        rows = self._books.rows
        if strange := (rows.custom["classes"] ^ self.expected.classes) | (
            rows.custom["traits"] ^ self.expected.traits
        ):
            yield f"only one side has the names {sorted(strange)}"

    # Trees

    def _check_trees(self, changes: TreeChanges) -> None:
        rows = self._books.rows
        roots = {tree.root for tree in changes.trees}
        for provider, entry in rows.providers.items():
            if entry.root in roots or entry.parent in changes.removed:
                self._check_place(rows, provider, entry)
        for root in filter(rows.has_tree, roots):
            self._check_qualities(rows, root)

    def _check_place(self, rows: StoredRows, provider: ProviderId, entry: ProviderState) -> None:
        ancestry = [provider]
        while (parent := rows.providers[ancestry[-1]].parent) is not None:
            if parent not in rows.providers or parent in ancestry:
                lost = "does not exist" if parent not in rows.providers else "is also below it"
                self._findings.breaks("trees stay trees", f"{short_id(parent)}, above {entry.name}, {lost}")
                return
            ancestry.append(parent)
        if entry.root != ancestry[-1]:
            self._findings.breaks(
                "trees stay trees",
                f"{entry.name} is in the tree of {short_id(entry.root)} in its row, but is below "
                f"{rows.providers[ancestry[-1]].name}",
            )

    def _check_qualities(self, rows: StoredRows, root: ProviderId) -> None:
        tree = rows.providers[root]
        members = [each for each in rows.providers.values() if each.root == root]
        now: Qualities = frozenset((each.id, *_offered(each)) for each in members)
        first_seen = self._qualities.setdefault((root, tree.shape), now)
        if first_seen != now:
            differing = sorted({str(each[0])[:8] for each in first_seen ^ now if isinstance(each, tuple)})
            self._findings.breaks(
                "qualities are law",
                f"shape {tree.shape} of {tree.name} stood for other qualities before: {differing} differ",
            )


def _offered(state: ProviderState) -> tuple[object, ...]:
    record = record_of(state)
    return (
        record.parent,
        frozenset(record.inventories.items()),
        record.traits,
        record.aggregates,
        record.place,
    )
