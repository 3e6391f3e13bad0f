"""What placement is told of a node, and what its answer means.

A node is a tree of one provider. A node that Ironic deleted, or that goes to another cell, is first removed; placement
refuses that while an instance holds it, and then the node stays, reserved, until it is tried again.
"""

from typing import Literal, assert_never

from msgspec import Struct, structs

from bus.messages.placement import (
    InventoryInUse,
    NotAllowed,
    ReportAccepted,
    ReportedInventory,
    ReportedProvider,
    ReportInventory,
    ReportOutdated,
    ReportVerdict,
)
from ironic_sync.core.offers import keeping_class
from ironic_sync.core.rows import NodeRow, Offer


class Told(Struct, frozen=True):
    """A report under way, and what it says: an offer, or None for the removal of the provider."""

    report: ReportInventory
    offer: Offer | None


def report_of(row: NodeRow, *, may_remove: bool = True) -> Told | None:
    """The next report of this node; None if placement knows all. With `may_remove` false a removal was just refused."""
    if not row.needs_report or row.offer is None:
        return None
    if may_remove and (row.is_deleted or row.cell_wanted):
        return Told(_report(row, None), None)
    return None if row.offer.says_the_same_as(row.reported) else Told(_report(row, row.offer), row.offer)


def after_verdict(row: NodeRow, told: Told, verdict: ReportVerdict) -> NodeRow:
    """The row after placement's answer to a report. The row may have changed since the report was made."""
    match verdict:
        case ReportAccepted():
            return _accepted(row, told)
        case ReportOutdated():
            return _outdated(row, told, verdict)
        case InventoryInUse():
            return _in_use(row, told, verdict)
        case NotAllowed():
            return structs.replace(row, report_note=f"{verdict.field}: {verdict.reason}")
        case _:
            assert_never(verdict)


def _accepted(row: NodeRow, told: Told) -> NodeRow:
    if told.offer is None:
        return _removed(row, told)
    if told.report.cell != row.cell or told.report.sequence < row.reported_version:
        # Another daemon's report of the same node was accepted after this one.
        return row
    is_known = row.seen_epoch == row.epoch == told.report.epoch
    return structs.replace(
        row,
        reported=told.offer,
        reported_version=told.report.sequence,
        report_note="",
        is_removed=False,
        read_epoch=row.epoch if is_known else row.read_epoch,
    )


def _removed(row: NodeRow, told: Told) -> NodeRow:
    if told.report.cell != row.cell:
        return row
    gone = structs.replace(row, reported=None, reported_version=told.report.sequence, report_note="")
    if row.is_deleted:
        return structs.replace(gone, is_removed=True)
    if row.cell_wanted:
        return structs.replace(gone, cell=row.cell_wanted, cell_wanted="", cell_note="")
    return gone


def _outdated(row: NodeRow, told: Told, verdict: ReportOutdated) -> NodeRow:
    if (verdict.epoch, verdict.sequence) == (told.report.epoch, told.report.sequence):
        # It was accepted before, and the answer was lost.
        return _accepted(row, told)
    if verdict.epoch == row.epoch and verdict.sequence >= _sequence(row):
        return structs.replace(row, sequence_ahead=verdict.sequence - row.version + 1)
    return row


def _in_use(row: NodeRow, told: Told, verdict: InventoryInUse) -> NodeRow:
    if told.offer is not None and told.offer == row.offer:
        return structs.replace(row, offer=keeping_class(row, row.offer))
    return structs.replace(row, report_note=f"{verdict.used} of {verdict.resource} is still held")


def _report(row: NodeRow, offer: Offer | None) -> ReportInventory:
    return ReportInventory(
        cell=row.cell,
        root=row.id,
        providers=() if offer is None else (_provider(row, offer),),
        removed=(row.id,) if offer is None else (),
        epoch=row.epoch,
        sequence=_sequence(row),
    )


def _sequence(row: NodeRow) -> int:
    return row.version + row.sequence_ahead


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
    )
