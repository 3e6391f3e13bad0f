"""What may be asked: groups of resources with their qualities, and what holds between the groups."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from bus.message import AggregateId, ProviderId

UNSUFFIXED = ""


class Preferred(Struct, frozen=True):
    """A trait that need not be there, and what it is worth if it is; a negative weight shuns it."""

    trait: str
    weight: float = 1.0


class Group(Struct, frozen=True):
    """What one group asks for. Of each tuple in `required` and in `member_of` any one member will do.

    The group without a suffix may take each class from another provider of one tree, or from one that shares with that
    tree; required traits are met by those providers together, and where a root is in the aggregates, all its tree is.
    A group with a suffix takes everything from one provider, which meets everything by itself. It may ask for no
    resources at all; then it must require a trait or an aggregate, for otherwise nothing meets it, and `in_tree` only
    has to exist: both as Placement has it.
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
    """`groups` have different suffixes, and the one without, if there is one, asks for resources.

    With `isolate` no two groups with suffixes are given the same provider. The providers given to the groups of each
    tuple in `same_subtree` all stand under one of them. `root_required` and `root_forbidden` are about the root of the
    tree that a candidate is for. With `one_provider_per_tree` (before 1.29) no candidate takes from two providers of
    one tree. `limit` None asks for all.
    """

    groups: tuple[Group, ...]
    group_policy: Literal["none", "isolate"] | None = None
    same_subtree: tuple[tuple[str, ...], ...] = ()
    root_required: tuple[str, ...] = ()
    root_forbidden: tuple[str, ...] = ()
    limit: int | None = None
    one_provider_per_tree: bool = False
