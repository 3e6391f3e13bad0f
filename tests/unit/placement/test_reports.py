"""decide_reports alone: every reason to refuse a report, and the rows that it leaves alone."""

import pytest
from msgspec import structs

from bus.messages.placement import ReportAccepted, ReportInventory, ReportOutdated, ReportVerdict, TreeKept
from engine.inventories import InventoryState, ReportedInventory, ReportedProvider
from engine.refusals import NotAllowed
from placement_worker.core.ledger import Forest, ProviderBook, Sent, TreeBook, TreeChanges
from placement_worker.core.reports import decide_reports
from tests.contracts.placement_orders import (
    CELL,
    HOST,
    OTHER_HOST,
    VOCABULARY,
    a_provider,
    a_report,
    inventories,
    provider,
)

NUMA, PCI, NEW = provider("numa-1"), provider("pci-1"), provider("new")
HOST_BOOK = ProviderBook(
    id=HOST,
    name="host-1",
    generation=3,
    inventories={"VCPU": InventoryState(total=8, used=2)},
    traits=frozenset({"CUSTOM_MINE"}),
    operator_traits=frozenset({"CUSTOM_THEIRS"}),
)
TREE = TreeBook(
    root=HOST,
    cell=CELL,
    shape=4,
    providers={
        HOST: HOST_BOOK,
        NUMA: ProviderBook(id=NUMA, name="numa-1", parent=HOST, generation=1),
        PCI: ProviderBook(id=PCI, name="pci-1", parent=NUMA, generation=1),
    },
)
STUMP = TreeBook(root=NEW, cell=CELL, shape=6, epoch=2, sequence=7)
FELLED = Forest(trees={NEW: STUMP})
FOREST = Forest(trees={HOST: TREE}, names={"host-2": OTHER_HOST})


def judged(report: ReportInventory, forest: Forest = FOREST, speaks_for: str | None = None) -> ReportVerdict:
    (verdict,) = decide_reports(forest, [Sent(report, speaks_for)], VOCABULARY).verdicts
    return verdict


def odd_host(**odd: int) -> ReportedProvider:
    return a_provider("host-1", holds={"VCPU": ReportedInventory(**({"total": 8} | odd))})


@pytest.mark.parametrize(
    ("field", "report"),
    [
        ("cell", a_report(cell="c2")),
        ("providers[1].id", a_report(a_provider("host-1"), a_provider("host-1"))),
        ("removed[0]", a_report(a_provider("pci-1", NUMA), removed=(PCI,))),
        ("removed[1]", a_report(removed=(PCI, PCI))),
        ("providers[0].inventories.WHEELS", a_report(a_provider("host-1", holds=inventories(WHEELS=4)))),
        ("providers[0].inventories.CUSTOM_", a_report(a_provider("host-1", holds=inventories(CUSTOM_=4)))),
        ("providers[0].inventories.VCPU", a_report(odd_host(reserved=9))),
        ("providers[0].inventories.VCPU", a_report(odd_host(min_unit=3, max_unit=2))),
        ("providers[0].traits[1]", a_report(a_provider("host-1", traits=("CUSTOM_A", "FAST")))),
        ("providers[0].place", a_report(ReportedProvider(id=NUMA, name="numa-1", parent=HOST, place="dc1"))),
        ("root", a_report(a_provider("new"), root=NEW)),
        ("root", a_report(a_provider("numa-1", NEW), root=NUMA)),
        ("root", a_report(removed=(HOST,))),
        ("providers[0].parent", a_report(a_provider("host-1", NUMA))),
        ("providers[0].parent", a_report(a_provider("new"))),
        ("providers[0].parent", a_report(a_provider("new", OTHER_HOST))),
        ("providers[0].parent", a_report(a_provider("numa-1", PCI))),
        ("providers[0].parent", a_report(a_provider("new", NEW))),
        ("providers[0].parent", a_report(a_provider("new", NUMA), removed=(NUMA, PCI))),
        ("removed[0]", a_report(removed=(NUMA,))),
        ("providers[0].name", a_report(ReportedProvider(id=NUMA, name="host-2"))),
        ("providers[0].name", a_report(ReportedProvider(id=NUMA, name="pci-1"))),
        (
            "providers[1].name",
            a_report(
                ReportedProvider(id=NUMA, name="same"), ReportedProvider(id=NEW, name="same", parent=HOST)
            ),
        ),
    ],
)
def test_an_invalid_report_is_refused_naming_the_field(field: str, report: ReportInventory) -> None:
    forest = FOREST if report.root != NEW else Forest(trees={HOST: TREE}, elsewhere={NEW: HOST})
    decision = decide_reports(forest, [Sent(report)], VOCABULARY)

    (verdict,) = decision.verdicts
    assert isinstance(verdict, NotAllowed)
    assert verdict.field == field
    assert decision.changes == decide_reports(forest, [], VOCABULARY).changes


