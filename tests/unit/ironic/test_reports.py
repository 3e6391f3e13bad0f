"""What placement is told of a node, and what its answers make of the row."""

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


def test_what_placement_took_is_not_told_again_though_the_reasons_change() -> None:
    row = told(a_row())

    assert report_of(row) is None
    busy = settled(structs.replace(row, node=structs.replace(FREE, maintenance=True)), TERMS)
    assert report_of(busy) is not None
    noted = told(busy)
    retired = settled(structs.replace(noted, node=structs.replace(noted.node or FREE, retired=True)), TERMS)
    assert retired.offer != noted.offer
    assert report_of(retired) is None


def test_a_node_is_ready_for_its_owner_when_it_was_read_and_reported_in_this_epoch() -> None:
    assert told(a_row()).read_epoch == 2
    # Another daemon has it since the report was made.
    report = the_report(a_row())
    moved = a_row(epoch=3)
    assert after_verdict(moved, report, TAKEN).read_epoch == 0
    # Its owner has not read it yet.
    assert told(a_row(seen_epoch=1)).read_epoch == 0


def test_a_new_owner_reports_again_what_it_read_or_what_was_known_so_that_placement_knows_the_epoch() -> None:
    """Placement refuses the former owner's reports only if it knows the new epoch."""
    row = structs.replace(told(a_row()), epoch=3)

    assert report_of(row) is None
    mine = seen(row)
    again = the_report(mine)
    assert again.report.epoch == 3
    assert seen(mine) is mine


def test_a_deleted_node_is_removed_and_one_that_is_held_stays_reserved() -> None:
    known = told(a_row())
    deleted = settled(structs.replace(known, is_deleted=True), TERMS)
    removal = the_report(deleted)
    assert (removal.report.providers, removal.report.removed) == ((), (ID,))
    assert report_of(told(deleted)) is None

    held = told(deleted, InventoryInUse(provider=ID, resource="CUSTOM_GOLD", used=1))
    reserved = the_report(held, may_try=False)
    (provider,) = reserved.report.providers
    assert provider.inventories == {"CUSTOM_GOLD": ReportedInventory(total=1, reserved=1, max_unit=1)}
    # And its removal is tried again.
    again = the_report(told(held, may_try=False))
    assert again.report.removed == (ID,)
    assert held.report_note == "1 of CUSTOM_GOLD is still held"
    gone = told(held)
    assert (gone.is_removed, gone.report_note) == (True, "")


def test_a_free_node_goes_to_another_cell_by_a_removal_in_the_first() -> None:
    known = told(a_row())
    moving = settled(structs.replace(known, node=structs.replace(FREE, conductor_group="rack2")), TERMS)
    removal = the_report(moving)
    assert (removal.report.cell, removal.report.removed) == ("c1", (ID,))
    there = told(moving)
    assert (there.cell, there.cell_wanted) == ("c2", "")
    report = the_report(there)
    assert (report.report.cell, report.report.removed) == ("c2", ())


def test_a_class_that_is_held_stays_beside_the_new_one_and_both_are_reserved() -> None:
    known = told(a_row())
    other = settled(structs.replace(known, node=structs.replace(FREE, resource_class="silver")), TERMS)
    kept = told(other, InventoryInUse(provider=ID, resource="CUSTOM_GOLD", used=1))
    report = the_report(kept, may_try=False)
    (provider,) = report.report.providers
    assert provider.inventories == {
        "CUSTOM_SILVER": ReportedInventory(total=1, reserved=1, max_unit=1),
        "CUSTOM_GOLD": ReportedInventory(total=1, reserved=1, max_unit=1),
    }


def kept_class_of(resource_class: str | None) -> NodeRow:
    """Placement refused the change of the class, since the former one is held, and took both."""
    known = told(a_row())
    other = settled(
        structs.replace(known, node=structs.replace(FREE, resource_class=resource_class), version=6), TERMS
    )
    return told(told(other, HELD), may_try=False)


HELD = InventoryInUse(provider=ID, resource="CUSTOM_GOLD", used=1)


@pytest.mark.parametrize(
    ("resource_class", "inventories"),
    [
        ("silver", {"CUSTOM_SILVER": ReportedInventory(total=1, reserved=1, max_unit=1)}),
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
    assert still_held.report_note == "1 of CUSTOM_GOLD is still held"
    assert report_of(still_held, may_try=False) is None

    free = told(still_held)
    assert free.offer is not None
    assert (free.offer.kept_class, free.offer.reserved) == ("", resource_class is None)
    # The trial freed nothing: its answer may be lost, and then a node that is taken meanwhile has nothing new to say.
    assert (report_of(free) is None) == (resource_class is None)
    assert report_of(told(free) if report_of(free) else free) is None


def test_a_node_that_moves_to_another_cell_is_reserved_until_it_is_there() -> None:
    known = told(a_row())
    moving = settled(structs.replace(known, node=structs.replace(FREE, conductor_group="rack2")), TERMS)
    held = told(moving, HELD)
    assert held.cell == "c1"
    assert held.report_note == "1 of CUSTOM_GOLD is still held"
    stays = the_report(held, may_try=False)
    assert stays.report.providers[0].inventories == {
        "CUSTOM_GOLD": ReportedInventory(total=1, reserved=1, max_unit=1)
    }
    assert held.offer is not None
    assert held.offer.reasons == ("the node moves from cell 'c1' to 'c2'",)

    there = told(told(held, may_try=False))

    assert (there.cell, there.report_note) == ("c2", "")
    assert there.offer == Offer(resource_class="CUSTOM_GOLD", reserved=False, traits=("CUSTOM_A",))


def test_a_row_of_a_backup_waits_until_its_epoch_is_above_that_of_placement() -> None:
    behind = told(a_row(), ReportOutdated(epoch=7, sequence=40))

    assert behind.is_behind
    assert behind.needs_report
    assert report_of(behind) is None
    raised = structs.replace(behind, epoch=8)
    assert not raised.is_behind
    again = the_report(seen(raised))
    assert again.report.epoch == 8


def test_a_row_of_a_backup_takes_the_cell_in_which_placement_has_the_node() -> None:
    behind = told(a_row(), TreeKept(cell="c2", epoch=7, sequence=4))

    assert (behind.cell, behind.cell_wanted) == ("c2", "c1")
    assert behind.is_behind
    same_epoch = told(a_row(), TreeKept(cell="c2", epoch=2, sequence=4))
    removal = the_report(same_epoch)
    assert (removal.report.cell, removal.report.removed) == ("c2", (ID,))


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


def test_a_provider_that_something_else_wrote_is_left_alone_and_the_node_may_be_worked_on() -> None:
    left = told(a_row(), TreeKept(cell="", epoch=0, sequence=0))

    assert left.report_note == "something else wrote its provider, in no cell: it is left alone"
    assert (left.needs_report, left.read_epoch) == (False, 2)
    tried = structs.replace(left, is_foreign=False)
    report = the_report(tried, foreign="take")
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


def test_why_placement_refuses_is_noted() -> None:
    row = told(a_row(), NotAllowed(field="providers[0].name", reason="it is the name of provider 9"))

    assert row.report_note == "providers[0].name: it is the name of provider 9"
    assert row.reported is None
