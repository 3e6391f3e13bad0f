"""A copy of all providers in memory, from which reads are answered: by id, by name and by tree."""

from collections.abc import Iterable, Iterator

from msgspec import structs

from bus.message import ProviderId
from bus.messages.administration import KindOfNames
from bus.messages.placement import ProviderState, ProviderUsage
from placement_worker.core.known_providers import KnownProviders


class ProviderReplica(KnownProviders):
    def __init__(self) -> None:
        super().__init__()
        self._by_name: dict[str, ProviderId] = {}

    def __iter__(self) -> Iterator[ProviderState]:
        return map(self._current, [*self._states.values()])

    def get(self, provider: ProviderId) -> ProviderState | None:
        state = self._states.get(self.internal_of(provider))
        return None if state is None else self._current(state)

    def named(self, name: str) -> ProviderState | None:
        provider = self._by_name.get(name)
        return None if provider is None else self.get(provider)

    def tree_of(self, provider: ProviderId) -> list[ProviderState]:
        """All providers of the tree that has this provider; empty if the provider does not exist."""
        state = self.get(provider)
        in_tree = self.index.states_in_tree(state.root) if state else []
        return [self._current(self._states[each.internal]) for each in in_tree]

    def has_name(self, of: KindOfNames, name: str) -> bool:
        """Does any provider have an inventory of this class, or this trait?"""
        return name in (self.index.stocks if of == "classes" else self.index.traits)

    def use(self, usages: Iterable[ProviderUsage]) -> bool:
        """Merge usages. False if a usage was written upon a state of its provider that this replica never received."""
        return self.merge_usages(usages)[1]

    def _current(self, state: ProviderState) -> ProviderState:
        """The state with the latest usage in it. Most usages are never read, so only here is a state made of one, once."""
        usage = self._usages.get(state.internal)
        if usage is None or state.revision < usage.base:
            return state
        current = self._states[state.internal] = structs.replace(
            state,
            revision=usage.revision,
            generation=usage.generation,
            consumers=usage.consumers,
            inventories={
                resource: structs.replace(inventory, used=usage.used.get(resource, 0))
                for resource, inventory in state.inventories.items()
            },
        )
        del self._usages[state.internal]
        return current

    def _changed(self, before: ProviderState | None, after: ProviderState | None) -> None:
        # Another provider may have its name by now.
        if before is not None and self._by_name.get(before.name) == before.id:
            del self._by_name[before.name]
        if after is not None:
            self._by_name[after.name] = after.id
