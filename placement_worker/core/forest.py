"""The forest while one batch of reports or provider writes is decided: a copy whose trees change in memory.

The deciding functions say what each tree becomes. `ForestDraft.changes` then compares the result with the stored forest,
and returns everything to write.
"""

from collections.abc import Container, Mapping
from operator import attrgetter

from msgspec import structs

from bus.messages.placement import InventoryInUse
from engine.inventories import InventoryState, ProviderId, ReportedInventory
from placement_worker.core.ledger import Forest, ProviderBook, TreeBook, TreeChanges

Providers = Mapping[ProviderId, ProviderBook]

# The values of an inventory without its usage, in the order of `ReportedInventory` and of the table's columns.
limit_values = attrgetter(*ReportedInventory.__struct_fields__)


class ForestDraft:
    def __init__(self, forest: Forest) -> None:
        self.stored = forest
        self.trees = dict(forest.trees)
        # The root of each provider, and the provider that has each name, as far as the batch can touch them.
        self.root_of = dict(forest.elsewhere)
        self.owner_of_name = dict(forest.names)
        self._removed: dict[ProviderId, None] = {}
        for tree in forest.trees.values():
            for book in tree.providers.values():
                self.root_of[book.id] = tree.root
                self.owner_of_name[book.name] = book.id

    def tree_of(self, provider: ProviderId) -> TreeBook | None:
        """The tree that the provider is in; None if there is no such provider."""
        root = self.root_of.get(provider)
        return None if root is None else self.trees[root]

    def book_of(self, provider: ProviderId) -> ProviderBook:
        """A provider that exists, as the batch has left it."""
        return self.trees[self.root_of[provider]].providers[provider]

    def cell_of(self, provider: ProviderId) -> str:
        """The cell of the provider's tree; empty if it is in none, or unknown."""
        tree = self.trees.get(self.root_of.get(provider, provider))
        return self.stored.cells.get(provider, "") if tree is None else tree.cell

    def replace_tree(self, tree: TreeBook, *, numbered_across_cells: bool = False) -> None:
        """Replace the tree under this root. A tree without providers becomes a tombstone if its cell had a tree or a
        tombstone under this root before.

        With `numbered_across_cells` (the reporter serves all cells) there is always a tombstone: it keeps the number of the
        report that removed the tree, so an earlier report that comes late is refused.
        """
        standing = self.trees.get(tree.root)
        for provider in standing.providers if standing else ():
            if provider not in tree.providers:
                self._removed[provider] = None
        is_of_this_cell = standing is not None and standing.cell == tree.cell
        if tree.providers or is_of_this_cell or numbered_across_cells:
            self._settle(tree)

    def rewrite(self, book: ProviderBook) -> TreeBook:
        """Replace a provider; its place in the tree stays. The shape moves if something changes that a claim may rely on."""
        tree = self.trees[self.root_of[book.id]]
        is_moved = not is_same_to_claims(tree.providers[book.id], book)
        return self._settle(
            structs.replace(tree, shape=tree.shape + is_moved, providers={**tree.providers, book.id: book})
        )

    def recount(self, book: ProviderBook) -> None:
        """Replace a provider of which only the usage changes."""
        tree = self.trees[self.root_of[book.id]]
        self._settle(structs.replace(tree, providers={**tree.providers, book.id: book}))

    def add_provider(self, book: ProviderBook, cell: str) -> TreeBook:
        """Add a new provider: below its parent, or as the root of a new tree."""
        if book.parent is None:
            return self._add_root({book.id: book}, book.id, cell)
        tree = self.trees[self.root_of[book.parent]]
        return self._settle(
            structs.replace(tree, shape=tree.shape + 1, providers={**tree.providers, book.id: book})
        )

    def remove_provider(self, provider: ProviderId) -> None:
        """Remove a provider, which has no children."""
        tree = self.trees[self.root_of[provider]]
        left = {book.id: book for book in tree.providers.values() if book.id != provider}
        self.replace_tree(structs.replace(tree, shape=tree.shape + 1, providers=left))

    def move_provider(self, book: ProviderBook, name: str, parent: ProviderId | None) -> TreeBook:
        """Move a provider and everything below it under another parent, or make it the root of a tree."""
        tree = self.trees[self.root_of[book.id]]
        below = depths_under(book.id, tree.providers).keys()
        moving = {one: tree.providers[one] for one in tree.providers if one in below}
        moving[book.id] = structs.replace(book, name=name, parent=parent)
        staying = {one: tree.providers[one] for one in tree.providers if one not in below}
        target = tree.root if parent == book.parent else None if parent is None else self.root_of[parent]
        # A former root leaves a tombstone: if it becomes a root again, its tree gets a shape that it never had.
        self._settle(structs.replace(tree, shape=tree.shape + 1, providers=staying))
        if target is None:
            return self._add_root(moving, book.id, tree.cell)
        target_tree = self.trees[target]
        moved = 0 if target == tree.root else 1
        return self._settle(
            structs.replace(
                target_tree, shape=target_tree.shape + moved, providers={**target_tree.providers, **moving}
            )
        )

    def changes(self) -> TreeChanges:
        """Everything to write: the changed trees, with parents before their children, and the removed providers."""
        stored = self.stored.trees
        trees = [
            tree
            for tree in self.trees.values()
            if tree != stored.get(tree.root) or tree.root in self._removed
        ]
        changed = tuple([provider for tree in trees for provider in self._changed_in(tree)])
        return TreeChanges(trees=tuple(trees), changed=changed, removed=self._removed_in_order())

    def _add_root(self, providers: dict[ProviderId, ProviderBook], root: ProviderId, cell: str) -> TreeBook:
        tombstone = self.trees.get(root)
        if tombstone is None:
            after = TreeBook(root=root, cell=cell, shape=1, providers=providers)
        elif tombstone.cell == cell:
            after = structs.replace(tombstone, shape=tombstone.shape + 1, providers=providers)
        else:
            # The tree comes back with other reporters, which number their reports independently.
            after = TreeBook(root=root, cell=cell, shape=tombstone.shape + 1, providers=providers)
        return self._settle(after)

    def _settle(self, tree: TreeBook) -> TreeBook:
        standing = self.trees.get(tree.root)
        for book in standing.providers.values() if standing else ():
            del self.owner_of_name[book.name], self.root_of[book.id]
        for book in tree.providers.values():
            self.root_of[book.id] = tree.root
            self.owner_of_name[book.name] = book.id
        self.trees[tree.root] = tree
        return tree

    def _changed_in(self, tree: TreeBook) -> list[ProviderId]:
        stored = self.stored.trees.get(tree.root)
        before = stored.providers if stored else {}
        changed = [
            book.id
            for book in tree.providers.values()
            if book.id in self._removed
            or book != before.get(book.id)
            or (stored and stored.cell != tree.cell)
            # The shape is in the root's row: when it moves, the root is written.
            or (book.id == tree.root and stored and stored.shape != tree.shape)
        ]
        depths = depths_under(tree.root, tree.providers)
        return sorted(changed, key=lambda provider: depths[provider])

    def _removed_in_order(self) -> tuple[ProviderId, ...]:
        """The stored providers that the batch removed, children before their parents; also those that it added again later."""
        removed = []
        for root, tree in self.stored.trees.items():
            depths = depths_under(root, tree.providers)
            gone = [provider for provider in self._removed if provider in tree.providers]
            removed += sorted(gone, key=lambda provider: -depths[provider])
        return tuple(removed)