def test_traits_of_an_operator_outlive_any_report() -> None:
    report = a_report(a_provider("host-1", traits=("HW_CPU_X86_VMX",)))

    changes = decide_reports(FOREST, [Sent(report)], VOCABULARY).changes

    (tree,) = changes.trees
    assert tree.providers[HOST].traits == {"HW_CPU_X86_VMX"}
    assert tree.providers[HOST].operator_traits == {"CUSTOM_THEIRS"}


@pytest.mark.parametrize(
    ("before", "reported", "place", "moves"),
    [
        (("", ""), None, "", False),
        (("", ""), "dc1", "dc1", True),
        (("dc1", ""), None, "dc1", False),
        (("dc1", ""), "", "", True),
        # An operator's word counts before a report's, until it is taken back.
        (("dc1", "dc2"), "dc3", "dc2", False),
        (("dc3", "dc2"), "", "dc2", False),
    ],
)
def test_a_report_says_where_its_root_is_unless_an_operator_does(
    before: tuple[str, str], reported: str | None, place: str, *, moves: bool
) -> None:
    root = structs.replace(TREE.providers[HOST], reported_place=before[0], operator_place=before[1])
    tree = structs.replace(TREE, providers={**TREE.providers, HOST: root})
    report = a_report(ReportedProvider(id=HOST, name="host-1", place=reported))

    decision = decide_reports(Forest(trees={HOST: tree}), [Sent(report)], VOCABULARY)

    after = (*decision.changes.trees, tree)[0]
    assert decision.verdicts == (ReportAccepted(shape=tree.shape + moves, shape_moved=moves),)
    assert after.providers[HOST].place == place
    assert after.providers[HOST].operator_place == before[1]


def test_a_chain_may_be_deeper_than_the_interpreters_stack() -> None:
    links = (HOST, *(provider(f"link-{number}") for number in range(1, 2000)))
    parts = [
        a_report(*[a_provider(f"link-{number}", links[number - 1]) for number in range(start, start + 500)])
        for start in range(1, 2000, 500)
    ]

    decision = decide_reports(FOREST, [Sent(part) for part in parts], VOCABULARY)

    assert [type(verdict) for verdict in decision.verdicts] == [ReportAccepted] * len(parts)
    assert len(decision.changes.changed) == 2001


def test_a_deleted_tree_leaves_a_tombstone_with_its_counters() -> None:
    free = TreeBook(root=NEW, cell=CELL, shape=5, providers={NEW: ProviderBook(id=NEW, name="new")})
    felling = a_report(root=NEW, removed=(NEW,), epoch=2, sequence=7)

    decision = decide_reports(Forest(trees={NEW: free}), [Sent(felling)], VOCABULARY)

    assert decision.verdicts == (ReportAccepted(shape=6, shape_moved=True),)
    assert decision.changes == TreeChanges(trees=(STUMP,), removed=(NEW,))


def test_a_tree_created_deleted_and_created_in_one_batch_counts_every_time() -> None:
    planted, felling = a_report(a_provider("new"), root=NEW), a_report(root=NEW, removed=(NEW,))

    decision = decide_reports(
        Forest(trees={}), [Sent(one) for one in (planted, felling, planted)], VOCABULARY
    )

    assert [getattr(verdict, "shape", None) for verdict in decision.verdicts] == [1, 2, 3]
    assert [tree.shape for tree in decision.changes.trees] == [3]


