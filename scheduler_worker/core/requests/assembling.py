"""Puts the parts that were read out of a request together to the fields of a spec: amounts, traits and granular groups."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scheduler_worker.core.requests.groups_grammar import PREFERRED
from scheduler_worker.core.requests.parts import (
    AskedTrait,
    DefaultAmount,
    GranularPolicy,
    PreferredClass,
    RequestPart,
    Resource,
    SameSubtree,
    is_of_flavor,
)
from scheduler_worker.core.requests.spec import GranularGroup, NamedWeights


class Needed(NamedTuple):
    """The amounts that a request asks for, without those that are 0: the sums of the whole request in `total`, and
    those of each granular group, by its suffix. Groups that ask for no amounts have an entry, too.
    """

    total: Mapping[str, int]
    by_suffix: Mapping[str, Mapping[str, int]]

    def outside_of_groups(self) -> bool:
        """Is any amount asked for outside of granular groups?"""
        in_groups: dict[str, int] = {}
        for group in self.by_suffix.values():
            for resource, amount in group.items():
                in_groups[resource] = in_groups.get(resource, 0) + amount
        return in_groups != self.total


def needed_by(parts: Sequence[RequestPart]) -> Needed:
    """The amounts that a request needs. The flavor's sizes count for a class that no extra spec asks for."""
    groups: dict[str, dict[str, int]] = {}
    whole: dict[str, int] = {}
    for part in parts:
        if isinstance(part, Resource) and not part.suffix:
            whole[part.name] = part.amount
        elif isinstance(part, Resource | AskedTrait) and part.suffix:
            group = groups.setdefault(part.suffix, {})
            if isinstance(part, Resource) and part.amount:
                group[part.name] = part.amount
    # The amounts of a port or a volume come on top of the flavor's sizes.
    asked = {resource for suffix, group in groups.items() if is_of_flavor(suffix) for resource in group}
    # Dedicated processors (PCPU) replace the flavor's shared ones.
    replaced = {"VCPU"} if whole.get("PCPU") or "PCPU" in asked else set()
    sizes = {
        part.resource: part.amount
        for part in parts
        if isinstance(part, DefaultAmount) and part.resource not in asked | replaced
    }
    total = {resource: amount for resource, amount in (sizes | whole).items() if amount}
    for group in groups.values():
        for resource, amount in group.items():
            total[resource] = total.get(resource, 0) + amount
    return Needed(total, groups)


def traits_that_are(word: str, parts: Sequence[RequestPart], suffix: str = "") -> tuple[str, ...]:
    return tuple(
        sorted(
            {
                part.name
                for part in parts
                if isinstance(part, AskedTrait) and part.word == word and part.suffix == suffix
            }
        )
    )


def preferred_traits_of(parts: Sequence[RequestPart], suffix: str = "") -> NamedWeights:
    weights: dict[str, float] = {}
    for part in parts:
        if isinstance(part, AskedTrait) and part.word == PREFERRED and part.suffix == suffix:
            # The flavor and the image may both prefer a trait.
            weights[part.name] = weights.get(part.name, 0.0) + part.weight
    return tuple(sorted(weights.items()))


def preferred_classes_of(parts: Sequence[RequestPart]) -> NamedWeights:
    return tuple(sorted((part.name, part.weight) for part in parts if isinstance(part, PreferredClass)))


def groups_of(parts: Sequence[RequestPart], needed: Needed) -> tuple[GranularGroup, ...]:
    return tuple(
        [
            GranularGroup(
                suffix=suffix,
                amounts=tuple(sorted(amounts.items())),
                required=traits_that_are("required", parts, suffix),
                forbidden=traits_that_are("forbidden", parts, suffix),
                preferred=preferred_traits_of(parts, suffix),
            )
            for suffix, amounts in sorted(needed.by_suffix.items())
        ]
    )


def policy_of(parts: Sequence[RequestPart]) -> str:
    """The request's group policy; empty if it has none."""
    return next((part.policy for part in parts if isinstance(part, GranularPolicy)), "")


def subtrees_of(parts: Sequence[RequestPart]) -> tuple[tuple[str, ...], ...]:
    return tuple(sorted({part.suffixes for part in parts if isinstance(part, SameSubtree)}))
