"""Builds the reports about a node for placement, and applies placement's answers to the row.

A node is a tree of one provider. If Ironic deleted the node, or it moves to another cell, the daemon first tries to remove
the provider. Placement refuses this while an instance holds it; then the node stays reserved until the next trial. The daemon
tries to remove a former class in the same way. So a row may make two reports, each with its own number: first the trial,
then the offer. Placement drops a report with a number that is lower than the last one.

Placement may be ahead of the row. If it has a later epoch, the row was restored from a backup, and the owner raises its epoch.
If the tree was written by name, or its epoch is ahead repeatedly, another program writes it, and the daemon leaves it alone.
"""

from collections.abc import Set as AbstractSet
from typing import Literal, assert_never

from msgspec import Struct, structs

from bus.messages.placement import (
    InventoryInUse,
    ReportAccepted,
    ReportInventory,
    ReportOutdated,
    ReportVerdict,
    TreeKept,
)
from engine.inventories import ReportedInventory, ReportedProvider
from engine.refusals import NotAllowed
from ironic_sync.core.offers import keeping_class, without_kept_class
from ironic_sync.core.rows import NodeRow, Offer

Foreign = Literal["leave", "take"]
# A row that was restored from a backup is behind once. If placement's epoch is ahead this often, another reporter raises it.
EPOCH_RAISES_MAX = 3


class ReportUnderWay(Struct, frozen=True):
    """A report under way and its content: an offer, or None for the removal of the provider. `version` is the row's. A
    trial removes something that an instance may hold, so placement may refuse it.
    """

    report: ReportInventory
    offer: Offer | None
    version: int
    is_trial: bool = False


def report_of(
    row: NodeRow, standard_traits: AbstractSet[str], *, foreign: Foreign = "leave", may_try: bool = True
) -> ReportUnderWay | None:
    """The next report of this node; None if there is none.

    A trial is a report that removes something, so placement may refuse it. `may_try` is false if placement has just
    refused one: then only the offer is reported.

    A node that nobody owns yet is not reported: its first owner takes it at once, reads it, and reports it in its own
    epoch.
    """
    if not row.owner or not row.needs_report or row.offer is None or row.is_behind:
        return None
    if may_try and (row.is_deleted or row.cell_wanted):
        return _trial(row, None, foreign)
    if may_try and row.may_drop_class:
        # Reserved, though the node may be free: if the answer is lost, nobody knows that more than this was reported.
        without = without_kept_class(row, standard_traits)
        return _trial(row, structs.replace(without, reserved=True), foreign)
    if row.offer.says_the_same_as(row.reported):
        return None
    report = _report(row, row.offer, foreign, offer_number(row))
    return ReportUnderWay(report, row.offer, row.version)


def trial_number(row: NodeRow) -> int:
    """The sequence number of the report that is this row's trial: it tries to remove the provider or a former class.

    Placement refuses a trial while an instance holds what it removes. The number grows with the row's version.
    """
    return 2 * row.version + row.sequence_ahead


def offer_number(row: NodeRow) -> int:
    """The number of a report of the row's offer.

    It is higher than that of a trial of the same row, which placement may have refused before.
    """
    return trial_number(row) + 1


def after_verdict(row: NodeRow, sent: ReportUnderWay, verdict: ReportVerdict) -> NodeRow:
    """The row after placement's answer to a report. The row may have changed since the report was made."""
    match verdict:
        case ReportAccepted():
            return _accepted(row, sent)
        case ReportOutdated():
            return _outdated(row, sent, verdict)
        case InventoryInUse():
            return _in_use(row, sent, verdict)
        case TreeKept():
            return _kept(row, sent, verdict)
        case NotAllowed():
            return structs.replace(row, report_note=f"{verdict.field}: {verdict.reason}")
        case _:
            assert_never(verdict)


def _accepted(row: NodeRow, sent: ReportUnderWay) -> NodeRow:
    if sent.version < row.content_version:
        # The row says something else by now, and another report of it may have been accepted after this one.
        return row
    if sent.report.cell != row.cell or sent.report.sequence < row.reported_number:
        # Another daemon's report of the same node was accepted after this one.
        return row
    if sent.offer is None:
        return _removed(row, sent)
    is_known = row.seen_epoch == row.epoch == sent.report.epoch
    return structs.replace(
        row,
        reported=sent.offer,
        reported_number=sent.report.sequence,
        report_note="",
        is_removed=False,
        is_foreign=False,
        # Placement has removed the former class. Later changes of the row are applied on top of this offer.
        offer=sent.offer if sent.is_trial else row.offer,
        read_epoch=row.epoch if is_known else row.read_epoch,
    )


