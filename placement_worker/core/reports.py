"""May a provider tree become what an inventory report says?

The reports of a batch are judged one after another, each on the forest as the earlier ones left it. A report may not undo
a later report, reach into another cell or tree, or take away what consumers hold.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from bus.messages.placement import (
    InventoryInUse,
    ReportAccepted,
    ReportInventory,
    ReportOutdated,
    ReportVerdict,
    TreeKept,
)
from engine.inventories import CUSTOM, ProviderId, ReportedInventory, ReportedProvider, Vocabulary
from engine.refusals import NotAllowed
from placement_worker.core.forest import (
    ForestDraft,
    Providers,
    depths_under,
    is_same_to_claims,
    lost_inventory,
    with_usage,
)
from placement_worker.core.ledger import (
    BatchDecision,
    Forest,
    ForestKeys,
    ProviderBook,
    Sent,
    TreeBook,
    TreeChanges,
)

# As long as Placement's API allows.
NAME_MAX = 200


def keys_of_reports(reports: Sequence[ReportInventory]) -> ForestKeys:
    """What must be locked and read to judge these reports. Custom classes and traits need no look: a report creates its own."""
    return ForestKeys(
        trees=frozenset(report.root for report in reports),
        providers=frozenset(provider for report in reports for provider in _providers_in(report)),
        names=frozenset(one.name for report in reports for one in report.providers),
    )


def _providers_in(report: ReportInventory) -> Iterator[ProviderId]:
    yield from report.removed
    for one in report.providers:
        yield one.id
        if one.parent is not None:
            yield one.parent


def decide_reports(
    forest: Forest, reports: Sequence[Sent[ReportInventory]], vocabulary: Vocabulary
) -> BatchDecision[ReportVerdict, TreeChanges]:
    """Judge each report on the forest as the earlier reports of the batch left it."""
    draft = ForestDraft(forest)
    verdicts = tuple([judge_report(draft, one, vocabulary) for one in reports])
    return BatchDecision(verdicts, draft.changes())


def judge_report(
    draft: ForestDraft, reported: Sent[ReportInventory], vocabulary: Vocabulary
) -> ReportVerdict:
    """Judge one report. If it is accepted, the draft changes."""
    report = reported.order
    tree = _found(draft, reported)
    refused = (
        _kept(tree, report)
        or _wrong_cell(tree, reported)
        or _outdated(tree, report)
        or report_problem(report, vocabulary)
        or _strayed(draft, report)
    )
    if refused:
        return refused
    report = _with_free_names(draft, _with_leftovers(tree, report))
    providers = reported_tree(tree.providers, report)
    flawed = (
        flaw_of(providers, report)
        or _name_taken(draft, report, providers)
        or lost_in_tree(tree.providers, providers)
    )
    if flawed:
        return flawed
    moved = _is_moved(tree, providers) or _changes_cell(draft, tree)
    after = TreeBook(
        root=tree.root,
        cell=tree.cell,
        shape=tree.shape + moved,
        epoch=report.epoch,
        # Reports without a number come in any order, and must not reset the number of those that have one.
        sequence=report.sequence or (tree.sequence if report.epoch == tree.epoch else 0),
        providers=providers,
    )
    draft.replace_tree(after, numbered_across_cells=bool(report.foreign))
    return ReportAccepted(shape=after.shape, shape_moved=moved)


def _found(draft: ForestDraft, reported: Sent[ReportInventory]) -> TreeBook:
    """The tree that the report changes: the one under its root, or an empty one. A tree or tombstone that the report may
    take over gets the report's cell.
    """
    report = reported.order
    tree = draft.trees.get(report.root)
    if tree is None:
        return TreeBook(root=report.root, cell=report.cell)
    if _may_take(tree, reported):
        # With the tree, the reporter takes over what was written by name.
        taken = {one.id: structs.replace(one, made_by_name=False) for one in tree.providers.values()}
        return structs.replace(tree, cell=report.cell, providers=taken)
    if tree.providers or tree.cell == report.cell:
        return tree
    if report.foreign:
        # This reporter serves all cells and numbers its reports across them: a late one must not undo what came after it.
        return structs.replace(tree, cell=report.cell)
    # A host that comes back in another cell has another reporter, which numbers its reports anew.
    return TreeBook(root=tree.root, cell=report.cell, shape=tree.shape)


def _may_take(tree: TreeBook, reported: Sent[ReportInventory]) -> bool:
    """May the report take over a tree that was written by name and never reported? A sender that acts for one cell may not
    take over a tree without a cell: otherwise a cell could take what belongs to the API level.
    """
    report = reported.order
    return (
        report.foreign == "take"
        and bool(tree.providers)
        and _was_never_reported(tree)
        and (tree.cell == report.cell or (not tree.cell and reported.speaks_for is None))
    )


def _was_never_reported(tree: TreeBook) -> bool:
    return (tree.epoch, tree.sequence) == (0, 0)


def _kept(tree: TreeBook, report: ReportInventory) -> TreeKept | None:
    """The refusal of a report that must leave this tree to what keeps it; None otherwise.

    Only reports with `foreign` are refused here: if the tree is in another cell, or if it was written by name, never
    reported, and `foreign` is `leave`.
    """
    if not report.foreign or not tree.providers:
        return None
    is_written = _was_never_reported(tree) and report.foreign == "leave"
    if tree.cell == report.cell and not is_written:
        return None
    return TreeKept(cell=tree.cell, epoch=tree.epoch, sequence=tree.sequence)


def _changes_cell(draft: ForestDraft, tree: TreeBook) -> bool:
    stored = draft.trees.get(tree.root)
    return stored is not None and bool(stored.providers) and stored.cell != tree.cell


def _wrong_cell(tree: TreeBook, reported: Sent[ReportInventory]) -> NotAllowed | None:
    cell = reported.order.cell
    if reported.speaks_for is not None and reported.speaks_for != cell:
        return NotAllowed(
            field="cell", reason=f"the sender may act for cell {reported.speaks_for!r}, not for {cell!r}"
        )
    if tree.cell != cell:
        return NotAllowed(
            field="cell", reason=f"the tree of {tree.root} is of cell {tree.cell!r}, not of {cell!r}"
        )
    return None


def _outdated(tree: TreeBook, report: ReportInventory) -> ReportOutdated | None:
    """The refusal of a report if a later one, or this one, was accepted already; None otherwise."""
    is_repeated = report.epoch == tree.epoch and 0 < report.sequence <= tree.sequence
    if report.epoch < tree.epoch or is_repeated:
        return ReportOutdated(epoch=tree.epoch, sequence=tree.sequence)
    return None


def _strayed(draft: ForestDraft, report: ReportInventory) -> NotAllowed | None:
    """The first provider of the report that is in another tree. Reports cannot move providers between trees."""
    named = [
        ("root", report.root),
        *[(f"providers[{position}].id", one.id) for position, one in enumerate(report.providers)],
        *[(f"removed[{position}]", one) for position, one in enumerate(report.removed)],
    ]
    for field, provider in named:
        root = draft.root_of.get(provider, report.root)
        if root != report.root:
            return NotAllowed(field=field, reason=f"provider {provider} is in the tree of {root}")
    return None


def _with_leftovers(tree: TreeBook, report: ReportInventory) -> ReportInventory:
    """A whole report with everything in `removed` that an earlier report named, and this one does not."""
    if not report.whole:
        return report
    own = tree.providers
    named = {*[one.id for one in report.providers], *report.removed}
    gone = dict.fromkeys(one for one, book in own.items() if not book.made_by_name and one not in named)
    for book in own.values():
        # What was made by name stays, and so does everything above it, up to a provider that the report names.
        above = book.parent if book.made_by_name and book.id not in named else None
        while above is not None and above in gone:
            del gone[above]
            above = own[above].parent
    return structs.replace(report, removed=(*report.removed, *gone)) if gone else report


def _with_free_names(draft: ForestDraft, report: ReportInventory) -> ReportInventory:
    """The report with other names for providers whose names belong to providers of other cells.

    A name counts only inside its cell, and whichever cell is first must not keep the other's host out. But Placement's
    API knows no cells, and its names are unique: so the provider is called after its id, too, until the name is free.
    """
    providers = tuple(
        structs.replace(one, name=name_with_id(one.name, one.id))
        if (bearer := draft.owner_of_name.get(one.name, one.id)) != one.id
        and draft.cell_of(bearer) not in ("", report.cell)
        else one
        for one in report.providers
    )
    return report if providers == report.providers else structs.replace(report, providers=providers)


def name_with_id(name: str, provider: ProviderId) -> str:
    return f"{name[: NAME_MAX - len(str(provider)) - 1]}/{provider}"


def _name_taken(
    draft: ForestDraft, report: ReportInventory, providers: dict[ProviderId, ProviderBook]
) -> NotAllowed | None:
    """The first name that two providers would have. Within one report, a name may move to another provider."""
    bearers: dict[str, ProviderId] = {}
    reported = {one.id for one in report.providers}
    # Providers that keep their names come first, so that the refusal names the provider that asked for the name.
    for book in providers.values():
        if book.id not in reported:
            bearers[book.name] = book.id
    for position, one in enumerate(report.providers):
        bearer = bearers.setdefault(one.name, one.id)
        outside = draft.owner_of_name.get(one.name, one.id)
        if bearer == one.id and draft.root_of.get(outside) != report.root:
            bearer = outside
        if bearer != one.id:
            return NotAllowed(
                field=f"providers[{position}].name", reason=f"{one.name!r} is the name of provider {bearer}"
            )
    return None


def _is_moved(tree: TreeBook, providers: dict[ProviderId, ProviderBook]) -> bool:
    return tree.providers.keys() != providers.keys() or any(
        not is_same_to_claims(book, providers[book.id]) for book in tree.providers.values()
    )


# The provider tree as an inventory report changes it, and whether the result is a valid tree.
#
# The new tree is built beside the current one and checked as a whole. So a report is accepted or refused as a whole, and
# a report may name its providers in any order.


def reported_tree(standing: Providers, report: ReportInventory) -> dict[ProviderId, ProviderBook]:
    """The tree's providers after the report. A provider that the report does not change stays the same object."""
    providers = dict(standing)
    for reported in report.providers:
        providers[reported.id] = _rewritten(standing.get(reported.id), reported)
    for removed in report.removed:
        providers.pop(removed, None)
    return providers


