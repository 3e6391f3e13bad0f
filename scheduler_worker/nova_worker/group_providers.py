"""Which provider of a claimed share serves which granular group of the request. A share has only the sums.

Nova's computes bind ports and devices to the providers that the answer names. If several providers could serve a group, any
assignment will do in which each group gets what it asks for.
"""

from collections.abc import Mapping, Sequence

from bus.message import ProviderId
from bus.messages.placement import ProviderState, Share
from placement_worker.core.candidates.provider_index import ProviderIndex
from scheduler_worker.core.requests import InstanceSpec
from scheduler_worker.core.requests.spec import GranularGroup

Left = dict[tuple[ProviderId, str], int]


def group_providers(
    spec: InstanceSpec, share: Share, index: ProviderIndex
) -> Mapping[str, ProviderId] | None:
    """The provider of each group, by its suffix. None if no assignment gives each group what it asks for: the tree has changed
    since it was chosen.
    """
    if not spec.groups:
        return {}
    left: Left = {}
    for each in share.amounts:
        key = each.provider, each.resource
        left[key] = left.get(key, 0) + each.amount
    givers = list(dict.fromkeys(each.provider for each in share.amounts))
    states = {id_: state for id_ in givers if (state := _state(index, id_)) is not None}
    # A group without amounts may be served by any provider of the trees.
    roots = sorted({state.root for state in states.values()})
    others = {each.id: each for root in roots for each in index.states_in_tree(root) if each.id not in states}
    states |= others
    order = sorted(spec.groups, key=lambda group: -len(group.amounts))
    return _assign(order, {}, left, _Solver(spec, states, givers, [*others]))


class _Solver:
    def __init__(
        self,
        spec: InstanceSpec,
        states: Mapping[ProviderId, ProviderState],
        givers: Sequence[ProviderId],
        others: Sequence[ProviderId],
    ) -> None:
        self.spec = spec
        self.states = states
        self.givers = givers
        self.others = others

    def candidates(
        self, group: GranularGroup, left: Left, taken: Mapping[str, ProviderId]
    ) -> list[ProviderId]:
        among = self.givers if group.amounts else (*self.givers, *self.others)
        return [
            id_
            for id_ in among
            if all(left.get((id_, resource), 0) >= amount for resource, amount in group.amounts)
            and self._has_traits(id_, group)
            and not (self.spec.isolates and group.amounts and id_ in taken.values())
        ]

    def is_near(self, taken: Mapping[str, ProviderId]) -> bool:
        """Are the groups of each wish for one subtree, as far as they are assigned, at or below one of their providers?"""
        for wish in self.spec.same_subtree:
            providers = [taken[suffix] for suffix in wish if suffix in taken]
            if len(providers) == len(wish) and not any(
                all(top in self._ancestors(each) for each in providers) for top in providers
            ):
                return False
        return True

    def _has_traits(self, id_: ProviderId, group: GranularGroup) -> bool:
        state = self.states.get(id_)
        traits = frozenset(state.traits) if state is not None else frozenset[str]()
        return traits.issuperset(group.required) and traits.isdisjoint(group.forbidden)

    def _ancestors(self, id_: ProviderId) -> set[ProviderId]:
        found: set[ProviderId] = set()
        at: ProviderId | None = id_
        while at is not None and at not in found:
            found.add(at)
            state = self.states.get(at)
            at = None if state is None else state.parent
        return found


def _assign(
    groups: Sequence[GranularGroup], taken: Mapping[str, ProviderId], left: Left, solver: _Solver
) -> Mapping[str, ProviderId] | None:
    if not groups:
        return taken
    group, others = groups[0], groups[1:]
    for id_ in solver.candidates(group, left, taken):
        now = {**taken, group.suffix: id_}
        if not solver.is_near(now):
            continue
        rest = dict(left)
        for resource, amount in group.amounts:
            rest[id_, resource] -= amount
        if (found := _assign(others, now, rest, solver)) is not None:
            return found
    return None


def _state(index: ProviderIndex, id_: ProviderId) -> ProviderState | None:
    row = index.row_of(id_)
    return None if row is None else index.state(row)
