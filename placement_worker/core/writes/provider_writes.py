"""Administrators' writes of providers: may they be written, and what do the trees become?

The writes of a batch are judged one after another, each on the forest as the earlier ones left it. Generations move as in
Placement's API: with each write of inventories, with traits only if they change, never with a name or a parent. Shapes
move when something changes that claims may rely on.
"""

from collections.abc import Iterable, Sequence

from msgspec import UNSET, structs

from bus.message import ProviderId
from bus.messages.administration import (
    CreateProvider,
    DeleteProvider,
    Done,
    DropInventory,
    HasChildren,
    IdTaken,
    NameTaken,
    ProviderWrite,
    PutInventory,
    SetAggregates,
    SetInventories,
    SetTraits,
    UnknownProvider,
    UpdateProvider,
    WriteVerdict,
)
from bus.messages.placement import NotAllowed
from placement_worker.core.apply_report import depths_under, lost_inventory
from placement_worker.core.drafts.forest_draft import ForestDraft
from placement_worker.core.ledger import BatchDecision, Forest, ForestKeys, ProviderBook, TreeChanges
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.core.writes.provider_contents import (
    write_contents,
    written,
)


def keys_of_provider_writes(writes: Iterable[ProviderWrite]) -> ForestKeys:
    """The trees, names, classes and traits that must be locked and read to judge these writes."""
    trees: set[ProviderId] = set()
    names: set[str] = set()
    classes: set[str] = set()
    traits: set[str] = set()
    for write in writes:
        match write:
            case (
                CreateProvider(id=provider, name=name, parent=parent)
                | UpdateProvider(id=provider, name=name, parent=parent)
            ):
                trees.add(provider)
                names.add(name)
                if parent is not None and parent is not UNSET:
                    trees.add(parent)
            case DeleteProvider(id=provider) | SetAggregates(provider=provider):
                trees.add(provider)
            case SetInventories(provider=provider, inventories=inventories):
                trees.add(provider)
                classes |= (inventories or {}).keys()
            case (
                PutInventory(provider=provider, resource=resource)
                | DropInventory(provider=provider, resource=resource)
            ):
                trees.add(provider)
                classes.add(resource)
            case SetTraits(provider=provider):
                trees.add(provider)
                traits.update(write.traits)
    return ForestKeys(
        trees=frozenset(trees),
        names=frozenset(names),
        classes=frozenset(classes),
        traits=frozenset(traits),
    )


def decide_provider_writes(
    forest: Forest, writes: Sequence[ProviderWrite], vocabulary: Vocabulary
) -> BatchDecision[WriteVerdict, TreeChanges]:
    """Judge each write on the forest as the earlier writes of the batch left it."""
    draft = ForestDraft(forest)
    verdicts = tuple([_judge(draft, vocabulary, write) for write in writes])
    return BatchDecision(verdicts, draft.changes())


def _judge(draft: ForestDraft, standard: Vocabulary, write: ProviderWrite) -> WriteVerdict:
    match write:
        case CreateProvider():
            return _create(draft, write)
        case UpdateProvider():
            book = _book(draft, write.id)
            return _update(draft, book, write) if book else UnknownProvider(provider=write.id, field="id")
        case DeleteProvider():
            book = _book(draft, write.id)
            return _delete(draft, book) if book else UnknownProvider(provider=write.id, field="id")
        case _:
            book = _book(draft, write.provider)
            if book is None:
                return UnknownProvider(provider=write.provider, field="provider")
            return write_contents(draft, standard, book, write)


def _create(draft: ForestDraft, write: CreateProvider) -> WriteVerdict:
    cell = write.of_cell
    if write.parent is not None:
        if write.parent == write.id:
            return NotAllowed(field="parent", reason=f"provider {write.id} cannot be its own parent")
        tree = draft.tree_of(write.parent)
        if tree is None:
            return UnknownProvider(provider=write.parent, field="parent")
        if cell not in ("", tree.cell):
            return NotAllowed(
                field="of_cell", reason=f"the tree of {tree.root} is of cell {tree.cell!r}, not of {cell!r}"
            )
        cell = tree.cell
    if write.id in draft.root_of:
        return IdTaken(provider=write.id)
    if taken := _name_taken(draft, write.id, write.name):
        return taken
    book = ProviderBook(id=write.id, name=write.name, parent=write.parent, made_by_name=True)
    return written(draft.add_provider(book, cell), book.id)


def _update(draft: ForestDraft, book: ProviderBook, write: UpdateProvider) -> WriteVerdict:
    parent = book.parent if write.parent is UNSET else write.parent
    refused = (_misplaced(draft, book, parent, write) if parent != book.parent else None) or _name_taken(
        draft, book.id, write.name
    )
    if refused:
        return refused
    if parent != book.parent:
        return written(draft.move_provider(book, write.name, parent), book.id)
    return written(draft.rewrite(structs.replace(book, name=write.name)), book.id)


def _misplaced(
    draft: ForestDraft, book: ProviderBook, parent: ProviderId | None, write: UpdateProvider
) -> UnknownProvider | NotAllowed | None:
    """Why the provider cannot be moved below this parent; None if it can."""
    if parent is not None and parent not in draft.root_of:
        return UnknownProvider(provider=parent, field="parent")
    if book.parent is not None and not write.reparents:
        return NotAllowed(
            field="parent",
            reason=f"provider {book.id} has the parent {book.parent}, and this request may not change it: "
            f"{'un' if parent is None else 're'}-parenting a provider is not currently allowed",
        )
    tree = draft.trees[draft.root_of[book.id]]
    if parent in depths_under(book.id, tree.providers):
        return NotAllowed(
            field="parent",
            reason=f"provider {book.id} would be below itself: creating loop in the provider tree is not allowed.",
        )
    return None


def _delete(draft: ForestDraft, book: ProviderBook) -> WriteVerdict:
    tree = draft.trees[draft.root_of[book.id]]
    child = next((one.id for one in tree.providers.values() if one.parent == book.id), None)
    if child is not None:
        return HasChildren(provider=book.id, child=child)
    if lost := lost_inventory(book, ()):
        return lost
    draft.remove_provider(book.id)
    return Done()


def _book(draft: ForestDraft, provider: ProviderId) -> ProviderBook | None:
    tree = draft.tree_of(provider)
    return tree.providers[provider] if tree else None


def _name_taken(draft: ForestDraft, provider: ProviderId, name: str) -> NameTaken | None:
    bearer = draft.owner_of_name.get(name, provider)
    return None if bearer == provider else NameTaken(name=name, provider=bearer)
