"""The parts of a query: groups of resources with conditions, and conditions between groups."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Literal

import numpy as np
from msgspec import Struct

from engine.candidates.columns import Rows
from engine.candidates.near_slots import Nearness
from engine.candidates.provider_index import ProviderIndex
from engine.inventories import AggregateId, ProviderId, ResourceAmount

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


# The result of a search for candidates. Thousands of candidates differ only in their providers, so those with the same
# amounts and groups are kept as one table (`Block`): one line a candidate, one column a provider.


class CandidatePattern(Struct, frozen=True):
    """What all candidates of a `Block` have in common. `amounts` has what the provider in each column gives (nothing, if it
    only serves a group without resources). `mappings` has the suffix of each group, and the columns that serve the group.
    """

    amounts: tuple[Mapping[str, int], ...]
    mappings: tuple[tuple[str, tuple[int, ...]], ...]


class Block(Struct, frozen=True):
    """A table of candidates with one pattern: one line a candidate, one column a provider (row of the index). No provider
    is twice in a line.

    `preference` is the weight of the preferred traits that each candidate's providers have.
    """

    pattern: CandidatePattern
    rows: Rows
    preference: float = 0.0


class FoundCandidate(Struct, frozen=True):
    """One candidate as an answer shows it: amounts, and the providers of each request group."""

    amounts: tuple[ResourceAmount, ...]
    mappings: Mapping[str, tuple[ProviderId, ...]]
    preference: float = 0.0


class FoundCandidates:
    """Candidates, in the order in which they were found."""

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return sum(len(block.rows) for block in self.blocks)

    @cached_property
    def giving(self) -> Rows:
        """The rows of all providers that give something in any candidate, each once."""
        columns = [
            block.rows[:, column]
            for block in self.blocks
            for column, amounts in enumerate(block.pattern.amounts)
            if amounts
        ]
        rows = np.concatenate(columns) if columns else np.zeros(0, dtype=np.intp)
        # Flags are set in a tenth of the time that sorting takes.
        flags = np.zeros(rows.max(initial=-1) + 1, dtype=np.bool_)
        flags[rows] = True
        return np.flatnonzero(flags)

    def written_out(self, index: ProviderIndex) -> Iterator[FoundCandidate]:
        for block in self.blocks:
            for rows in block.rows.tolist():
                ids = [index.state(row).id for row in rows]
                yield FoundCandidate(
                    amounts=tuple(
                        ResourceAmount(provider=provider, resource=resource, amount=amount)
                        for provider, amounts in zip(ids, block.pattern.amounts, strict=True)
                        for resource, amount in amounts.items()
                    ),
                    mappings={
                        suffix: tuple(ids[column] for column in columns)
                        for suffix, columns in block.pattern.mappings
                    },
                    preference=block.preference,
                )
