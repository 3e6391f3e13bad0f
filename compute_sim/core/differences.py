"""What is to be told placement of a tree, and what to make of its answer.

Only providers that differ from what placement last took are named. What it refused it did not take, and so it is in the
next difference too, whenever the next change makes one.
"""

from msgspec import Struct

from bus.messages.placement import (
    ReportAccepted,
    ReportedProvider,
    ReportInventory,
    ReportOutdated,
    ReportVerdict,
)
from compute_sim.core.tree import ProviderTree, TreeProvider


class Reporting(Struct, frozen=True):
    """How far one host has come with its reports: what was taken, and the number of the last report that was sent."""

    taken: ProviderTree
    sequence: int


class Taken(Struct, frozen=True):
    """Placement has it, and this is where the host stands now."""

    reporting: Reporting


class Unknown(Struct, frozen=True):
    """Somebody else has reported this tree since: it must be told whole, under a higher number."""

    reporting: Reporting


class Refused(Struct, frozen=True):
    """Not taken. It would be refused again until something changes."""

    reason: str


def difference(reporting: Reporting, tree: ProviderTree, cell: str, sequence: int) -> ReportInventory | None:
    """The report that makes of what was taken what the tree is; None if that is the same."""
    before, after = reporting.taken.own, tree.own
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
    )


def after_answer(
    report: ReportInventory, tree: ProviderTree, verdict: ReportVerdict
) -> Taken | Unknown | Refused:
    """What the answer to a report of this tree means."""
    match verdict:
        case ReportAccepted():
            return Taken(Reporting(tree, report.sequence))
        case ReportOutdated(epoch=0, sequence=sequence) if sequence <= report.sequence:
            # Its own echo: it was taken, and the answer was lost.
            return Taken(Reporting(tree, report.sequence))
        case ReportOutdated(epoch=0, sequence=sequence):
            return Unknown(Reporting(ProviderTree(tree.root), sequence))
        case _:
            return Refused(str(verdict))


def _from_the_root(tree: ProviderTree) -> list[TreeProvider]:
    """Parents before their children, whatever order the driver made them in."""
    own = tree.own

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
    )