def _removed(row: NodeRow, sent: ReportUnderWay) -> NodeRow:
    gone = structs.replace(
        row,
        reported=None,
        reported_number=sent.report.sequence,
        report_note="",
        is_foreign=False,
    )
    if row.is_deleted:
        return structs.replace(gone, is_removed=True)
    if row.cell_wanted:
        return structs.replace(gone, cell=row.cell_wanted, cell_wanted="")
    return gone


def _outdated(row: NodeRow, sent: ReportUnderWay, verdict: ReportOutdated) -> NodeRow:
    """The row after placement refused a report, since it knows a later epoch, or the same or a later number of this
    epoch.

    If it knows such a number, the node's next report gets a higher one. The same number may be of another report:
    numbers follow from the row's version, and a row restored from a backup has versions again that it had before.
    """
    if verdict.epoch > row.epoch:
        return _behind(row, sent, verdict.epoch)
    if verdict.epoch == row.epoch and verdict.sequence >= trial_number(row):
        return structs.replace(row, sequence_ahead=verdict.sequence - 2 * row.version + 1)
    return row


def _in_use(row: NodeRow, sent: ReportUnderWay, verdict: InventoryInUse) -> NodeRow:
    if sent.offer is not None and sent.offer == row.offer:
        return structs.replace(row, offer=keeping_class(row.offer, verdict.resource))
    return structs.replace(row, report_note=f"{verdict.used} of {verdict.resource} is still held")


def _behind(row: NodeRow, sent: ReportUnderWay, epoch: int) -> NodeRow:
    """The row after placement refused its report, since placement knows a later epoch of the node.

    The owner then raises the node's epoch above that one. After too many raises it leaves the node alone, since something
    else seems to report it too. With the setting `foreign_providers = "take"` it goes on raising.
    """
    if epoch == row.epoch_ahead:
        return row
    if row.epoch_raises >= EPOCH_RAISES_MAX and sent.report.foreign != "take":
        return _left_alone(
            row, f"another reporter is in epoch {epoch}, after this one's was raised {row.epoch_raises} times"
        )
    return structs.replace(row, epoch_ahead=epoch, epoch_raises=row.epoch_raises + 1)


def _kept(row: NodeRow, sent: ReportUnderWay, verdict: TreeKept) -> NodeRow:
    if not verdict.epoch:
        where = f"in cell {verdict.cell!r}" if verdict.cell else "in no cell"
        return _left_alone(row, f"something else wrote its provider, {where}")
    # Only daemons like this one have epochs: the row was restored from a backup, and the node was in another cell since.
    known = structs.replace(row, cell=verdict.cell, reported=None)
    return _behind(known, sent, verdict.epoch) if verdict.epoch > row.epoch else known


def _left_alone(row: NodeRow, why: str) -> NodeRow:
    """The row of a node whose provider another program keeps: the node is not reported. An owner that has read it may
    still work on it.
    """
    is_known = row.seen_epoch == row.epoch
    return structs.replace(
        row,
        is_foreign=True,
        report_note=f"{why}: it is left alone",
        read_epoch=row.epoch if is_known else row.read_epoch,
    )


def _trial(row: NodeRow, offer: Offer | None, foreign: Foreign) -> ReportUnderWay:
    return ReportUnderWay(_report(row, offer, foreign, trial_number(row)), offer, row.version, is_trial=True)


def _report(row: NodeRow, offer: Offer | None, foreign: Foreign, number: int) -> ReportInventory:
    return ReportInventory(
        cell=row.cell,
        root=row.id,
        providers=() if offer is None else (_provider(row, offer),),
        removed=(row.id,) if offer is None else (),
        epoch=row.epoch,
        sequence=number,
        foreign=foreign,
    )


def _provider(row: NodeRow, offer: Offer) -> ReportedProvider:
    classes: dict[str, Literal[0, 1]] = {}
    if offer.resource_class:
        classes[offer.resource_class] = 1 if offer.reserved else 0
    if offer.kept_class:
        classes[offer.kept_class] = 1
    return ReportedProvider(
        id=row.id,
        name=str(row.id),
        inventories={
            name: ReportedInventory(total=1, reserved=reserved, max_unit=1)
            for name, reserved in classes.items()
        },
        traits=offer.traits,
        place=offer.place,
    )
