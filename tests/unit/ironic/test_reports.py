"""What placement is told of a node, and what its answers make of the row."""

from collections.abc import Callable
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.placement import InventoryInUse, ReportAccepted, ReportOutdated, ReportVerdict, TreeKept
from engine.inventories import ProviderId, ReportedInventory
from engine.refusals import NotAllowed
from ironic_sync.core import reports
from ironic_sync.core.node import Node
from ironic_sync.core.offers import CellMap
from ironic_sync.core.reports import (
    EPOCH_RAISES_MAX,
    Foreign,
    ReportUnderWay,
    after_verdict,
)
from ironic_sync.core.rows import NodeRow, Offer
from ironic_sync.core.settling import NodePolicy, seen, settled

ID = ProviderId(UUID(int=7))
TAKEN = ReportAccepted(shape=1, shape_moved=True)
FREE = Node(id=ID, provision_state="available", resource_class="gold", traits=("CUSTOM_A",))
TERMS = NodePolicy(
    cells=CellMap(default="c1", groups={"rack2": "c2"}), standard_traits=frozenset(), can_read=True
)


def a_row(node: Node = FREE, **fields: object) -> NodeRow:
    row = NodeRow(id=ID, version=5, owner="d1", epoch=2, seen_epoch=2, node=node, read_at_us=1)
    return settled(structs.replace(row, **fields), TERMS)


def report_of(row: NodeRow, *, foreign: Foreign = "leave", may_try: bool = True) -> ReportUnderWay | None:
    return reports.report_of(row, TERMS.standard_traits, foreign=foreign, may_try=may_try)


def the_report(row: NodeRow, *, foreign: Foreign = "leave", may_try: bool = True) -> ReportUnderWay:
    report = report_of(row, foreign=foreign, may_try=may_try)
    assert report is not None
    return report


def told(
    row: NodeRow, verdict: ReportVerdict = TAKEN, *, foreign: Foreign = "leave", may_try: bool = True
) -> NodeRow:
    report = the_report(row, foreign=foreign, may_try=may_try)
    after = settled(after_verdict(row, report, verdict), TERMS)
    return row if after is row else structs.replace(after, version=row.version + 1)


def test_a_free_node_is_one_of_its_class_and_numbered_by_its_row() -> None:
    said = the_report(a_row())

    assert (said.report.cell, said.report.epoch, said.report.sequence) == ("c1", 2, 11)
    (provider,) = said.report.providers
    assert provider.name == str(ID)
    assert provider.inventories == {"CUSTOM_GOLD": ReportedInventory(total=1, reserved=0, max_unit=1)}
    assert provider.traits == ("CUSTOM_A",)


Happening = Callable[[NodeRow], NodeRow]
GOLD = {"CUSTOM_GOLD": ReportedInventory(total=1, reserved=0, max_unit=1)}
RESERVED = {"CUSTOM_GOLD": ReportedInventory(total=1, reserved=1, max_unit=1)}
RESERVED_SILVER = {"CUSTOM_SILVER": ReportedInventory(total=1, reserved=1, max_unit=1)}
HELD = InventoryInUse(provider=ID, resource="CUSTOM_GOLD", used=1)
STILL_HELD = "1 of CUSTOM_GOLD is still held"


def answered(verdict: ReportVerdict = TAKEN, *, may_try: bool = True) -> Happening:
    return lambda row: told(row, verdict, may_try=may_try)


def now(**node: object) -> Happening:
    """Ironic says this of the node."""
    return lambda row: settled(structs.replace(row, node=structs.replace(row.node or FREE, **node)), TERMS)


def changed(**fields: object) -> Happening:
    return lambda row: settled(structs.replace(row, **fields), TERMS)


def facts_of(row: NodeRow) -> dict[str, object]:
    """What the row says, and what its next report does: with its trial to let go of something, and `untried`."""
    facts = structs.asdict(row) | {"needs_report": row.needs_report, "is_behind": row.is_behind}
    for when, may_try in (("", True), ("untried ", False)):
        report = report_of(row, may_try=may_try)
        facts[f"{when}report"] = report is not None
        if report is not None:
            said = report.report
            facts |= {f"{when}{name}": getattr(said, name) for name in ("removed", "sequence")}
            facts |= {f"{when}said in": said.cell, f"{when}said epoch": said.epoch}
            facts[f"{when}inventories"] = {
                name: each for one in said.providers for name, each in (one.inventories or {}).items()
            }
    return facts


