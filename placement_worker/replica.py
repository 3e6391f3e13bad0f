"""A copy of all providers in memory, from which reads are answered.

`ProviderIndex` has the providers in columns, by which candidates are searched, and finds them by id and by tree.
`ProviderReplica` finds them by name too, and applies changes. Nearly all changes are of usage only: each replaces one provider's values
and rebuilds nothing else.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from msgspec import structs

from bus.message import ProviderId
from bus.messages.administration import KindOfNames
from bus.messages.placement import ProviderGone, ProviderState, ProviderUsage
from placement_worker.core.candidates.provider_index import ProviderIndex


class ProviderReplica:
    def __init__(self) -> None:
        self.index = ProviderIndex()
        self._by_name: dict[str, ProviderId] = {}
        # How many readers use the current index.
        self._readers = 0

    # Reading

    @contextmanager
    def reading(self) -> Iterator[ProviderIndex]:
        """Keep the current index unchanged for a reader that lets other tasks run in between: writes during that time go
        into a copy.
        """
        index = self.index
        self._readers += 1
        try:
            yield index
        finally:
            if self.index is index:
                self._readers -= 1

    def __iter__(self) -> Iterator[ProviderState]:
        return (state for state in self.index.states if state is not None)

    def get(self, provider: ProviderId) -> ProviderState | None:
        row = self.index.row_of(provider)
        return None if row is None else self.index.state(row)

    def named(self, name: str) -> ProviderState | None:
        provider = self._by_name.get(name)
        return None if provider is None else self.get(provider)

    def tree_of(self, provider: ProviderId) -> list[ProviderState]:
        """All providers of the tree that has this provider; empty if the provider does not exist."""
        state = self.get(provider)
        return self.index.states_in_tree(state.root) if state else []

    def has_name(self, of: KindOfNames, name: str) -> bool:
        """Does any provider have an inventory of this class, or this trait?"""
        return name in (self.index.stocks if of == "classes" else self.index.traits)

    # Following placement's changes

    def _writable(self) -> ProviderIndex:
        if self._readers:
            self.index, self._readers = self.index.copy(), 0
        return self.index

    def tell(self, states: Iterable[ProviderState]) -> None:
        """Take over these states of providers, except for those that are older than the known ones."""
        for state in states:
            known = self.get(state.id)
            if known is not None:
                # A provider of another internal id that had this id is gone, although the log has not said so yet.
                if known.internal == state.internal and known.revision >= state.revision:
                    continue
                self._forget_name(known)
            self._writable().put(state)
            self._by_name[state.name] = state.id

    def use(self, usages: Iterable[ProviderUsage]) -> bool:
        """Take over these usages of providers, unless newer ones are known.

        False if a usage was written upon a state of its provider that this replica never received.
        """
        all_stand = True
        for usage in usages:
            known = self.get(usage.id)
            if known is None or known.internal != usage.internal or known.revision < usage.base:
                all_stand = False
            elif known.revision < usage.revision:
                self._writable().put(
                    structs.replace(
                        known,
                        revision=usage.revision,
                        generation=usage.generation,
                        consumers=usage.consumers,
                        inventories={
                            resource: structs.replace(inventory, used=usage.used.get(resource, 0))
                            for resource, inventory in known.inventories.items()
                        },
                    )
                )
        return all_stand

    def remove(self, gone: Iterable[ProviderGone]) -> None:
        for one in gone:
            known = self.get(one.id)
            if known is not None and known.internal == one.internal:
                self._drop(known)

    def keep_only(self, internals: AbstractSet[int]) -> None:
        """Drop all providers except those with these internal ids."""
        for state in list(self):
            if state.internal not in internals:
                self._drop(state)

    def _drop(self, state: ProviderState) -> None:
        self._writable().drop(state.internal)
        self._forget_name(state)

    def _forget_name(self, state: ProviderState) -> None:
        # Another provider may have its name by now.
        if self._by_name.get(state.name) == state.id:
            del self._by_name[state.name]
