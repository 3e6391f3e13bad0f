"""All providers, in memory: reads are answered from here.

Each provider is as the store last described it. It is found by id, name and tree, and written into the columns that
candidates are searched in. A write that changed only usage, as nearly all writes do, replaces one value and moves nothing
else.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from msgspec import structs

from bus.message import ProviderId
from bus.messages.administration import KindOfNames
from bus.messages.placement import ProviderGone, ProviderState, ProviderUsage
from placement_worker.core.candidates.provider_index import ProviderIndex


class Replica:
    """Keys are the integers of ids: a UUID is hashed and compared in Python."""

    def __init__(self) -> None:
        self.index = ProviderIndex()
        self._by_id: dict[int, ProviderState] = {}
        self._ids: dict[int, int] = {}
        self._by_name: dict[str, int] = {}
        self._trees: dict[int, dict[int, None]] = {}
        # How many readers use the current index.
        self._readers = 0

    # Reading

    @contextmanager
    def reading(self) -> Iterator[ProviderIndex]:
        """The current index, for a reader that lets other tasks run in between. It stays unchanged: a write during the read
        goes into a copy.
        """
        index = self.index
        self._readers += 1
        try:
            yield index
        finally:
            if self.index is index:
                self._readers -= 1

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ProviderState]:
        return iter(self._by_id.values())

    def get(self, provider: ProviderId) -> ProviderState | None:
        return self._by_id.get(provider.int)

    def named(self, name: str) -> ProviderState | None:
        provider = self._by_name.get(name)
        return None if provider is None else self._by_id[provider]

    def tree_of(self, provider: ProviderId) -> tuple[ProviderState, ...]:
        """All providers of the tree that it is in; empty if it does not exist."""
        state = self._by_id.get(provider.int)
        if state is None:
            return ()
        return tuple([self._by_id[member] for member in self._trees[state.root.int]])

    def has_name(self, of: KindOfNames, name: str) -> bool:
        """Does any provider have an inventory of this class, or this trait?"""
        return name in (self.index.stocks if of == "classes" else self.index.traits)

    def internals(self) -> AbstractSet[int]:
        return self._ids.keys()

    # Following placement's changes

    def _writable(self) -> ProviderIndex:
        if self._readers:
            self.index, self._readers = self.index.copy(), 0
        return self.index

    def tell(self, states: Iterable[ProviderState]) -> None:
        """Apply these states; skip those that are older than what is known."""
        for state in states:
            known = self._by_id.get(state.id.int)
            if known is not None and known.internal == state.internal:
                if known.revision >= state.revision:
                    continue
                self._writable().put(state)
                if _is_found_alike(known, state):
                    self._by_id[state.id.int] = state
                    continue
                self._take_out(known)
            elif known is not None:
                # The provider that had this id before is gone, although the log has not said so yet.
                self._writable().drop(known.internal)
                self._take_out(known)
                self._writable().put(state)
            else:
                self._writable().put(state)
            self._put_in(state)

    def use(self, usages: Iterable[ProviderUsage]) -> bool:
        """Apply these usages. False if one refers to a state that was never received."""
        all_stand = True
        for usage in usages:
            known = self._by_id.get(usage.id.int)
            if known is None or known.internal != usage.internal or known.revision < usage.base:
                all_stand = False
            elif known.revision < usage.revision:
                self._writable().use(usage.internal, usage.used)
                self._by_id[usage.id.int] = structs.replace(
                    known,
                    revision=usage.revision,
                    generation=usage.generation,
                    consumers=usage.consumers,
                    inventories={
                        resource: structs.replace(inventory, used=usage.used.get(resource, 0))
                        for resource, inventory in known.inventories.items()
                    },
                )
        return all_stand

    def remove(self, gone: Iterable[ProviderGone]) -> None:
        for one in gone:
            known = self._by_id.get(one.id.int)
            if known is not None and known.internal == one.internal:
                self._writable().drop(one.internal)
                self._take_out(known)

    def keep_only(self, internals: AbstractSet[int]) -> None:
        """Drop all other providers."""
        for internal in self._ids.keys() - internals:
            self._writable().drop(internal)
            self._take_out(self._by_id[self._ids[internal]])

    def _put_in(self, state: ProviderState) -> None:
        provider = state.id.int
        self._by_id[provider] = state
        self._ids[state.internal] = provider
        self._by_name[state.name] = provider
        self._trees.setdefault(state.root.int, {})[provider] = None

    def _take_out(self, state: ProviderState) -> None:
        provider = state.id.int
        del self._by_id[provider]
        del self._ids[state.internal]
        # Another provider may have its name by now.
        if self._by_name.get(state.name) == provider:
            del self._by_name[state.name]
        members = self._trees[state.root.int]
        del members[provider]
        if not members:
            del self._trees[state.root.int]


def _is_found_alike(known: ProviderState, state: ProviderState) -> bool:
    """Does it have the same name, in the same tree?"""
    return known.root == state.root and known.name == state.name
