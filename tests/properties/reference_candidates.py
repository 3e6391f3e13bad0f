"""A reference search for candidates: try all ways to assign providers to groups, and keep the valid ones.

It follows Placement's behaviour, not this project's search: it has no columns, no bits, and never stops early.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from engine.candidates.query import CandidatesQuery, Group
from engine.inventories import InventoryState, ProviderId, ProviderState

SHARES = "MISC_SHARES_VIA_AGGREGATE"

# Which provider gives what, and which providers each group has.
Told = tuple[frozenset[tuple[ProviderId, str, int]], frozenset[tuple[str, frozenset[ProviderId]]]]
# The choice for one group: the provider for each class; for a group without classes only the provider.
Choice = tuple[tuple[str | None, ProviderState], ...]


def reference_candidates(states: Sequence[ProviderState], query: CandidatesQuery) -> set[Told]:
    world = World(states)
    found = set()
    for anchor in states:
        if anchor.parent is None and world.may_anchor(anchor, query):
            for choices in product(*(world.choices(group, anchor) for group in query.groups)):
                if world.agree(query, choices):
                    found.add(told(query, choices))
    return found


def told(query: CandidatesQuery, choices: Sequence[Choice]) -> Told:
    amounts: dict[tuple[ProviderId, str], int] = {}
    for group, choice in zip(query.groups, choices, strict=True):
        for resource, provider in choice:
            if resource is not None:
                at = (provider.id, resource)
                amounts[at] = amounts.get(at, 0) + group.resources[resource]
    return (
        frozenset((provider, resource, amount) for (provider, resource), amount in amounts.items()),
        frozenset(
            (group.suffix, frozenset(provider.id for _, provider in choice))
            for group, choice in zip(query.groups, choices, strict=True)
        ),
    )


def capacity(inventory: InventoryState) -> float:
    return (inventory.total - inventory.reserved) * inventory.allocation_ratio


def gives(provider: ProviderState, resource: str, amount: int) -> bool:
    inventory = provider.inventories.get(resource)
    return (
        inventory is not None
        and inventory.used + amount <= capacity(inventory)
        and inventory.min_unit <= amount <= inventory.max_unit
        and amount % inventory.step_size == 0
    )


def is_member(provider: ProviderState, group: Group) -> bool:
    return all(any(one in provider.aggregates for one in ids) for ids in group.member_of)


class World:
    def __init__(self, states: Sequence[ProviderState]) -> None:
        self.states = states
        self.by_id = {state.id: state for state in states}

    def may_anchor(self, anchor: ProviderState, query: CandidatesQuery) -> bool:
        return all(trait in anchor.traits for trait in query.root_required) and not any(
            trait in anchor.traits for trait in query.root_forbidden
        )

    def choices(self, group: Group, anchor: ProviderState) -> list[Choice]:
        if group.in_tree is not None and group.in_tree not in self.by_id:
            return []
        return list(self.one_for_all(group, anchor) if group.suffix else self.one_for_each(group, anchor))

    # A group with a suffix

    def one_for_all(self, group: Group, anchor: ProviderState) -> Iterator[Choice]:
        if not group.resources and not group.required and not group.member_of:
            return
        for provider in self.states:
            if (provider.root == anchor.id or self.reaches(provider, anchor)) and self.does(provider, group):
                yield tuple((resource, provider) for resource in group.resources) or ((None, provider),)

    def does(self, provider: ProviderState, group: Group) -> bool:
        return (
            all(gives(provider, resource, amount) for resource, amount in group.resources.items())
            and all(any(trait in provider.traits for trait in names) for names in group.required)
            and not any(trait in provider.traits for trait in group.forbidden)
            and is_member(provider, group)
            and not any(one in provider.aggregates for one in group.forbidden_aggregates)
            and (not group.resources or self.in_tree(provider, group))
        )

    # The group without a suffix

    def one_for_each(self, group: Group, anchor: ProviderState) -> Iterator[Choice]:
        providers = [
            [provider for provider in self.states if self.may_give(provider, resource, group, anchor)]
            for resource in group.resources
        ]
        for chosen in product(*providers):
            if all(any(trait in one.traits for one in chosen for trait in names) for names in group.required):
                yield tuple(zip(group.resources, chosen, strict=True))

    def may_give(self, provider: ProviderState, resource: str, group: Group, anchor: ProviderState) -> bool:
        is_own = provider.root == anchor.id
        is_shared = group.in_tree is None and self.reaches(provider, anchor)
        aggregates = {*provider.aggregates, *anchor.aggregates}
        return (
            (is_own or is_shared)
            and gives(provider, resource, group.resources[resource])
            and not any(trait in provider.traits for trait in group.forbidden)
            and (is_member(provider, group) or (is_own and is_member(anchor, group)))
            and not any(one in aggregates for one in group.forbidden_aggregates)
            and self.in_tree(provider, group)
        )

    # Relations between providers

    def in_tree(self, provider: ProviderState, group: Group) -> bool:
        return group.in_tree is None or provider.root == self.by_id[group.in_tree].root

    def reaches(self, provider: ProviderState, anchor: ProviderState) -> bool:
        """Does it share with a provider in that tree?"""
        return SHARES in provider.traits and any(
            other.root == anchor.id and set(other.aggregates) & set(provider.aggregates)
            for other in self.states
        )

    def above(self, provider: ProviderState) -> set[ProviderId]:
        """The provider, its parent, and so on."""
        ids = {provider.id}
        while provider.parent is not None:
            provider = self.by_id[provider.parent]
            ids.add(provider.id)
        return ids

    # Conditions between groups

    def agree(self, query: CandidatesQuery, choices: Sequence[Choice]) -> bool:
        by_suffix = {group.suffix: choice for group, choice in zip(query.groups, choices, strict=True)}
        return (
            self.fits(query, choices)
            and (query.group_policy != "isolate" or self.differ(by_suffix))
            and all(self.under_one(suffixes, by_suffix) for suffixes in query.same_subtree)
            and (not query.one_provider_per_tree or self.one_per_tree(choices))
        )

    def fits(self, query: CandidatesQuery, choices: Sequence[Choice]) -> bool:
        amounts, _ = told(query, choices)
        return all(
            inventory.used + amount <= capacity(inventory) and amount <= inventory.max_unit
            for provider, resource, amount in amounts
            for inventory in [self.by_id[provider].inventories[resource]]
        )

    def differ(self, by_suffix: Mapping[str, Choice]) -> bool:
        given = [choice[0][1].id for suffix, choice in by_suffix.items() if suffix]
        return len(given) == len(set(given))

    def under_one(self, suffixes: Sequence[str], by_suffix: Mapping[str, Choice]) -> bool:
        given = [by_suffix[suffix][0][1] for suffix in suffixes]
        return any(all(top.id in self.above(one) for one in given) for top in given)

    def one_per_tree(self, choices: Sequence[Choice]) -> bool:
        giving = {one.id: one.root for choice in choices for resource, one in choice if resource is not None}
        return len(giving) == len(set(giving.values()))