def flaw_of(providers: Providers, report: ReportInventory) -> NotAllowed | None:
    """Why these providers do not form one tree under the report's root. None if they do, or if there are no providers."""
    if not providers:
        return None
    if report.root not in providers:
        return NotAllowed(
            field="root",
            reason=f"provider {report.root} would be missing from its own tree: it neither exists nor is reported, "
            "or it is removed while others stay",
        )
    return next(_flaws(providers, report), None)


def lost_in_tree(standing: Providers, providers: Providers) -> InventoryInUse | None:
    """The refusal of a report that would remove an inventory in use, for the first one. A smaller inventory is no loss."""
    kept = {provider: book.inventories for provider, book in providers.items()}
    losses = (lost_inventory(book, kept.get(book.id, ())) for book in standing.values())
    return next(filter(None, losses), None)


def _rewritten(book: ProviderBook | None, reported: ReportedProvider) -> ProviderBook:
    old = book or ProviderBook(id=reported.id, name=reported.name)
    new = structs.replace(
        old if reported.inventories is None else _restocked(old, reported.inventories),
        name=reported.name,
        parent=old.parent if reported.parent is None else reported.parent,
        traits=old.traits if reported.traits is None else frozenset(reported.traits),
        aggregates=(old.aggregates if reported.aggregates is None else frozenset(reported.aggregates)).union(
            reported.joins
        ),
        reported_place=old.reported_place if reported.place is None else reported.place,
    )
    if book and new.name == book.name and is_same_to_claims(new, book):
        # Nothing visible changed, even if a trait that an operator set is now also the reporter's.
        return new
    return structs.replace(new, generation=old.generation + 1)


