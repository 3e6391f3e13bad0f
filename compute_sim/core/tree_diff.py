"""Diff between the tree that placement last accepted and the current one, and what placement's answer means.

A report names only providers that differ from the accepted tree. A refused report was not accepted, so its changes are
part of the next diff too, when something else changes.
"""

from msgspec import Struct

from bus.messages.placement import (
    InventoryInUse,
    ReportAccepted,
    ReportedProvider,
    ReportInventory,
    ReportOutdated,
    ReportVerdict,
)
from compute_sim.core.tree import ProviderTree, TreeProvider


class ReportState(Struct, frozen=True):
    """The reporting state of one host: the accepted tree, and the sequence of the last report."""

    accepted: ProviderTree
    sequence: int


class Accepted(Struct, frozen=True):
    """Placement has accepted the report; this is the new state."""

    reporting: ReportState


class MustReportAll(Struct, frozen=True):
    """Placement has refused the report, since another reporter has sent a later one about this tree.

    What placement has of the tree is then unknown. So the next report names every provider, and has a higher sequence
    than the other reporter's.
    """

    reporting: ReportState


class MustReshape(Struct, frozen=True):
    """Placement refused the report, since consumers hold something of an inventory that the tree has no more."""

    reason: str


class ReportRefused(Struct, frozen=True):
    """Placement refused the report. A repeated report would be refused too, until something changes."""

    reason: str


def report_of_changes(
    reporting: ReportState, tree: ProviderTree, cell: str, sequence: int
) -> ReportInventory | None:
    """The report that turns the accepted tree into the current one; None if they are equal."""
    before, after = reporting.accepted.providers, tree.providers
    reported = {id_: _reported(each) for id_, each in before.items()}
    named = [_reported(each) for each in _from_the_root(tree)]
    changed = tuple([each for each in named if reported.get(each.id) != each])
    removed = [id_ for id_ in before if id_ not in after]
    if not changed and not removed:
        return None
    return ReportInventory(
        cell=cell,
        root=tree.root,
        providers=changed,
        removed=tuple(removed),
        sequence=max(sequence, reporting.sequence + 1),
        # What placement has is unknown: an earlier process may have reported other providers.
        whole=not before,
    )


def whole_report(tree: ProviderTree, cell: str, sequence: int) -> ReportInventory:
    """The report of all providers of a tree, whatever placement has."""
    return ReportInventory(
        cell=cell,
        root=tree.root,
        providers=tuple([_reported(each) for each in _from_the_root(tree)]),
        sequence=sequence,
        whole=True,
    )


def after_answer(
    report: ReportInventory, tree: ProviderTree, verdict: ReportVerdict
) -> Accepted | MustReportAll | MustReshape | ReportRefused:
    """What placement's verdict on a report of this tree means: the new reporting state of the host, or the refusal."""
    match verdict:
        case ReportAccepted():
            return Accepted(ReportState(tree, report.sequence))
        case ReportOutdated(epoch=0, sequence=sequence) if sequence <= report.sequence:
            # The report itself was accepted before, and that answer was lost.
            return Accepted(ReportState(tree, report.sequence))
        case ReportOutdated(epoch=0, sequence=sequence):
            return MustReportAll(ReportState(ProviderTree(tree.root), sequence))
        case InventoryInUse(provider=provider, resource=resource, used=used):
            return MustReshape(
                f"{used} {resource} of provider {provider} are in use, and the new tree has none there"
            )
        case _:
            return ReportRefused(str(verdict))


def _from_the_root(tree: ProviderTree) -> list[TreeProvider]:
    """The providers sorted so that parents come before their children."""
    own = tree.providers

    def depth(provider: TreeProvider) -> int:
        above = provider.parent
        steps = 0
        while above is not None and above in own:
            above, steps = own[above].parent, steps + 1
        return steps

    return sorted(own.values(), key=depth)


def _reported(provider: TreeProvider) -> ReportedProvider:
    return ReportedProvider(
        id=provider.id,
        name=provider.name,
        parent=provider.parent,
        inventories=dict(provider.inventories),
        traits=tuple(sorted(provider.traits)),
        aggregates=None if provider.aggregates is None else tuple(sorted(provider.aggregates)),
        joins=tuple(sorted(provider.joins)),
    )
