"""Alternates for chosen hosts, and the share of each host as the cell and placement are told it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bus.messages.cell import Choice
from bus.messages.placement import ResourceAmount, ShapeSeen, Share
from placement_worker.core.candidates.columns import Ints, Rows
from scheduler_worker.core.aggregates.metadata import INSTANCES_MAX, UNLIMITED
from scheduler_worker.core.choosing.compounds import CompoundFill, ProviderAmount
from scheduler_worker.core.choosing.host_columns import Draft
from scheduler_worker.core.requests import InstanceSpec

# Enough that no host is the alternate of too many instances; a larger pool would cost more than it helps.
ALTERNATE_POOL_MAX = 32
WAYS_OF_ALTERNATE = 2


def hosts_among(choices: Sequence[Choice]) -> int:
    """How many hosts these are: a host may be there by several ways."""
    return len({choice.share.host.int for choice in choices})


class Ranked(NamedTuple):
    """All hosts that qualified, their scores, and the positions of those in the pool."""

    rows: Rows
    scores: Ints
    pool: Rows


def the_best(scores: Ints, count: int) -> Rows:
    """The positions of the highest scores, best first."""
    if count < len(scores):
        best = np.argpartition(scores, len(scores) - count)[len(scores) - count :]
    else:
        best = np.arange(len(scores))
    # Equal scores are rare, since a hash is part of each; they keep the order of their rows.
    return best[np.lexsort((best, -scores[best]))]


class AlternatePools:
    """Hosts that could take one more instance, by cell, best first. Each caller gets the next ones, in rotation."""

    def __init__(self, choices: "Choices", ranked: Ranked, open_rows: Rows, alternates: int) -> None:
        self._choices = choices
        self._cell = choices.columns.cell
        self._ranked = ranked
        self._alternates = alternates
        self._pools: dict[int, list[int]] = {}
        self._next: dict[int, int] = {}
        cells = self._cell[open_rows]
        for cell in np.unique(cells).tolist():
            in_cell = open_rows[cells == cell][: ALTERNATE_POOL_MAX + alternates].tolist()
            self._pools[cell] = choices.open_among(in_cell)

    def next_for(self, row: int, cell: int) -> list[int]:
        alternates = self._pools.get(cell, [])
        if cell not in self._next:
            self._next[cell] = 0
            if len(alternates) <= self._alternates:
                alternates = self._pools[cell] = alternates + self._best_outside(cell)
        start = self._next[cell]
        if start + self._alternates >= len(alternates):
            start = 0
        end = start + self._alternates
        found = alternates[start:end]
        if row in found:
            found.remove(row)
            found += alternates[end : end + 1]
            end += 1
        self._next[cell] = end
        return found

    def _best_outside(self, cell: int) -> list[int]:
        """The pool has the best hosts of all cells, and so maybe few of one cell."""
        rows, scores, pool = self._ranked
        outside = np.equal(self._cell[rows], cell)
        outside[pool] = False
        found = np.flatnonzero(outside)
        best: list[int] = rows[found[the_best(scores[found], self._alternates + 1)]].tolist()
        return self._choices.open_among(best)


class Choices(dict[int, Choice]):
    """The choice for a row: the host, with the share that a spec takes there. Each is made when it is first needed; that
    of a compound host depends on what is free there at that moment.
    """

    def __init__(
        self, draft: Draft, spec: InstanceSpec, filling: CompoundFill | None, instances_max: int = 0
    ) -> None:
        super().__init__()
        self._instances_max = instances_max
        # By the code of a host's set of aggregates; None if no aggregate has a limit of its own.
        self._limits = draft.picture.aggregates.numbers(INSTANCES_MAX, instances_max or UNLIMITED)
        self.columns = draft.columns
        self._picture = draft.picture
        self._filling = filling
        self._spec = spec

    def open_among(self, rows: list[int]) -> list[int]:
        """Those of these rows, which have room by their columns, that could still take one more."""
        filling = self._filling
        if filling is None:
            return rows
        return [row for row in rows if not filling.flags[row] or filling.offer(row) is not None]

    def ways(self, row: int) -> tuple[Choice, ...]:
        """The choice for a row as an alternate. A request with groups has a second way on the same host, if there is one:
        the cell has no picture, and could not look for it.
        """
        if self._filling is None or not self._spec.groups:
            return (self[row],)
        # Two ways may give the same amounts to other groups.
        found = {frozenset(self[row].share.amounts): self[row]}
        for parts in self._filling.ways(row):
            other = self.given(row, parts)
            found.setdefault(frozenset(other.share.amounts), other)
        return tuple(found.values())[:WAYS_OF_ALTERNATE]

    def __missing__(self, row: int) -> Choice:
        if self._filling is not None and self._filling.flags[row]:
            parts = self._filling.offer(row)
            assert parts is not None, "a host that is chosen has room"
            choice = self.given(row, parts)
        else:
            host = self.columns.ids[row]
            choice = self._choice(
                row,
                [
                    ResourceAmount(provider=host, resource=resource, amount=amount)
                    for resource, amount in self._spec.amounts
                ],
            )
        self[row] = choice
        return choice

    def given(self, row: int, parts: Sequence[ProviderAmount]) -> Choice:
        """A compound host with these amounts. A provider that shares with it belongs to a tree with a shape of its own."""
        index = self._picture.index
        amounts = [
            ResourceAmount(provider=index.state(part.row).id, resource=part.resource, amount=part.amount)
            for part in parts
        ]
        roots = dict.fromkeys(index.state(part.row).root for part in parts)
        others = [root for root in roots if root != self.columns.ids[row]]
        return self._choice(row, amounts, [ShapeSeen(root, self._picture.shape_of(root)) for root in others])

    def _choice(
        self, row: int, amounts: Sequence[ResourceAmount], others: Sequence[ShapeSeen] = ()
    ) -> Choice:
        columns = self.columns
        host = columns.ids[row]
        shapes = (ShapeSeen(root=host, shape=columns.shapes[row]), *others)
        share = Share(host=host, amounts=tuple(amounts), shapes=shapes, instances_max=self._limit_at(row))
        return Choice(
            name=columns.names[row],
            share=share,
            fingerprint=columns.fingerprints[row],
            kind=columns.kinds[row],
        )

    def _limit_at(self, row: int) -> int:
        if self._limits is None:
            return self._instances_max
        limit = int(self._limits[self.columns.aggregates[row]])
        return 0 if limit == UNLIMITED else limit
