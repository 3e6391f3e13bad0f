"""Administrators' writes of providers, and of custom names: may they be written, and what do the trees become?

The writes of a batch are judged one after another, each on the forest as the earlier ones left it. Generations move as in
Placement's API: with each write of inventories, with traits only if they change, with aggregates where the request asks for
it, never with a name or a parent. Shapes move when something changes that claims may rely on.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET, structs

from bus.messages.books import (
    AlreadyThere,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteClass,
    DeleteProvider,
    DeleteTrait,
    Done,
    DropInventory,
    GenerationMoved,
    HasChildren,
    IdTaken,
    InventoryAbsent,
    InventoryPresent,
    KindOfNames,
    NameInUse,
    NameTaken,
    NameWrite,
    ProviderWrite,
    ProviderWritten,
    PutInventory,
    RenameClass,
    SetAggregates,
    SetInventories,
    SetPlaces,
    SetTraits,
    UnknownClass,
    UnknownProvider,
    UnknownTrait,
    UpdateProvider,
    WriteVerdict,
)
from engine.inventories import InventoryState, ProviderId, ReportedInventory, Vocabulary, unknown_names
from engine.refusals import NotAllowed
from placement_worker.core.forest import ForestDraft, depths_under, lost_inventory, with_usage
from placement_worker.core.ledger import (
    BatchDecision,
    Forest,
    ForestKeys,
    NameChange,
    NameChanges,
    NameKeys,
    NamesInUse,
    ProviderBook,
    StoredNames,
    TreeBook,
    TreeChanges,
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
            case SetPlaces(places=places):
                trees |= {each.provider for each in places}
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
        case SetPlaces():
            return _set_places(draft, write)
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


def _set_places(draft: ForestDraft, write: SetPlaces) -> WriteVerdict:
    for number, each in enumerate(write.places):
        book = _book(draft, each.provider)
        if book is None:
            return UnknownProvider(provider=each.provider, field=f"places[{number}].provider")
        if book.parent is not None:
            return NotAllowed(
                field=f"places[{number}].provider",
                reason=f"provider {each.provider} has the parent {book.parent}, and only a root has a place",
            )
    for each in write.places:
        before = draft.book_of(each.provider)
        after = structs.replace(before, operator_place=each.place)
        draft.rewrite(structs.replace(after, generation=before.generation + (before.place != after.place)))
    return Done()


def _book(draft: ForestDraft, provider: ProviderId) -> ProviderBook | None:
    return draft.book_of(provider) if provider in draft.root_of else None


def _name_taken(draft: ForestDraft, provider: ProviderId, name: str) -> NameTaken | None:
    bearer = draft.owner_of_name.get(name, provider)
    return None if bearer == provider else NameTaken(name=name, provider=bearer)


# Writes of the inventories, traits and aggregates of a provider.


def impossible_inventory(inventories: Mapping[str, ReportedInventory]) -> NotAllowed | None:
    """The refusal of inventories of which one reserves more than its total, for the first such one; None if there is none."""
    return next(
        (
            NotAllowed(
                field=f"inventories.{resource}",
                reason=f"reserved is {inventory.reserved}, more than the total of {inventory.total}",
            )
            for resource, inventory in inventories.items()
            if inventory.reserved > inventory.total
        ),
        None,
    )


def moved_generation(book: ProviderBook, seen: int | None) -> GenerationMoved | None:
    if seen is None or seen == book.generation:
        return None
    return GenerationMoved(provider=book.id, seen=seen, current=book.generation)


def write_contents(
    draft: ForestDraft,
    standard: Vocabulary,
    book: ProviderBook,
    write: SetInventories | PutInventory | DropInventory | SetTraits | SetAggregates,
) -> WriteVerdict:
    """Apply one write to this provider's inventories, traits or aggregates."""
    match write:
        case SetInventories():
            return _set_inventories(draft, standard, book, write)
        case PutInventory():
            return _put_inventory(draft, standard, book, write)
        case DropInventory():
            return _drop_inventory(draft, standard, book, write)
        case SetTraits():
            return _set_traits(draft, standard, book, write)
        case SetAggregates():
            return _set_aggregates(draft, book, write)


