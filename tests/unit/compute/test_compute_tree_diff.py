"""The report of a compute about the tree of a host: the difference to the tree that placement last accepted."""

from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.placement import InventoryInUse, ReportAccepted, ReportOutdated
from compute_sim.core.trees import (
    Accepted,
    MustReportAll,
    MustReshape,
    ProviderTree,
    ReportRefused,
    ReportState,
    TreeProvider,
    after_answer,
    report_of_changes,
)
from engine.inventories import AggregateId
from engine.refusals import NotAllowed
from tests.unit.compute.compute_trees import CHILD, HOST, NUMA, ROOT

NOTHING = ReportState(ProviderTree(HOST), 0)


def tree(*providers: TreeProvider) -> ProviderTree:
    return ProviderTree(HOST, {each.id: each for each in providers})


MARKED = structs.replace(NUMA, traits=frozenset({"CUSTOM_B", "CUSTOM_A"}))
JOINED = structs.replace(ROOT, aggregates=frozenset({AggregateId(UUID(int=9))}))
# What placement last accepted, by a sequence; the present tree; then the providers, those that are removed and the sequence of the report.
REPORTS: dict[str, tuple[ProviderTree, int, ProviderTree, list[object], tuple[object, ...], int]] = {
    "all, parents first": (tree(), 0, tree(NUMA, ROOT), [("h1", (), None), ("h1_NUMA0", (), None)], (), 9),
    "nothing": (tree(ROOT, NUMA), 7, tree(NUMA, ROOT), [], (), 0),
    "what differs": (
        tree(ROOT, NUMA),
        7,
        tree(ROOT, MARKED),
        [("h1_NUMA0", ("CUSTOM_A", "CUSTOM_B"), None)],
        (),
        9,
    ),
    "aggregates": (tree(ROOT), 1, tree(JOINED), [("h1", (), (UUID(int=9),))], (), 9),
    "what is gone": (tree(ROOT, NUMA), 7, tree(ROOT), [], (CHILD,), 9),
    "a clock that did not rise": (tree(), 100, tree(ROOT), [("h1", (), None)], (), 101),
}


@pytest.mark.parametrize(
    ("before", "sequence", "now", "told", "removed", "by"), REPORTS.values(), ids=REPORTS
)
def test_a_report_has_what_differs(
    *,
    before: ProviderTree,
    sequence: int,
    now: ProviderTree,
    told: list[object],
    removed: tuple[object, ...],
    by: int,
) -> None:
    report = report_of_changes(ReportState(before, sequence), now, "c1", 9)

    if report is None:
        assert not told
        assert not removed
        return
    assert [(each.name, each.traits, each.aggregates) for each in report.providers] == told
    assert (report.epoch, report.sequence, report.removed) == (0, by, removed)


def test_an_answer_contains_the_hosts_current_sequence() -> None:
    now = tree(ROOT)
    report = report_of_changes(NOTHING, now, "c1", 7)
    assert report is not None

    accepted = after_answer(report, now, ReportAccepted(shape=1, shape_moved=True))
    echo = after_answer(report, now, ReportOutdated(epoch=0, sequence=7))
    other = after_answer(report, now, ReportOutdated(epoch=0, sequence=8))
    in_use = after_answer(report, now, InventoryInUse(provider=HOST, resource="VCPU", used=2))
    wrong = after_answer(report, now, NotAllowed(field="cell", reason="not yours"))

    assert accepted == echo == Accepted(ReportState(now, 7))
    # Another reporter has a higher sequence: report everything again, with one above it.
    assert other == MustReportAll(ReportState(ProviderTree(HOST), 8))
    # What is held there goes along with the inventories.
    assert isinstance(in_use, MustReshape)
    assert isinstance(wrong, ReportRefused)
    assert "not yours" in wrong.reason
