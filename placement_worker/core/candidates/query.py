"""The parts of a query: groups of resources with conditions, and conditions between groups."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from bus.message import AggregateId, ProviderId
from placement_worker.core.candidates.near_slots import Nearness

UNSUFFIXED = ""


class Preferred(Struct, frozen=True):
    """A trait that is optional, and what a provider that has it is worth; a negative weight avoids it."""

    trait: str
    weight: float = 1.0


class Group(Struct, frozen=True):
    """One group of requested resources. Of each tuple in `required` and in `member_of`, any one member is enough.

    The group without a suffix may take each class from another provider of one tree, or from one that shares with that
    tree. These providers together must have the required traits. If a tree's root is a member of an aggregate, all
    providers of the tree count as its members.

    A group with a suffix takes everything from one provider, which must meet all conditions by itself. It may ask for no
    resources: then it must require a trait or an aggregate (otherwise nothing meets it), and the provider `in_tree` only has
    to exist. Both rules are Placement's.
    """

    suffix: str = UNSUFFIXED
    resources: Mapping[str, int] = {}
    required: tuple[tuple[str, ...], ...] = ()
    forbidden: tuple[str, ...] = ()
    preferred: tuple[Preferred, ...] = ()
    member_of: tuple[tuple[AggregateId, ...], ...] = ()
    forbidden_aggregates: tuple[AggregateId, ...] = ()
    in_tree: ProviderId | None = None


class CandidatesQuery(Struct, frozen=True):
    """A query for candidates: the needs that each of them must meet. The `groups` have different suffixes; a group without a suffix asks for resources.

    With `isolate`, no two groups with suffixes get the same provider. `same_subtree` has tuples of suffixes: among the
    providers of these groups, one is at or above all others. `root_required` and `root_forbidden` are traits of the
    candidate's root. With `one_provider_per_tree` (microversions before 1.29) no candidate takes from two providers of one
    tree. Without `limit` all candidates are wanted.

    `cells` are the suffixes of groups that are NUMA cells of a guest: no two of them get the same provider. Each group in `near`
    gets one near that of a cell (near_slots.py).
    """

    groups: tuple[Group, ...]
    group_policy: Literal["none", "isolate"] | None = None
    same_subtree: tuple[tuple[str, ...], ...] = ()
    root_required: tuple[str, ...] = ()
    root_forbidden: tuple[str, ...] = ()
    limit: int | None = None
    one_provider_per_tree: bool = False
    cells: tuple[str, ...] = ()
    near: tuple[tuple[str, Nearness], ...] = ()