def _unknown_class(draft: ForestDraft, standard: Vocabulary, resources: Iterable[str]) -> UnknownClass | None:
    unknown = unknown_names(resources, standard.classes, draft.stored.classes)
    return UnknownClass(names=unknown) if unknown else None


def _set_inventories(
    draft: ForestDraft, standard: Vocabulary, book: ProviderBook, write: SetInventories
) -> WriteVerdict:
    refused = (
        moved_generation(book, write.generation)
        or impossible_inventory(write.inventories)
        or _unknown_class(draft, standard, write.inventories)
        or lost_inventory(book, write.inventories)
    )
    return refused or _write_inventories(draft, book, with_usages(book, write.inventories))


def _put_inventory(
    draft: ForestDraft, standard: Vocabulary, book: ProviderBook, write: PutInventory
) -> WriteVerdict:
    wanted = {write.resource: write.inventory}
    refused = (
        moved_generation(book, write.generation)
        or impossible_inventory(wanted)
        or _unknown_class(draft, standard, wanted)
    )
    if refused:
        return refused
    if write.is_new and write.resource in book.inventories:
        return InventoryPresent(provider=book.id, resource=write.resource)
    if not write.is_new and write.resource not in book.inventories:
        return InventoryAbsent(provider=book.id, resource=write.resource)
    return _write_inventories(draft, book, {**book.inventories, **with_usages(book, wanted)})


def _drop_inventory(
    draft: ForestDraft, standard: Vocabulary, book: ProviderBook, write: DropInventory
) -> WriteVerdict:
    left = {name: stock for name, stock in book.inventories.items() if name != write.resource}
    if len(left) < len(book.inventories):
        return lost_inventory(book, left) or _write_inventories(draft, book, left)
    return _unknown_class(draft, standard, (write.resource,)) or InventoryAbsent(
        provider=book.id, resource=write.resource
    )


def _set_traits(
    draft: ForestDraft, standard: Vocabulary, book: ProviderBook, write: SetTraits
) -> WriteVerdict:
    if moved := moved_generation(book, write.generation):
        return moved
    if unknown := unknown_names(write.traits, standard.traits, draft.stored.traits):
        return UnknownTrait(names=unknown)
    wanted = frozenset(write.traits)
    if wanted == book.traits | book.operator_traits:
        return written(draft.trees[draft.root_of[book.id]], book.id)
    # Traits set by the reporter stay the reporter's, which may remove them. All others outlive every report.
    after = structs.replace(
        book,
        traits=book.traits & wanted,
        operator_traits=wanted - (book.traits - book.operator_traits),
        generation=book.generation + 1,
    )
    return written(draft.rewrite(after), book.id)


def _set_aggregates(draft: ForestDraft, book: ProviderBook, write: SetAggregates) -> WriteVerdict:
    if moved := moved_generation(book, write.generation):
        return moved
    after = structs.replace(
        book,
        aggregates=frozenset(write.aggregates),
        generation=book.generation + write.moves_generation,
    )
    return written(draft.rewrite(after), book.id)


def with_usages(book: ProviderBook, wanted: Mapping[str, ReportedInventory]) -> dict[str, InventoryState]:
    """These new inventories, each with the current usage of its class."""
    return {
        resource: with_usage(book.inventories.get(resource), inventory)
        for resource, inventory in wanted.items()
    }


def _write_inventories(
    draft: ForestDraft, book: ProviderBook, inventories: Mapping[str, InventoryState]
) -> WriteVerdict:
    after = structs.replace(book, inventories=inventories, generation=book.generation + 1)
    return written(draft.rewrite(after), book.id)


