"""The report of a compute about the tree of a host: the difference to the tree that placement last accepted."""

from uuid import UUID

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


def test_a_first_report_has_all_providers_of_the_driver_parents_first() -> None:
    report = report_of_changes(NOTHING, tree(NUMA, ROOT), "c1", 7)

    assert report is not None
    assert [each.name for each in report.providers] == ["h1", "h1_NUMA0"]
    assert (report.epoch, report.sequence, report.removed) == (0, 7, ())


def test_only_providers_that_differ_are_reported_and_nothing_if_none_does() -> None:
    taken = ReportState(tree(ROOT, NUMA), 7)
    marked = structs.replace(NUMA, traits=frozenset({"CUSTOM_B", "CUSTOM_A"}))

    assert report_of_changes(taken, tree(NUMA, ROOT), "c1", 9) is None
    report = report_of_changes(taken, tree(ROOT, marked), "c1", 9)

    assert report is not None
    assert [(each.name, each.traits) for each in report.providers] == [("h1_NUMA0", ("CUSTOM_A", "CUSTOM_B"))]


def test_a_driver_that_names_no_traits_and_aggregates_reports_none() -> None:
    report = report_of_changes(NOTHING, tree(ROOT), "c1", 2)

    assert report is not None
    assert report.providers[0].traits == ()
    assert report.providers[0].aggregates is None


def test_aggregates_are_reported_only_by_a_driver_that_says_which() -> None:
    ours = structs.replace(ROOT, aggregates=frozenset({AggregateId(UUID(int=9))}))

    report = report_of_changes(ReportState(tree(ROOT), 1), tree(ours), "c1", 2)

    assert report is not None
    assert report.providers[0].aggregates == (UUID(int=9),)


def test_a_provider_that_no_longer_exists_is_removed() -> None:
    report = report_of_changes(ReportState(tree(ROOT, NUMA), 7), tree(ROOT), "c1", 9)

    assert report is not None
    assert (report.providers, report.removed) == ((), (CHILD,))


def test_sequences_rise_even_if_the_clock_does_not() -> None:
    report = report_of_changes(ReportState(tree(), 100), tree(ROOT), "c1", 9)

    assert report is not None
    assert report.sequence == 101


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