def of_new(
    epoch: int, sequence: int, cell: str = CELL, *, gone: bool = False, foreign: str = ""
) -> ReportInventory:
    told = () if gone else (a_provider("new"),)
    return structs.replace(
        a_report(*told, root=NEW, cell=cell, epoch=epoch, sequence=sequence), foreign=foreign
    )


GROWN, LATE = ReportAccepted(shape=7, shape_moved=True), ReportOutdated(epoch=2, sequence=7)


@pytest.mark.parametrize(
    ("forest", "report", "speaks_for", "verdict"),
    [
        (FOREST, a_report(), CELL, ReportAccepted(shape=4, shape_moved=False)),
        (FOREST, a_report(), "c2", "cell"),
        (FELLED, of_new(1, 9), None, LATE),
        (FELLED, of_new(2, 6), None, LATE),
        (FELLED, of_new(2, 7), None, LATE),
        (FELLED, of_new(2, 8), None, GROWN),
        # The reports of another cell have numbers of their own, but a ring of daemons reports the nodes of all cells.
        (FELLED, of_new(1, 1, "c2"), "c2", GROWN),
        (FELLED, of_new(2, 6, "c2", foreign="leave"), None, LATE),
        (FELLED, of_new(2, 8, "c2", foreign="leave"), None, GROWN),
        # Another cell cannot make a tombstone forget its last report.
        (FELLED, of_new(1, 1, "c2", gone=True), None, ReportAccepted(shape=6, shape_moved=False)),
    ],
)
def test_a_report_counts_by_its_sender_and_its_number(
    forest: Forest, report: ReportInventory, speaks_for: str | None, verdict: ReportVerdict | str
) -> None:
    said = judged(report, forest, speaks_for)

    assert (said.field if isinstance(said, NotAllowed) else said) == verdict
    changes = decide_reports(forest, [Sent(report, speaks_for)], VOCABULARY).changes
    assert [(each.cell, each.epoch, each.sequence) for each in changes.trees if each.root == NEW] == (
        [(report.cell, report.epoch, report.sequence)] if said == GROWN else []
    )


WRITTEN = structs.replace(TREE, cell="")


@pytest.mark.parametrize(
    ("tree", "foreign", "speaks_for", "verdict"),
    [
        (WRITTEN, "leave", None, TreeKept(cell="", epoch=0, sequence=0)),
        (WRITTEN, "take", None, ReportAccepted(shape=5, shape_moved=True)),
        (WRITTEN, "take", CELL, TreeKept(cell="", epoch=0, sequence=0)),
        (TREE, "leave", None, TreeKept(cell=CELL, epoch=0, sequence=0)),
        (TREE, "take", None, ReportAccepted(shape=4, shape_moved=False)),
        (TREE, "", None, ReportAccepted(shape=4, shape_moved=False)),
        (structs.replace(TREE, sequence=1), "leave", None, ReportAccepted(shape=4, shape_moved=False)),
        (
            structs.replace(TREE, cell="far", epoch=3, sequence=1),
            "take",
            None,
            TreeKept(cell="far", epoch=3, sequence=1),
        ),
        (STUMP, "leave", None, ReportAccepted(shape=7, shape_moved=True)),
    ],
)
def test_a_reporter_is_told_that_the_tree_has_another_owner_or_takes_it_over(
    tree: TreeBook, foreign: str, speaks_for: str | None, verdict: ReportVerdict
) -> None:
    root = tree.root
    name = "host-1" if root == HOST else "new"
    report = structs.replace(a_report(a_provider(name), root=root, epoch=3, sequence=9), foreign=foreign)
    mended = structs.replace(
        report, providers=(structs.replace(report.providers[0], inventories=None, traits=None),)
    )

    assert judged(mended, Forest(trees={root: tree}), speaks_for) == verdict
