"""What was found. Thousands of candidates are alike but for their providers, so they are kept as shapes and rows."""

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct

from bus.message import ProviderId
from bus.messages.placement import ResourceAmount
from placement_worker.core.candidates.columns import Rows
from placement_worker.core.candidates.woods import Woods


class Shape(Struct, frozen=True):
    """What all candidates of some blocks have in common, by column: what each provider gives (nothing, if a group
    without resources was met by it), and which columns met which group.
    """

    amounts: tuple[Mapping[str, int], ...]
    mappings: tuple[tuple[str, tuple[int, ...]], ...]


class Block(Struct, frozen=True):
    """Candidates of one shape: one line each, one column a provider; no provider stands in a line twice.

    `preference` is what each of them is worth by preferred traits.
    """

    shape: Shape
    rows: Rows
    preference: float = 0.0


class Candidate(Struct, frozen=True):
    """One of them, written out."""

    amounts: tuple[ResourceAmount, ...]
    mappings: Mapping[str, tuple[ProviderId, ...]]
    preference: float = 0.0


class Candidates:
    """In the order in which they were found."""

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return sum(len(block.rows) for block in self.blocks)

    @cached_property
    def giving(self) -> Rows:
        """The rows of all that give something, each once: of their trees, or of themselves, summaries are made."""
        columns = [
            block.rows[:, column]
            for block in self.blocks
            for column, amounts in enumerate(block.shape.amounts)
            if amounts
        ]
        return np.unique(np.concatenate(columns)) if columns else np.zeros(0, dtype=np.intp)

    def written_out(self, woods: Woods) -> Iterator[Candidate]:
        for block in self.blocks:
            for rows in block.rows.tolist():
                ids = [woods.state(row).id for row in rows]
                yield Candidate(
                    amounts=tuple(
                        ResourceAmount(provider=provider, resource=resource, amount=amount)
                        for provider, amounts in zip(ids, block.shape.amounts, strict=True)
                        for resource, amount in amounts.items()
                    ),
                    mappings={
                        suffix: tuple(ids[column] for column in columns)
                        for suffix, columns in block.shape.mappings
                    },
                    preference=block.preference,
                )