def _restocked(old: ProviderBook, reported: Mapping[str, ReportedInventory]) -> ProviderBook:
    """The provider with the reported inventories, and no others: from now on it is its reporter's."""
    inventories = {
        name: with_usage(old.inventories.get(name), inventory) for name, inventory in reported.items()
    }
    return structs.replace(old, inventories=inventories, made_by_name=False)


def _flaws(providers: Providers, report: ReportInventory) -> Iterator[NotAllowed]:
    for position, reported in enumerate(report.providers):
        parent = providers[reported.id].parent
        field = f"providers[{position}].parent"
        if reported.id == report.root:
            if parent is not None:
                yield NotAllowed(field=field, reason=f"provider {reported.id} is the root, and has no parent")
        elif parent is None:
            yield NotAllowed(
                field=field, reason=f"provider {reported.id} is not the root, and needs a parent"
            )
        elif parent not in providers:
            yield NotAllowed(
                field=field, reason=f"provider {parent} is neither in the tree of {report.root} nor reported"
            )
    removed = {provider: position for position, provider in enumerate(report.removed)}
    for book in providers.values():
        if book.parent in removed:
            yield NotAllowed(
                field=f"removed[{removed[book.parent]}]",
                reason=f"provider {book.parent} still has a child, {book.id}",
            )
    under_root = depths_under(report.root, providers)
    for position, reported in enumerate(report.providers):
        if reported.id not in under_root:
            yield NotAllowed(
                field=f"providers[{position}].parent",
                reason=f"provider {reported.id} would be below itself, not below the root",
            )