def written(tree: TreeBook, provider: ProviderId) -> ProviderWritten:
    book = tree.providers[provider]
    return ProviderWritten(
        provider=provider,
        name=book.name,
        generation=book.generation,
        root=tree.root,
        parent=book.parent,
    )


# Administrators' writes of custom names: resource classes and traits that they create, rename and delete.


def keys_of_name_writes(writes: Iterable[NameWrite]) -> NameKeys:
    names: dict[KindOfNames, set[str]] = {"classes": set(), "traits": set()}
    for write in writes:
        names[_kind_of(write)] |= {write.name, write.to} if isinstance(write, RenameClass) else {write.name}
    return {kind: frozenset(each) for kind, each in names.items()}


def decide_names(
    names: StoredNames, writes: Sequence[NameWrite], vocabulary: Vocabulary
) -> BatchDecision[WriteVerdict, NameChanges]:
    """Judge each write on the names as the earlier writes of the batch left them."""
    drafts: dict[KindOfNames, _NamesDraft] = {
        "classes": _NamesDraft(names["classes"], vocabulary.classes),
        "traits": _NamesDraft(names["traits"], vocabulary.traits),
    }
    verdicts = tuple([_judge_name(drafts[_kind_of(write)], write) for write in writes])
    return BatchDecision(verdicts, {kind: draft.change() for kind, draft in drafts.items()})


def _kind_of(write: NameWrite) -> KindOfNames:
    return "traits" if isinstance(write, CreateTrait | DeleteTrait) else "classes"


class _NamesDraft:
    """The custom resource classes (or the custom traits) while one batch of writes is decided."""

    def __init__(self, stored: NamesInUse, standard: frozenset[str]) -> None:
        self._stored = stored
        self.standard = standard
        self.names = set(stored.existing)
        self._went: set[str] = set()

    def create(self, name: str) -> WriteVerdict:
        if self.exists(name):
            return AlreadyThere(name=name)
        self.names.add(name)
        return Done()

    def refuse_to_remove(self, name: str) -> NotAllowed | NameInUse | None:
        """Why an existing name cannot be removed; None if it can."""
        if name in self.standard:
            return NotAllowed(
                field="name", reason=f"{name!r} is a standard name; only custom names can be changed"
            )
        # A name that this batch created cannot be in use yet.
        if name in self._stored.users and name not in self._went:
            return NameInUse(name=name, provider=self._stored.users[name])
        return None

    def remove(self, name: str) -> None:
        self.names.remove(name)
        self._went.add(name)

    def exists(self, name: str) -> bool:
        return name in self.names or name in self.standard

    def change(self) -> NameChange:
        return NameChange(
            new=tuple(sorted(self.names - self._stored.existing | self.names & self._went)),
            gone=tuple(sorted(self._stored.existing & self._went)),
        )


def _judge_name(names: _NamesDraft, write: NameWrite) -> WriteVerdict:
    match write:
        case CreateTrait() | CreateClass():
            return names.create(write.name)
        case DeleteTrait():
            return _delete_name(names, write.name) or UnknownTrait(names=(write.name,))
        case DeleteClass():
            return _delete_name(names, write.name) or UnknownClass(names=(write.name,))
        case RenameClass():
            return _rename_class(names, write)


def _delete_name(names: _NamesDraft, name: str) -> WriteVerdict | None:
    """Delete a custom name. Returns the verdict; None if there is no such name."""
    if not names.exists(name):
        return None
    if refused := names.refuse_to_remove(name):
        return refused
    names.remove(name)
    return Done()


def _rename_class(classes: _NamesDraft, write: RenameClass) -> WriteVerdict:
    if not classes.exists(write.name):
        return UnknownClass(names=(write.name,))
    if write.name == write.to:
        return Done()
    if refused := classes.refuse_to_remove(write.name):
        return refused
    if classes.exists(write.to):
        return AlreadyThere(name=write.to)
    classes.remove(write.name)
    classes.names.add(write.to)
    return Done()
