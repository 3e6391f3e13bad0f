"""Sharing providers, as hosts see them: which of them a host may take from, and what they have."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from engine.candidates.columns import Ints, Rows
from engine.inventories import ProviderId, ProviderState
from engine.picture.picture import Picture

# The free amounts at each provider, without what this scheduler's unanswered choices hold there and what the batch has
# taken.


# The row of a provider in the index, a class, and the amount that an instance takes. A search makes so many of these that
# names for the three would cost too much.
ProviderAmount = tuple[int, str, int]
Parts = Sequence[ProviderAmount]


class ProviderRoom:
    """The free amounts at each provider. The picture is not changed: `taken` counts, by class and provider row, what is
    used beside the usage that the picture has.
    """

    def __init__(self, picture: Picture) -> None:
        self._index = picture.index
        self.taken: dict[str, dict[int, int]] = {}
        # Counts what is taken, so that callers know whether an answer still holds.
        self.changes = 0
        for share in picture.held_on_compound():
            for each in share.amounts:
                row = self._index.row_of(each.provider)
                if row is not None:
                    self.count(row, each.resource, each.amount)

    def free(self, row: int, resource: str) -> int:
        taken = self.taken.get(resource)
        free = self._index.stocks[resource].free.item(row)
        return free - taken.get(row, 0) if taken else free

    def part_left(self, row: int, amounts: Mapping[str, int]) -> float:
        """The part of a provider's capacity that stays free after it has given these amounts: the mean of the classes."""
        stocks, left = self._index.stocks, 0.0
        for resource, amount in amounts.items():
            stock, taken = stocks[resource], self.taken.get(resource)
            free = stock.free.item(row) - amount
            left += (free - taken.get(row, 0) if taken else free) / stock.capacity.item(row)
        return left / len(amounts)

    def free_at(self, provider: ProviderId, resource: str) -> int:
        row = self._index.row_of(provider)
        return 0 if row is None else self.free(row, resource)

    def has(self, parts: Parts) -> bool:
        return all(self.free(row, resource) >= amount for row, resource, amount in parts)

    def take(self, parts: Parts) -> None:
        for row, resource, amount in parts:
            self.count(row, resource, amount)

    def count(self, row: int, resource: str, amount: int) -> None:
        self.changes += 1
        taken = self.taken.setdefault(resource, {})
        taken[row] = taken.get(row, 0) + amount

    def correct(self, provider: ProviderId, resource: str, free: int) -> None:
        """Lower the free amount of a class on this provider to the amount that placement has stated."""
        row = self._index.row_of(provider)
        if row is not None and resource in self._index.stocks:
            more = self.free(row, resource) - free
            if more > 0:
                self.count(row, resource, more)


class CompoundPool(NamedTuple):
    """A sharing provider: what it has of one class, and the rows of the hosts that may take from it."""

    state: ProviderState
    free: int
    capacity: int
    users: Rows


class Pools:
    """The sharing providers in one draft; a host is named by its row in the picture's columns."""

    def __init__(self, picture: Picture, room: ProviderRoom) -> None:
        self._picture = picture
        self._index = picture.index
        self._room = room
        self._barred: dict[int, frozenset[int]] = {}
        self._most_at_first: dict[str, Ints | None] = {}

    def of_class(self, resource: str) -> Iterator[CompoundPool]:
        """The sharing providers with an inventory of a class."""
        index = self._index
        for row, users in self._picture.sharing.users.items():
            state = index.state(row)
            if resource in state.inventories:
                capacity = int(index.stocks[resource].capacity[row])
                yield CompoundPool(state, self._room.free(row, resource), capacity, users)

    def most(self, resource: str) -> Ints | None:
        """For each host the largest free amount of a class at one sharing provider that it may use, -1 without such a
        provider; None if no sharing provider has the class.
        """
        pools = list(self.of_class(resource))
        if not pools:
            return None
        most = np.full(self._picture.columns.rows, -1, dtype=np.int64)
        free = np.array([max(pool.free, 0) for pool in pools], dtype=np.int64)
        users = np.concatenate([pool.users for pool in pools])
        np.maximum.at(most, users, np.repeat(free, [len(pool.users) for pool in pools]))
        return most

    def most_at_first(self, resource: str) -> Ints | None:
        """As `most`, but by what was free when the batch first asked; so it is at least as much as is free now."""
        if resource not in self._most_at_first:
            self._most_at_first[resource] = self.most(resource)
        return self._most_at_first[resource]

    @cached_property
    def traits(self) -> frozenset[str]:
        index = self._index
        return frozenset(trait for row in index.sharing for trait in index.state(row).traits)

    def barred_in(self, cell: int) -> frozenset[int]:
        """Sharing providers of other cells, which hosts of this cell may not use: no claim may take from two cells."""
        barred = self._barred.get(cell)
        if barred is None:
            index, name = self._index, self._picture.columns.cells.names[cell]
            barred = frozenset(row for row in index.sharing if index.state(row).cell not in ("", name))
            self._barred[cell] = barred
        return barred

    def providers_for(self, host: int) -> list[ProviderState]:
        """All providers that instances on this host may take from."""
        index, columns = self._index, self._picture.columns
        root = int(columns.root[host])
        if root < 0:
            return []
        barred = self.barred_in(int(columns.cell[host]))
        pools = [row for row in index.pools_of(root) if row not in barred]
        return [index.state(row) for row in (*index.in_trees_of(np.array([root])).tolist(), *pools)]
