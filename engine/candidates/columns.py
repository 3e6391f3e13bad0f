"""Columns: arrays with one property of all providers each; a provider is a row, the same in all columns.

Arrays are longer than the number of rows, so that they seldom grow; readers cut them.

Rows are written one at a time, as providers change, and read all together. Usage changes most often: updates of many
providers are collected first, then each column is written once.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.inventories import INTEGER_MAX, InventoryState, capacity_of

Ints = NDArray[np.int64]
Rows = NDArray[np.intp]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
# Which rows of columns: the first so many, or these.
At = slice | Rows

Scalar = TypeVar("Scalar", bound=np.generic)

WORD_BITS = 64


def longer(array: NDArray[Scalar], length: int) -> NDArray[Scalar]:
    grown = np.zeros(length, dtype=array.dtype)
    grown[: len(array)] = array
    return grown


# The columns of a stock.
_AMOUNTS = ("capacity", "used", "free", "min_unit", "max_unit", "step_size")


class Stock:
    """The inventories of one resource class of all providers, as columns. Without an inventory, `free` is 0.

    `providers` counts the providers that have one. The `has_...` flags say whether any provider ever had such a limit:
    most classes have none, and a limit that nobody has is not checked.
    """

    __slots__ = (*_AMOUNTS, "has_limits", "has_max_unit", "has_min_unit", "has_step_size", "providers")

    def __init__(self, length: int) -> None:
        self.capacity, self.used, self.free, self.min_unit, self.max_unit, self.step_size = (
            np.zeros(length, dtype=np.int64) for _ in _AMOUNTS
        )
        self.has_limits = self.has_min_unit = self.has_max_unit = self.has_step_size = False
        self.providers = 0

    def grow(self, length: int) -> None:
        for name in _AMOUNTS:
            setattr(self, name, longer(getattr(self, name), length))

    def copy(self) -> "Stock":
        other = copy(self)
        for name in _AMOUNTS:
            setattr(other, name, getattr(self, name).copy())
        return other

    def put(self, row: int, inventory: InventoryState) -> None:
        capacity = capacity_of(inventory)
        self.capacity[row] = capacity
        self.min_unit[row] = inventory.min_unit
        self.max_unit[row] = inventory.max_unit
        self.step_size[row] = inventory.step_size
        self.has_min_unit = self.has_min_unit or inventory.min_unit > 1
        self.has_max_unit = self.has_max_unit or inventory.max_unit < min(capacity, INTEGER_MAX)
        self.has_step_size = self.has_step_size or inventory.step_size > 1
        self.has_limits = self.has_min_unit or self.has_max_unit or self.has_step_size
        self.use(row, inventory.used)

    def use(self, rows: int | Ints, used: int | Ints) -> None:
        self.used[rows] = used
        self.free[rows] = self.capacity[rows] - used

    def clear(self, row: int) -> None:
        for name in _AMOUNTS:
            getattr(self, name)[row] = 0

    def giving(self, amount: int, rows: int) -> Flags:
        """Flags of the providers (rows) that can give this amount to one consumer."""
        giving: Flags = self.free[:rows] >= amount
        return giving & self.allowing(amount, slice(rows)) if self.has_limits else giving

    def gives(self, amount: int, row: int, taken: int) -> bool:
        """Can this provider (row) give the amount to one consumer, if `taken` is reserved beside its usage?"""
        has_room: bool = self.free.item(row) - taken >= amount
        return has_room and (not self.has_limits or bool(self.allowing(amount, row)))

    def allowing(self, amount: int, at: slice | int | Rows) -> Any:
        """Do the limits min_unit, max_unit and step_size allow the amount? One flag for a row, or flags for several rows, all
        with an inventory.
        """
        allowing: Any = np.True_
        if self.has_min_unit:
            allowing = self.min_unit[at] <= amount
        if self.has_max_unit:
            allowing = allowing & (self.max_unit[at] >= amount)
        if self.has_step_size:
            # Without an inventory the step is 0.
            allowing = allowing & (amount % np.maximum(self.step_size[at], 1) == 0)
        return allowing

    def room(self, rows: int) -> Ints:
        """The most that one consumer may get from each provider (row) in total: what is free, but at most max_unit."""
        return np.minimum(self.free[:rows], self.max_unit[:rows])

    def room_at(self, row: int, taken: int) -> int:
        """The most that one consumer may get from this provider (row) in total, if `taken` is reserved beside its usage."""
        return min(self.free.item(row) - taken, self.max_unit.item(row))


AnyStock = TypeVar("AnyStock", bound=Stock)


class BatchedValues(Generic[AnyStock]):
    """Collects numbers for single providers (rows) by resource class, so that each class's `Stock` is written once."""

    def __init__(self) -> None:
        self._of: dict[AnyStock, tuple[list[int], list[int]]] = {}

    def add(self, stock: AnyStock, row: int, number: int) -> None:
        gathered = self._of.get(stock)
        if gathered is None:
            gathered = self._of[stock] = [], []
        gathered[0].append(row)
        gathered[1].append(number)

    def __iter__(self) -> Iterator[tuple[AnyStock, Ints, Ints]]:
        for stock, (rows, numbers) in self._of.items():
            yield stock, np.array(rows, dtype=np.int64), np.array(numbers, dtype=np.int64)