# Is an inventory report valid, whatever is stored?


def report_problem(report: ReportInventory, vocabulary: Vocabulary) -> NotAllowed | None:
    """The first error in an inventory report that makes it invalid, whatever is stored; None if there is none."""
    return next(_nonsense(report, vocabulary), None)


def _nonsense(report: ReportInventory, vocabulary: Vocabulary) -> Iterator[NotAllowed]:
    named = set()
    for position, provider in enumerate(report.providers):
        if provider.id in named:
            yield NotAllowed(
                field=f"providers[{position}].id", reason=f"provider {provider.id} is reported twice"
            )
        named.add(provider.id)
        if provider.place and provider.id != report.root:
            yield NotAllowed(
                field=f"providers[{position}].place",
                reason=f"provider {provider.id} is below {report.root}, and only a root has a place",
            )
        yield from _nonsense_about(provider, f"providers[{position}]", vocabulary)
    for position, removed in enumerate(report.removed):
        if removed in named:
            yield NotAllowed(
                field=f"removed[{position}]",
                reason=f"provider {removed} is to be removed, but the report also names it elsewhere",
            )
        named.add(removed)


def _nonsense_about(provider: ReportedProvider, at: str, vocabulary: Vocabulary) -> Iterator[NotAllowed]:
    for resource, inventory in (provider.inventories or {}).items():
        field = f"{at}.inventories.{resource}"
        if not vocabulary.knows_class(resource):
            yield NotAllowed(
                field=field,
                reason=f"resource class {resource!r} is neither a standard one nor starts with {CUSTOM}",
            )
        if reason := _disagreement(inventory):
            yield NotAllowed(field=field, reason=reason)
    for position, trait in enumerate(provider.traits or ()):
        if not vocabulary.knows_trait(trait):
            yield NotAllowed(
                field=f"{at}.traits[{position}]",
                reason=f"trait {trait!r} is neither a standard one nor starts with {CUSTOM}",
            )


def _disagreement(inventory: ReportedInventory) -> str:
    if inventory.reserved > inventory.total:
        return f"reserved is {inventory.reserved}, more than the total of {inventory.total}"
    if inventory.min_unit > inventory.max_unit:
        return f"min_unit is {inventory.min_unit}, more than the max_unit of {inventory.max_unit}"
    return ""
