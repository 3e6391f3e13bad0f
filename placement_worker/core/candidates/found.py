"""The result of a search for candidates. Thousands of candidates differ only in their providers, so those with the same
amounts and groups are kept as one table (`Block`): one line a candidate, one column a provider.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct

from bus.message import ProviderId
from bus.messages.placement import ResourceAmount
from placement_worker.core.candidates.columns import Rows
from placement_worker.core.candidates.provider_index import ProviderIndex


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