CASES: dict[str, tuple[NodeRow, list[tuple[Happening, dict[str, object]]]]] = {
    "what placement took is not told again though the reasons change": (
        a_row(),
        [
            (answered(), {"report": False}),
            (now(maintenance=True), {"report": True}),
            (answered(), {"report": False}),
            (now(retired=True), {"report": False}),
        ],
    ),
    "a node is ready for its owner when it was read and reported in this epoch": (
        a_row(),
        [(answered(), {"read_epoch": 2})],
    ),
    "a node that its owner has not read yet is not ready": (
        a_row(seen_epoch=1),
        [(answered(), {"read_epoch": 0})],
    ),
    # Placement refuses the former owner's reports only if it knows the new epoch.
    "a new owner reports again what it read or what was known": (
        a_row(),
        [
            (answered(), {}),
            (lambda row: structs.replace(row, epoch=3), {"report": False}),
            (seen, {"said epoch": 3}),
        ],
    ),
    "a deleted node is removed": (
        a_row(),
        [
            (answered(), {}),
            (changed(is_deleted=True), {"inventories": {}, "removed": (ID,)}),
            (answered(), {"report": False, "is_removed": True}),
        ],
    ),
    "a deleted node that is held stays reserved and its removal is tried again": (
        a_row(),
        [
            (answered(), {}),
            (changed(is_deleted=True), {"removed": (ID,)}),
            (answered(HELD), {"untried inventories": RESERVED, "report_note": STILL_HELD}),
            (answered(may_try=False), {"removed": (ID,)}),
            (answered(), {"is_removed": True, "report_note": ""}),
        ],
    ),
    "a free node goes to another cell by a removal in the first": (
        a_row(),
        [
            (answered(), {}),
            (now(conductor_group="rack2"), {"said in": "c1", "removed": (ID,)}),
            (answered(), {"cell": "c2", "cell_wanted": "", "said in": "c2", "removed": ()}),
        ],
    ),
    "a class that is held stays beside the new one and both are reserved": (
        a_row(),
        [
            (answered(), {}),
            (now(resource_class="silver"), {}),
            (answered(HELD), {"untried inventories": RESERVED_SILVER | RESERVED}),
        ],
    ),
    "a node that moves to another cell is reserved until it is there": (
        a_row(),
        [
            (answered(), {}),
            (now(conductor_group="rack2"), {}),
            (
                answered(HELD),
                {
                    "cell": "c1",
                    "report_note": STILL_HELD,
                    "untried inventories": RESERVED,
                    "offer": Offer(
                        resource_class="CUSTOM_GOLD",
                        reserved=True,
                        traits=("CUSTOM_A",),
                        reasons=("the node moves from cell 'c1' to 'c2'",),
                    ),
                },
            ),
            (answered(may_try=False), {}),
            (
                answered(),
                {
                    "cell": "c2",
                    "report_note": "",
                    "offer": Offer(resource_class="CUSTOM_GOLD", reserved=False, traits=("CUSTOM_A",)),
                },
            ),
        ],
    ),
    "a row of a backup waits until its epoch is above that of placement": (
        a_row(),
        [
            (
                answered(ReportOutdated(epoch=7, sequence=40)),
                {"is_behind": True, "needs_report": True, "report": False},
            ),
            (lambda row: structs.replace(row, epoch=8), {"is_behind": False}),
            (seen, {"said epoch": 8}),
        ],
    ),
    "a row of a backup takes the cell in which placement has the node": (
        a_row(),
        [
            (
                answered(TreeKept(cell="c2", epoch=7, sequence=4)),
                {"cell": "c2", "cell_wanted": "c1", "is_behind": True},
            )
        ],
    ),
    "a row of a backup with the epoch of placement removes the node from that cell": (
        a_row(),
        [(answered(TreeKept(cell="c2", epoch=2, sequence=4)), {"said in": "c2", "removed": (ID,)})],
    ),
    "a provider that something else wrote is left alone and the node may be worked on": (
        a_row(),
        [
            (
                answered(TreeKept(cell="", epoch=0, sequence=0)),
                {
                    "report_note": "something else wrote its provider, in no cell: it is left alone",
                    "needs_report": False,
                    "read_epoch": 2,
                },
            )
        ],
    ),
    "why placement refuses is noted": (
        a_row(),
        [
            (
                answered(NotAllowed(field="providers[0].name", reason="it is the name of provider 9")),
                {"report_note": "providers[0].name: it is the name of provider 9", "reported": None},
            )
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_node_is_reported_as_and_what_the_answers_make_of_its_row(case: str) -> None:
    row, steps = CASES[case]
    for happening, says in steps:
        row = happening(row)
        facts = facts_of(row)
        assert {name: facts[name] for name in says} == says


def test_a_report_that_another_daemon_made_does_not_make_the_node_ready() -> None:
    assert after_verdict(a_row(epoch=3), the_report(a_row()), TAKEN).read_epoch == 0


def kept_class_of(resource_class: str | None) -> NodeRow:
    """Placement refused the change of the class, since the former one is held, and took both."""
    other = changed(node=structs.replace(FREE, resource_class=resource_class), version=6)
    return told(told(other(told(a_row())), HELD), may_try=False)


@pytest.mark.parametrize(
    ("resource_class", "inventories"),
    [
        ("silver", RESERVED_SILVER),
        (None, {}),
    ],
)
def test_a_former_class_is_dropped_as_soon_as_placement_lets_it_go(
    resource_class: str | None, inventories: dict[str, ReportedInventory]
) -> None:
    kept = kept_class_of(resource_class)
    assert kept.offer is not None
    assert (kept.offer.kept_class, kept.offer.reserved) == ("CUSTOM_GOLD", True)

    trial = the_report(kept)
    assert trial.is_trial
    assert trial.report.providers[0].inventories == inventories
    still_held = told(kept, HELD)
    assert still_held.offer == kept.offer
    assert still_held.report_note == STILL_HELD
    assert report_of(still_held, may_try=False) is None

    free = told(still_held)
    assert free.offer is not None
    assert (free.offer.kept_class, free.offer.reserved) == ("", resource_class is None)
    # The trial freed nothing: its answer may be lost, and then a node that is taken meanwhile has nothing new to say.
    assert (report_of(free) is None) == (resource_class is None)
    assert report_of(told(free) if report_of(free) else free) is None


def raised_again(row: NodeRow, foreign: Foreign = "leave") -> NodeRow:
    """Placement has a later epoch than this row, whose owner then goes above it."""
    ahead = row.epoch + 50
    behind = told(row, ReportOutdated(epoch=ahead, sequence=1), foreign=foreign)
    return structs.replace(behind, epoch=ahead + 1, seen_epoch=ahead + 1) if behind.is_behind else behind


def test_a_reporter_that_raises_its_epoch_again_and_again_keeps_the_provider() -> None:
    row = a_row()
    for _ in range(EPOCH_RAISES_MAX):
        row = raised_again(row)
        assert not row.is_foreign

    left = raised_again(row)

    assert left.is_foreign
    assert "another reporter is in epoch" in left.report_note
    assert report_of(left) is None
    assert not raised_again(row, "take").is_foreign


def test_a_provider_that_something_else_wrote_is_taken_if_an_operator_says_so() -> None:
    left = told(a_row(), TreeKept(cell="", epoch=0, sequence=0))
    report = the_report(structs.replace(left, is_foreign=False), foreign="take")
    assert report.report.foreign == "take"
    taken = after_verdict(left, report, TAKEN)
    assert (taken.is_foreign, taken.report_note) == (False, "")


@pytest.mark.parametrize("ahead", [0, 79])
def test_a_number_that_placement_has_already_is_overtaken(ahead: int) -> None:
    """Also this very one: after a backup the row's versions come again, and its report may never have been made."""
    first = the_report(a_row())

    behind = told(a_row(), ReportOutdated(epoch=2, sequence=first.report.sequence + ahead))

    assert behind.reported is None
    again = the_report(behind)
    assert again.report.sequence > first.report.sequence + ahead


def test_a_report_that_is_older_than_what_was_accepted_changes_nothing() -> None:
    old = the_report(a_row())
    newer = a_row(structs.replace(FREE, maintenance=True), version=8)
    accepted = told(newer)

    assert after_verdict(accepted, old, TAKEN) is accepted
    assert accepted.reported == accepted.offer
