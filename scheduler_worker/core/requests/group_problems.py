"""Finds what is wrong with the granular groups of a request, taken together."""

from collections.abc import Iterator, Sequence

from scheduler_worker.core.requests.assembling import Needed, policy_of, subtrees_of, traits_that_are
from scheduler_worker.core.requests.groups_grammar import GROUP_POLICY, SAME_SUBTREE
from scheduler_worker.core.requests.parts import (
    AskedTrait,
    CellOfGuest,
    RequestPart,
    RequestProblem,
    Resource,
    SameSubtree,
    is_of_flavor,
)

# A search takes about the square of this number of steps for each tree.
GROUPS_MAX = 32


def problems_of_groups(parts: Sequence[RequestPart], needed: Needed) -> Iterator[RequestProblem]:
    suffixes = sorted(needed.by_suffix)
    if len(suffixes) > GROUPS_MAX:
        yield RequestProblem(
            "flavor.extra_specs", len(suffixes), f"at most {GROUPS_MAX} granular groups can be asked for"
        )
    taking = [suffix for suffix in suffixes if needed.by_suffix[suffix]]
    of_flavor = [suffix for suffix in taking if is_of_flavor(suffix)]
    if len(of_flavor) > 1 and not policy_of(parts):
        reason = (
            f"there is none, and granular groups {', '.join(of_flavor)} need one: none (they may share a provider) "
            "or isolate (each has its own)"
        )
        yield RequestProblem(f"flavor.extra_specs.{GROUP_POLICY}", "", reason)
    for part in parts:
        if isinstance(part, SameSubtree):
            yield from _problems_of_subtree(part, suffixes)
    together = {suffix for subtree in subtrees_of(parts) for suffix in subtree}
    for suffix in ("", *suffixes):
        yield from _problems_of_traits(parts, suffix)
    has_cells = any(isinstance(part, CellOfGuest) for part in parts)
    if suffixes and not needed.outside_of_groups():
        yield from _problems_of_nothing_outside(parts, has_cells=has_cells)
    for suffix in suffixes:
        if suffix not in taking and is_of_flavor(suffix):
            yield from _problems_without_amounts(parts, suffix, is_together=suffix in together)


def _problems_of_subtree(part: SameSubtree, suffixes: Sequence[str]) -> Iterator[RequestProblem]:
    for suffix in part.suffixes:
        if suffix not in suffixes:
            reason = (
                f"{suffix!r} is the suffix of no granular group; there are {', '.join(suffixes) or 'none'}"
            )
            yield RequestProblem(part.field, ",".join(part.suffixes), reason)


def _problems_of_traits(parts: Sequence[RequestPart], suffix: str) -> Iterator[RequestProblem]:
    required = traits_that_are("required", parts, suffix)
    for trait in traits_that_are("forbidden", parts, suffix):
        if trait in required:
            field = next(
                part.field
                for part in parts
                if isinstance(part, AskedTrait) and part.name == trait and part.suffix == suffix
            )
            yield RequestProblem(field, trait, "is both required and forbidden, which no host can be")


def _problems_of_nothing_outside(
    parts: Sequence[RequestPart], *, has_cells: bool
) -> Iterator[RequestProblem]:
    for part in parts:
        # What a guest with cells requires of the whole host is asked of the host's root.
        of_root = has_cells and isinstance(part, AskedTrait) and part.word in ("required", "forbidden")
        if isinstance(part, AskedTrait) and not part.suffix and not of_root:
            reason = (
                "it is about the resources outside of granular groups, and the request has none; "
                f"name the group that it is about, as in traitN:{part.name}"
            )
            yield RequestProblem(part.field, part.word, reason)


def _problems_without_amounts(
    parts: Sequence[RequestPart], suffix: str, *, is_together: bool
) -> Iterator[RequestProblem]:
    """The problems of a granular group that asks for no amounts. Such a group only requires a provider with certain
    traits, and `same_subtree` says near the providers of which other groups.
    """
    part = next(part for part in parts if isinstance(part, Resource | AskedTrait) and part.suffix == suffix)
    kind, word = ("resources", "0") if isinstance(part, Resource) else ("trait", part.word)
    field = f"flavor.extra_specs.{kind}{suffix}:{part.name}"
    if not traits_that_are("required", parts, suffix):
        yield RequestProblem(
            field, word, f"granular group {suffix} asks for no resources and requires no trait"
        )
    elif not is_together:
        reason = f"granular group {suffix} asks for no resources, so {SAME_SUBTREE} must name it beside other groups"
        yield RequestProblem(field, word, reason)
