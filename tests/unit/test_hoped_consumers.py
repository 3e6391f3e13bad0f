"""Most consumers are new and get what they ask for: they are made so at once, and not written a second time."""

from collections.abc import Sequence

import pytest

from bus.messages.administration import SetAllocations
from placement_worker.core.allocating import decide_allocations, shares_named_by
from placement_worker.core.capacity import Terms
from placement_worker.store_sql.claims import Books, Kept, KeptConsumer
from placement_worker.store_sql.known import KnownProvider, KnownProviders, Providers
from placement_worker.store_sql.named import named_in
from placement_worker.store_sql.names import KnownNames, Names
from placement_worker.tables import resource_classes
from tests.contracts.clerk import allocations, holding
from tests.contracts.placement_orders import HOST, NOON, VOCABULARY, WEB, amounts, consumer

NUMBER, BASE = 7, 1
EIGHT = Terms(capacity=8, min_unit=1, max_unit=8, step_size=1)
HOST_ROW = (NUMBER, NUMBER, BASE, 0, 0, "{}", 0)


def written_of(writes: Sequence[SetAllocations]) -> tuple[list[KeptConsumer], Kept]:
    """How the consumers are made, all of them new, and what is written of them when these writes were decided."""
    classes = KnownNames(resource_classes)
    classes.ids, classes.names = {"VCPU": 1}, {1: "VCPU"}
    known = KnownProviders()
    known.keep([KnownProvider(NUMBER, HOST, NUMBER, BASE, "cell1", {1: "VCPU"}, {"VCPU": EIGHT})])
    books = Books(named_in(shares_named_by(writes)), Names(classes), Providers(known))
    assert books.unknown() == []
    hopes = books.hopes()
    books.add_standing([HOST_ROW])
    decision = decide_allocations(books.ledger(), writes, VOCABULARY, NOON)
    return hopes, books.kept(decision.changes, {hope.row.id.int: hope for hope in hopes})


@pytest.mark.parametrize("kind", [None, "INSTANCE"])
def test_new_consumers_are_made_as_they_are_granted(kind: str | None) -> None:
    asked = allocations(holding(WEB, *amounts(HOST, VCPU=2), type=kind))

    hopes, kept = written_of([asked])

    assert [(hope.row.cell, hope.held) for hope in hopes] == [("cell1", {NUMBER: {1: 2}})]
    assert kept.consumers == []
    assert kept.moved == [(WEB.int, {}, {NUMBER: {1: 2}})]


def test_who_is_written_twice_in_a_batch_is_kept_as_it_was_written_last() -> None:
    first = allocations(holding(WEB, *amounts(HOST, VCPU=2)))
    last = allocations(holding(WEB, *amounts(HOST, VCPU=3), generation=1))

    _, kept = written_of([first, last])

    assert [(one.row.generation, one.held) for one in kept.consumers] == [(2, {NUMBER: {1: 3}})]


def test_who_is_refused_leaves_nothing_to_be_kept() -> None:
    too_much = allocations(holding(consumer("greedy"), *amounts(HOST, VCPU=9)))

    _, kept = written_of([too_much])

    assert (kept.consumers, kept.moved) == ([], [])
