"""Providers that give one resource class at a time (trait ONE_CLASS_AT_A_TIME): which of them may give a part of a query?

Such a provider may not give a class while another one is in use there, nor two classes to one candidate. The first is decided
here, for each slot alone. The second is a condition between slots: `slot_solver` sees to it.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from placement_worker.core.candidates.columns import Flags, Ints, Rows
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.suitable import Amounts

Kept = Mapping[int, frozenset[str]]
NOTHING_KEPT: Kept = {}


class OneClassProviders:
    """The providers of an index that give one class at a time, and the classes in use there.

    `taken` is what is reserved beside the usage in the index, by class and row. `kept` has classes that stay in use although
    `taken` counts them as given back: an instance that leaves the host keeps them until its move is confirmed. Both may grow
    between calls of `bars`; the answers for columns (`barred`) are valid as long as they do not.
    """

    def __init__(
        self, index: ProviderIndex, taken: Mapping[str, Mapping[int, int]], kept: Kept = NOTHING_KEPT
    ) -> None:
        self._index = index
        self._taken = taken
        self._kept = kept
        # The set changes in place with the index.
        self._those = index.one_class.rows

    def in_use(self, row: int) -> set[str]:
        """The classes in use at the provider in this row."""
        stocks = self._index.stocks
        found = {
            resource
            for resource in self._index.state(row).inventories
            if stocks[resource].used.item(row) + self._taken.get(resource, {}).get(row, 0) > 0
        }
        return found.union(self._kept.get(row, ()))

    def bars(self, row: int, resources: Amounts) -> bool:
        """Does this provider (row) give one class at a time, and another one than these resources are of?"""
        if row not in self._those or not resources:
            return False
        return len(self.in_use(row).union([resource for resource, _ in resources])) > 1

    def barred(self, resources: Amounts) -> Rows:
        """The rows of all providers that are barred (`bars`) from giving these resources."""
        rows = self._rows
        if not resources:
            return rows[:0]
        if len(resources) > 1:
            return rows
        beside = self._count_in_use - self._is_in_use(resources[0][0])
        barred: Rows = rows[beside > 0]
        return barred

    @property
    def _rows(self) -> Rows:
        return self._index.one_class.array

    @cached_property
    def _count_in_use(self) -> Ints:
        """How many classes are in use at each of these providers, in the order of `_rows`."""
        count = np.zeros(len(self._rows), dtype=np.int64)
        for resource in self._index.one_class_stocks:
            count += self._is_in_use(resource)
        return count

    def _is_in_use(self, resource: str) -> Flags:
        rows, stock = self._rows, self._index.stocks[resource]
        used = stock.used[rows]
        for row, more in self._taken.get(resource, {}).items():
            if row in self._those and stock.step_size.item(row):
                used[np.searchsorted(rows, row)] += more
        in_use: Flags = used > 0
        for row, classes in self._kept.items():
            if resource in classes and row in self._those:
                in_use[np.searchsorted(rows, row)] = True
        return in_use