class BitSets:
    """Which names (traits) each row has, as bits. Bit n of a row's words stands for the name with code n. The code of a
    name that no row has any more is given to another name.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._codes: dict[str, int] = {}
        self._bearer_counts: dict[str, int] = {}
        self._free_codes: list[int] = []
        self._words: list[Words] = []

    def grow(self, length: int) -> None:
        self._length = length
        self._words = [longer(words, length) for words in self._words]

    def copy(self) -> "BitSets":
        other = BitSets(self._length)
        other._codes, other._bearer_counts = dict(self._codes), dict(self._bearer_counts)
        other._free_codes = list(self._free_codes)
        other._words = [words.copy() for words in self._words]
        return other

    @property
    def names(self) -> frozenset[str]:
        """The names that any provider (row) has."""
        return frozenset(self._codes)

    def __contains__(self, name: str) -> bool:
        """Does any provider (row) have this name?"""
        return name in self._codes

    @property
    def words(self) -> int:
        """How many words of bits the names of one provider (row) take."""
        return len(self._words)

    def put(self, row: int, before: tuple[str, ...], names: tuple[str, ...]) -> None:
        """Replace the names of this provider (row)."""
        bits = 0
        for name in dict.fromkeys(names):
            bits |= 1 << self._code_for(name)
        for name in dict.fromkeys(before):
            self._release_code(name)
        for words in self._words:
            words[row] = bits & (1 << WORD_BITS) - 1
            bits >>= WORD_BITS

    def _code_for(self, name: str) -> int:
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = self._free_codes.pop() if self._free_codes else len(self._codes)
            if code == len(self._words) * WORD_BITS:
                self._words.append(np.zeros(self._length, dtype=np.uint64))
        self._bearer_counts[name] = self._bearer_counts.get(name, 0) + 1
        return code

    def _release_code(self, name: str) -> None:
        self._bearer_counts[name] -= 1
        if not self._bearer_counts[name]:
            del self._bearer_counts[name]
            self._free_codes.append(self._codes.pop(name))

    def having_any(self, names: tuple[str, ...], at: At) -> Flags:
        """Flags of the providers in these rows: which have at least one of these names?"""
        masks: dict[int, int] = {}
        for name in names:
            code = self._codes.get(name)
            if code is not None:
                index, bit = divmod(code, WORD_BITS)
                masks[index] = masks.get(index, 0) | 1 << bit
        bearing = np.zeros(at.stop if isinstance(at, slice) else len(at), dtype=np.bool_)
        for index, mask in masks.items():
            bearing |= self._words[index][at] & np.uint64(mask) != 0
        return bearing


class Members:
    """The rows of one aggregate: a set for updates, and a sorted array for searches."""

    __slots__ = ("_array", "rows")

    def __init__(self) -> None:
        self.rows: set[int] = set()
        self._array: Rows | None = None

    def copy(self) -> "Members":
        other = Members()
        # The array is never written into, only replaced.
        other.rows, other._array = set(self.rows), self._array
        return other

    def add(self, row: int) -> None:
        self.rows.add(row)
        self._array = None

    def discard(self, row: int) -> None:
        self.rows.discard(row)
        self._array = None

    @property
    def array(self) -> Rows:
        if self._array is None:
            self._array = np.fromiter(self.rows, dtype=np.intp, count=len(self.rows))
            self._array.sort()
        return self._array


# Layouts of trees. Trees of one layout have the same parent-child relations, so one check covers all of them.
#
# A place is a position in a layout. Places are numbered from the root down: place 0 is the root, and a child has a higher
# number than its parent.


TREES_AT_FIRST = 4


class TreeLayout:
    """A layout, and the table of all trees that have it.

    `parents` has the parent of each place (position in the tree), -1 for the root. `under` has, for each place, the places
    at and below it, as bits.
    """

    def __init__(self, parents: tuple[int, ...]) -> None:
        self.parents = parents
        under = [1 << place for place in range(len(parents))]
        for place in range(len(parents) - 1, 0, -1):
            under[parents[place]] |= under[place]
        self.under = tuple(under)
        self._rows = np.zeros((TREES_AT_FIRST, len(parents)), dtype=np.intp)
        self._count = 0

    def copy(self) -> "TreeLayout":
        other = TreeLayout(self.parents)
        other._rows, other._count = self._rows.copy(), self._count
        return other

    def __len__(self) -> int:
        """How many trees have this layout."""
        return self._count

    @property
    def rows(self) -> Rows:
        """The table of these trees: one line for each tree, one column for each place (position in the tree)."""
        return self._rows[: self._count]

    def add(self, rows: Sequence[int]) -> int:
        """Add a tree, given by the rows of its providers. Returns its line in the table."""
        if self._count == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        self._rows[self._count] = rows
        self._count += 1
        return self._count - 1

    def remove(self, line: int) -> int:
        """Remove the tree at this line of the table, and move the last tree to this line. Returns the row of the root of the
        tree that was moved.
        """
        self._count -= 1
        self._rows[line] = self._rows[self._count]
        return int(self._rows[line, 0])


class TreeLine(NamedTuple):
    """Where a tree is stored: its layout, which has a table of the trees with that layout, and the line in the table."""

    layout: TreeLayout
    line: int