def lost_inventory(book: ProviderBook, kept: Container[str]) -> InventoryInUse | None:
    """The refusal of a write that would leave this provider only the classes in `kept`, although another one is in use.

    It names the first such class. None if there is none.
    """
    return next(
        (
            InventoryInUse(provider=book.id, resource=resource, used=inventory.used)
            for resource, inventory in book.inventories.items()
            if inventory.used and resource not in kept
        ),
        None,
    )


def depths_under(root: ProviderId, providers: Providers) -> dict[ProviderId, int]:
    """The depth of each provider below the root. A provider that is not below the root is missing."""
    children: dict[ProviderId | None, list[ProviderId]] = {}
    for book in providers.values():
        children.setdefault(book.parent, []).append(book.id)
    depths, waiting = {root: 0}, [root]
    while waiting:
        parent = waiting.pop()
        for child in children.get(parent, ()):
            depths[child] = depths[parent] + 1
            waiting.append(child)
    return depths


def is_same_to_claims(one: ProviderBook, other: ProviderBook) -> bool:
    """Is everything equal that a claim may rely on: inventories, traits, aggregates, the parent, the place?"""
    return (
        one.parent == other.parent
        and one.inventories == other.inventories
        # It does not matter whether the reporter or an operator set a trait.
        and one.traits | one.operator_traits == other.traits | other.operator_traits
        and one.aggregates == other.aggregates
        # And here, who set the place.
        and one.place == other.place
    )


def with_usage(old: InventoryState | None, reported: ReportedInventory) -> InventoryState:
    """A new inventory of a class: its limits as reported, its usage as in the old inventory (0 without one)."""
    used = old.used if old else 0
    return InventoryState(*(*limit_values(reported), used))
