"""A forest while a batch is being decided: trees that grow, lose and exchange providers, private to one fold.

Whoever decides says what becomes of a tree; what all of it together writes is found here at the end, by comparing the
forest with the one that is stored.
"""

from msgspec import structs

from bus.message import ProviderId
from placement_worker.core.ledger import Forest, ProviderBook, TreeBook, TreeChanges
from placement_worker.core.regrowth import depths_under, is_same_to_claims


class ForestDraft:
    def __init__(self, forest: Forest) -> None:
        self._stored = forest
        self.trees = dict(forest.trees)
        # Where each provider stands, and who bears each name, as far as the batch can touch it.
        self.root_of = dict(forest.elsewhere)
        self.bearer_of = dict(forest.names)
        self._felled: dict[ProviderId, None] = {}
        for tree in forest.trees.values():
            for book in tree.providers.values():
                self.root_of[book.id] = tree.root
                self.bearer_of[book.name] = book.id

    def tree_of(self, provider: ProviderId) -> TreeBook | None:
        """The tree it stands in; None if there is no such provider."""
        root = self.root_of.get(provider)
        return None if root is None else self.trees[root]

    def replant(self, tree: TreeBook) -> None:
        """This is what the tree of this root is now. Without providers it is a stump, if this cell had something there."""
        standing = self.trees.get(tree.root)
        for provider in standing.providers if standing else ():
            if provider not in tree.providers:
                self._felled[provider] = None
        if tree.providers or (standing and standing.cell == tree.cell):
            self._settle(tree)

    def rewrite(self, book: ProviderBook) -> TreeBook:
        """The provider is this from now on, where it stands. The tree's shape moves if claims may have relied on less."""
        tree = self.trees[self.root_of[book.id]]
        is_moved = not is_same_to_claims(tree.providers[book.id], book)
        after = structs.replace(
            tree, shape=tree.shape + is_moved, providers={**tree.providers, book.id: book}
        )
        self._settle(after)
        return after

    def recount(self, book: ProviderBook) -> None:
        """The same, where nothing differs but what is used of it."""
        tree = self.trees[self.root_of[book.id]]
        self._settle(structs.replace(tree, providers={**tree.providers, book.id: book}))

    def plant(self, book: ProviderBook, cell: str) -> TreeBook:
        """A provider that was not there: below its parent, or as the root of a tree of its own."""
        if book.parent is None:
            return self._plant_root({book.id: book}, book.id, cell)
        tree = self.trees[self.root_of[book.parent]]
        after = structs.replace(tree, shape=tree.shape + 1, providers={**tree.providers, book.id: book})
        self._settle(after)
        return after

    def fell(self, provider: ProviderId) -> None:
        """It is no more; it had no children."""
        tree = self.trees[self.root_of[provider]]
        left = {book.id: book for book in tree.providers.values() if book.id != provider}
        self.replant(structs.replace(tree, shape=tree.shape + 1, providers=left))

    def transplant(self, book: ProviderBook, name: str, parent: ProviderId | None) -> TreeBook:
        """The provider goes below another one with all that stands below it, or becomes a root of its own."""
        tree = self.trees[self.root_of[book.id]]
        below = depths_under(book.id, tree.providers).keys()
        moving = {one: tree.providers[one] for one in tree.providers if one in below}
        moving[book.id] = structs.replace(book, name=name, parent=parent)
        staying = {one: tree.providers[one] for one in tree.providers if one not in below}
        target = tree.root if parent == book.parent else None if parent is None else self.root_of[parent]
        # A root that goes leaves a stump: should it be a root again, its tree is of a shape it never had.
        self._settle(structs.replace(tree, shape=tree.shape + 1, providers=staying))
        if target is None:
            return self._plant_root(moving, book.id, tree.cell)
        ground = self.trees[target]
        moved = 0 if target == tree.root else 1
        after = structs.replace(ground, shape=ground.shape + moved, providers={**ground.providers, **moving})
        self._settle(after)
        return after

    def changes(self) -> TreeChanges:
        """The trees that are no longer as stored: parents are written before their children, removed after them."""
        stored = self._stored.trees
        trees = [
            tree for tree in self.trees.values() if tree != stored.get(tree.root) or tree.root in self._felled
        ]
        changed = tuple([provider for tree in trees for provider in self._changed_in(tree)])
        known = {
            provider: book
            for tree in stored.values()
            for provider, book in tree.providers.items()
            if provider not in self._felled
        }
        return TreeChanges(
            trees=tuple(trees),
            changed=changed,
            removed=self._removed(),
            before={provider: known[provider] for provider in changed if provider in known},
        )

    def _plant_root(self, providers: dict[ProviderId, ProviderBook], root: ProviderId, cell: str) -> TreeBook:
        stump = self.trees.get(root)
        if stump is None:
            after = TreeBook(root=root, cell=cell, shape=1, providers=providers)
        elif stump.cell == cell:
            after = structs.replace(stump, shape=stump.shape + 1, providers=providers)
        else:
            # It comes back with other reporters, who count their reports by themselves.
            after = TreeBook(root=root, cell=cell, shape=stump.shape + 1, providers=providers)
        self._settle(after)
        return after

    def _settle(self, tree: TreeBook) -> None:
        standing = self.trees.get(tree.root)
        for book in standing.providers.values() if standing else ():
            del self.bearer_of[book.name], self.root_of[book.id]
        for book in tree.providers.values():
            self.root_of[book.id] = tree.root
            self.bearer_of[book.name] = book.id
        self.trees[tree.root] = tree

    def _changed_in(self, tree: TreeBook) -> list[ProviderId]:
        stored = self._stored.trees.get(tree.root)
        before = stored.providers if stored else {}
        changed = [
            book.id
            for book in tree.providers.values()
            if book.id in self._felled
            or book != before.get(book.id)
            or (stored and stored.cell != tree.cell)
            # The shape is the root's to tell: when it moves, the root moves.
            or (book.id == tree.root and stored and stored.shape != tree.shape)
        ]
        depths = depths_under(tree.root, tree.providers)
        return sorted(changed, key=lambda provider: depths[provider])

    def _removed(self) -> tuple[ProviderId, ...]:
        """Those that are stored and were removed, even if they came back since: leaves first, as they are stored."""
        removed = []
        for root, tree in self._stored.trees.items():
            depths = depths_under(root, tree.providers)
            felled = [provider for provider in self._felled if provider in tree.providers]
            removed += sorted(felled, key=lambda provider: -depths[provider])
        return tuple(removed)
