"""The demands of a spec on providers, and the query for candidates that follows from it."""

from collections.abc import Iterator
from typing import NamedTuple

from placement_worker.core.candidates.near_slots import Nearness
from placement_worker.core.candidates.query import UNSUFFIXED, CandidatesQuery, Group, Preferred
from scheduler_worker.core.requests import InstanceSpec
from scheduler_worker.core.requests.spec import GranularGroup, NamedWeights


class Needs(NamedTuple):
    """The fields of a spec that say what providers must have. Equal needs have the same result of a search."""

    amounts: tuple[tuple[str, int], ...]
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    preferred: NamedWeights = ()
    groups: tuple[GranularGroup, ...] = ()
    isolates: bool = False
    same_subtree: tuple[tuple[str, ...], ...] = ()
    cells: tuple[str, ...] = ()
    near: tuple[tuple[str, Nearness], ...] = ()

    @property
    def outside_of_groups(self) -> tuple[tuple[str, int], ...]:
        """The amounts that granular groups do not ask for."""
        if not self.groups:
            return self.amounts
        left = dict(self.amounts)
        for group in self.groups:
            for resource, amount in group.amounts:
                left[resource] -= amount
        return tuple([(resource, amount) for resource, amount in left.items() if amount])

    @property
    def prefers_some(self) -> bool:
        """Does the request prefer traits, so that one way to take its amounts may be worth more than another?"""
        return bool(self.preferred) or any(group.preferred for group in self.groups)

    def of_room_alone(self) -> "Needs":
        """These needs without traits. Granular groups that ask for no amounts are left out. So are the `same_subtree`
        conditions that name such a group: without its traits the group could be at the root, and every provider is
        below that.
        """
        if not self.groups:
            return Needs(self.amounts)
        groups = tuple([GranularGroup(group.suffix, group.amounts) for group in self.groups if group.amounts])
        left = {group.suffix for group in groups}
        subtrees = tuple([suffixes for suffixes in self.same_subtree if left.issuperset(suffixes)])
        return Needs(
            self.amounts,
            groups=groups,
            isolates=self.isolates,
            same_subtree=subtrees,
            cells=self.cells,
            near=self.near,
        )

    def one_by_one(self) -> Iterator["Needs"]:
        """Yields the needs outside of groups, and then each group, as needs of their own."""
        outside = self.outside_of_groups
        if outside:
            yield Needs(outside) if self.cells else Needs(outside, self.required, self.forbidden)
        for group in self.groups:
            if group.amounts:
                yield Needs(
                    group.amounts,
                    groups=(GranularGroup(group.suffix, group.amounts, group.required, group.forbidden),),
                )


def needs_of(spec: InstanceSpec) -> Needs:
    return Needs(
        spec.amounts,
        spec.required,
        spec.forbidden,
        spec.preferred,
        spec.groups,
        spec.isolates,
        spec.same_subtree,
        spec.cells,
        spec.near,
    )


def query_of(needs: Needs) -> CandidatesQuery:
    groups = [
        _group(group.suffix, group.amounts, group.required, group.forbidden, group.preferred)
        for group in needs.groups
    ]
    outside = needs.outside_of_groups
    # The sizes of a guest with cells are in groups. So what it asks of the whole host is asked of the host's root.
    of_root, of_outside = ((needs.required, needs.forbidden), ((), ()))
    if not needs.cells:
        of_root, of_outside = of_outside, of_root
    if outside:
        groups.insert(0, _group(UNSUFFIXED, outside, *of_outside, needs.preferred))
    return CandidatesQuery(
        groups=tuple(groups),
        group_policy="isolate" if needs.isolates else None,
        same_subtree=needs.same_subtree,
        root_required=of_root[0],
        root_forbidden=of_root[1],
        cells=needs.cells,
        near=needs.near,
    )


def _group(
    suffix: str,
    amounts: tuple[tuple[str, int], ...],
    required: tuple[str, ...],
    forbidden: tuple[str, ...],
    preferred: NamedWeights,
) -> Group:
    return Group(
        suffix=suffix,
        resources=dict(amounts),
        required=tuple((trait,) for trait in required),
        forbidden=forbidden,
        preferred=tuple(Preferred(trait, weight) for trait, weight in preferred),
    )
