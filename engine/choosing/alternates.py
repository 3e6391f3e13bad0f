"""Chooses alternates for chosen hosts, and makes the choice of each host: its name, and the share that the cell and
placement are told.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from engine.candidates.columns import Rows
from engine.choosing.compounds import CompoundFill
from engine.choosing.draft import Draft
from engine.choosing.pools import Parts, ProviderAmount
from engine.choosing.ranking import Scoring
from engine.hosts import INSTANCES_MAX, UNLIMITED
from engine.inventories import Choice, ResourceAmount, ShapeSeen, Share
from engine.requests.spec import InstanceSpec

# Enough that no host is the alternate of too many instances; a larger pool would cost more than it helps.
ALTERNATE_POOL_MAX = 32
WAYS_OF_ALTERNATE = 2


def hosts_among(choices: Sequence[Choice]) -> int:
    """How many different hosts these choices name: two choices may be the same host with different providers."""
    return len({choice.share.host.int for choice in choices})


class AlternatePools:
    """The best hosts of each cell that could take one more instance. Each caller gets the next ones, in rotation.

    `pool` are the positions of the best hosts of all cells. If a cell has fewer of these than are needed, its best
    hosts outside of the pool follow.
    """

    def __init__(
        self,
        choices: "Choices",
        scoring: Scoring,
        pool: Rows,
        open_rows: Rows,
        alternates: int,
        *,
        instances: int,
    ) -> None:
        self._choices = choices
        self._cell = choices.columns.cell
        self._scoring = scoring
        self._pool = pool
        self._open_rows = open_rows
        self._alternates = alternates
        # Several instances take turns with the alternates, and may find their hosts among them. The host of a single one is
        # not open.
        self._enough = alternates + (instances > 1)
        self._most = ALTERNATE_POOL_MAX + alternates if instances > 1 else alternates
        self._pools: dict[int, list[int]] = {}
        self._next: dict[int, int] = {}

    def next_for(self, row: int, cell: int) -> list[int]:
        if cell not in self._next:
            self._next[cell] = 0
            self._pools[cell] = self._pool_of(cell)
        alternates = self._pools[cell]
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

    def _pool_of(self, cell: int) -> list[int]:
        rows = self._open_rows
        in_cell = rows[self._cell[rows] == cell][: ALTERNATE_POOL_MAX + self._alternates].tolist()
        pool = self._choices.open_among(in_cell, self._most)
        return pool if len(pool) >= self._enough else pool + self._best_outside(cell)

    def _best_outside(self, cell: int) -> list[int]:
        """The best hosts of this cell outside of the pool, for a cell of which the pool has too few hosts."""
        hosts, qualify = self._scoring.hosts, self._scoring.qualify
        outside = np.equal(hosts.of(self._cell), cell)
        outside[self._pool] = False
        if qualify is not None:
            outside &= qualify
        best = self._scoring.best(self._alternates + 1, outside)
        return self._choices.open_among(hosts.rows_at(best.positions).tolist(), self._alternates + 1)


class Choices(dict[int, Choice]):
    """For each host's row, the choice of that host for one spec: the host and the share that the spec takes there. Each
    is made when it is first needed. On a compound host it depends on what is free there at that moment.
    """

    def __init__(
        self, draft: Draft, spec: InstanceSpec, filling: CompoundFill | None, instances_max: int = 0
    ) -> None:
        super().__init__()
        self._instances_max = instances_max
        metadata, no_limit = draft.picture.aggregates, instances_max or UNLIMITED
        # By the code of a host's set of aggregates; None if no aggregate has a limit of its own.
        self._limits = metadata.numbers(INSTANCES_MAX, no_limit) if INSTANCES_MAX in metadata.keys else None
        self.columns = draft.columns
        self._picture = draft.picture
        self._filling = filling
        self._spec = spec

    def open_among(self, rows: list[int], at_most: int) -> list[int]:
        """The first `at_most` of these hosts that could take one more instance. By their columns all of them could;
        compound hosts are searched.
        """
        filling = self._filling
        if filling is None:
            return rows[:at_most]
        return [*islice((row for row in rows if not filling.flags[row] or filling.ways(row)), at_most)]

    def ways(self, row: int) -> tuple[Choice, ...]:
        """The choices of this host as an alternate: one, or for a request with granular groups perhaps a second one,
        which takes from other providers. The cell cannot look for a second one, because it has no picture.
        """
        if self._filling is None or not self._spec.groups:
            return (self[row],)
        # Two ways may give the same amounts to other groups.
        found: dict[frozenset[ProviderAmount], Parts] = {}
        for parts in self._filling.ways(row):
            found.setdefault(frozenset(parts), parts)
        others = [*found.values()][1:WAYS_OF_ALTERNATE]
        return (self[row], *[self.given(row, parts) for parts in others])

    def __missing__(self, row: int) -> Choice:
        if self._filling is not None and self._filling.flags[row]:
            found = self._filling.ways(row)
            assert found, "a host that is chosen has room"
            choice = self.given(row, found[0])
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

    def given(self, row: int, parts: Parts) -> Choice:
        """The choice of a compound host with these amounts from its providers. A provider that shares with the host
        belongs to another tree, so the choice names the shape of that tree, too.
        """
        state, host = self._picture.index.state, self.columns.ids[row]
        amounts, roots = [], [host]
        for number, resource, amount in parts:
            provider = state(number)
            amounts.append(ResourceAmount(provider=provider.id, resource=resource, amount=amount))
            if provider.root not in roots:
                roots.append(provider.root)
        trees = self._picture.trees.by_root
        shapes = [ShapeSeen(root, trees[root.int].shape) for root in roots[1:]]
        return self._choice(row, amounts, shapes)

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
