"""Sharing providers, as hosts see them: which of them a host may take from, and what they have."""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bus.messages.placement import ProviderState
from placement_worker.core.candidates.columns import Ints, Rows
from scheduler_worker.core.choosing.compound.provider_room import ProviderRoom
from scheduler_worker.core.picture.picture import Picture


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
