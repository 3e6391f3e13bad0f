"""Most consumers are new and get their claim: their rows are created that way at once, and not written a second time."""

from collections.abc import Sequence

import pytest

from bus.messages.administration import SetAllocations
from placement_worker.core.allocation_writes import decide_allocations, keys_of_allocation_writes
from placement_worker.core.ledger import InventoryLimits
from placement_worker.store_sql.names import CachedNames, NameCache
from placement_worker.store_sql.rows import (
    CachedProvider,
    CachedProviders,
    ClaimRows,
    ConsumerRecord,
    ConsumerWrites,
    ProviderCache,
)
from placement_worker.tables import resource_classes
from tests.contracts.admin_client import allocations, holding
from tests.contracts.placement_orders import HOST, NOON, VOCABULARY, WEB, amounts, consumer

NUMBER, BASE = 7, 1
EIGHT = InventoryLimits(capacity=8, min_unit=1, max_unit=8, step_size=1)
HOST_ROW = (NUMBER, NUMBER, BASE, 0, 0, "{}", 0)


def rows_of(writes: Sequence[SetAllocations]) -> tuple[list[ConsumerRecord], ConsumerWrites]:
    """The rows that are created for these consumers, all of them new, and the rows written after these decisions."""
    classes = NameCache(resource_classes)
    classes.ids, classes.names = {"VCPU": 1}, {1: "VCPU"}
    known = ProviderCache()
    known.keep([CachedProvider(NUMBER, HOST, NUMBER, BASE, "cell1", {1: "VCPU"}, {"VCPU": EIGHT})])
    books = ClaimRows(keys_of_allocation_writes(writes), CachedNames(classes), CachedProviders(known))
    assert books.unknown() == []
    optimistic_rows = books.optimistic_rows()
    books.add_providers([HOST_ROW])
    decision = decide_allocations(books.ledger(), writes, VOCABULARY, NOON)
    return optimistic_rows, books.consumer_writes(
        decision.changes, {hope.row.id.int: hope for hope in optimistic_rows}
    )


@pytest.mark.parametrize("kind", [None, "INSTANCE"])
def test_new_consumers_are_made_as_they_are_granted(kind: str | None) -> None:
    asked = allocations(holding(WEB, *amounts(HOST, VCPU=2), type=kind))

    optimistic_rows, kept = rows_of([asked])

    assert [(hope.row.cell, hope.held) for hope in optimistic_rows] == [("cell1", {NUMBER: {1: 2}})]
    assert kept.consumers == []
    assert kept.moved == [(WEB.int, {}, {NUMBER: {1: 2}})]


def test_a_consumer_written_twice_in_a_batch_has_its_last_values() -> None:
    first = allocations(holding(WEB, *amounts(HOST, VCPU=2)))
    last = allocations(holding(WEB, *amounts(HOST, VCPU=3), generation=1))

    _, kept = rows_of([first, last])

    assert [(one.row.generation, one.held) for one in kept.consumers] == [(2, {NUMBER: {1: 3}})]


def test_a_refused_consumer_leaves_no_row() -> None:
    too_much = allocations(holding(consumer("greedy"), *amounts(HOST, VCPU=9)))

    _, kept = rows_of([too_much])

    assert (kept.consumers, kept.moved) == ([], [])
