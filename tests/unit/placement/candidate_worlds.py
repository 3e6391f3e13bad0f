"""Providers by name and candidates as text, so that examples are easy to read."""

from msgspec import structs

from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import CandidatesQuery, Group
from engine.candidates.search import find_candidates
from engine.inventories import InventoryState, ProviderState
from tests.contracts.placement_orders import aggregate, provider

SHARES = "MISC_SHARES_VIA_AGGREGATE"


class World:
    """`has` creates or replaces a provider; ids and internal ids follow from names."""

    def __init__(self) -> None:
        self.index = ProviderIndex()
        self._states: dict[str, ProviderState] = {}
        self._internals: dict[str, int] = {}

    def has(
        self,
        name: str,
        *,
        under: str = "",
        traits: tuple[str, ...] = (),
        aggregates: tuple[str, ...] = (),
        **inventories: int | InventoryState,
    ) -> ProviderState:
        parent = self._states[under] if under else None
        state = ProviderState(
            internal=self._internals.setdefault(name, len(self._internals) + 1),
            id=provider(name),
            name=name,
            root=provider(name) if parent is None else parent.root,
            parent=None if parent is None else parent.id,
            inventories={
                resource: given if isinstance(given, InventoryState) else InventoryState(total=given)
                for resource, given in inventories.items()
            },
            traits=traits,
            aggregates=tuple(aggregate(each) for each in aggregates),
        )
        self._states[name] = state
        self.index.put(state)
        return state

    def loses(self, name: str) -> None:
        self.index.drop(self._states.pop(name).internal)

    def ask(self, *groups: Group, **of_the_query: object) -> list[str]:
        """Candidates as `VCPU:2@host DISK_GB:5@pool`, followed by the providers of groups with suffixes as `1=child`."""
        query = structs.replace(CandidatesQuery(groups=groups), **of_the_query)
        names = {state.id: name for name, state in self._states.items()}
        told = []
        for found in find_candidates(self.index, query).written_out(self.index):
            amounts = [f"{each.resource}:{each.amount}@{names[each.provider]}" for each in found.amounts]
            mappings = [
                f"{suffix}={'+'.join(names[one] for one in providers)}"
                for suffix, providers in found.mappings.items()
                if suffix
            ]
            told.append(" ".join([*sorted(amounts), *sorted(mappings)]))
        return told

    def finds(self, *groups: Group, **of_the_query: object) -> set[str]:
        told = self.ask(*groups, **of_the_query)
        assert len(told) == len(set(told)), told
        return set(told)


def asking(suffix: str = "", /, **resources: int) -> Group:
    return Group(suffix=suffix, resources=resources)
