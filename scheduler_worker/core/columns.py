"""What is known of hosts, as columns: one row a host, one array a fact.

Arrays are longer than there are rows, and are doubled when these run out; who reads them cuts them at `rows`. What is
only ever read of single hosts is kept in lists, which are faster for that.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bus.message import ProviderId
from bus.messages.placement import INTEGER_MAX, InventoryState
from placement_worker.core.capacity import capacity_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint64]

Cell = TypeVar("Cell", bound=np.generic)

ROWS_AT_FIRST = 64
WORD_BITS = 64


def _longer(array: NDArray[Cell], length: int) -> NDArray[Cell]:
    longer = np.zeros(length, dtype=array.dtype)
    longer[: len(array)] = array
    return longer


class Stock:
    """One resource class on all hosts. `free` is `capacity - used - held`, kept up with every change of these.

    `used` is what placement says, `held` what own choices take that placement has not answered yet. Whether any host
    ever had a bound of a kind is remembered, since most have none, and what is not looked at costs nothing.
    """

    __slots__ = (
        "capacity",
        "free",
        "has_max_unit",
        "has_min_unit",
        "has_step_size",
        "held",
        "max_unit",
        "min_unit",
        "step_size",
        "used",
    )

    def __init__(self, length: int) -> None:
        self.capacity, self.used, self.held, self.free, self.min_unit, self.max_unit, self.step_size = (
            np.zeros(length, dtype=np.int64) for _ in range(7)
        )
        self.has_min_unit = self.has_max_unit = self.has_step_size = False

    def grow(self, length: int) -> None:
        self.capacity = _longer(self.capacity, length)
        self.used = _longer(self.used, length)
        self.held = _longer(self.held, length)
        self.free = _longer(self.free, length)
        self.min_unit = _longer(self.min_unit, length)
        self.max_unit = _longer(self.max_unit, length)
        self.step_size = _longer(self.step_size, length)

    def put(self, row: int, inventory: InventoryState, used: int) -> None:
        capacity = capacity_of(inventory)
        self.capacity[row] = capacity
        self.min_unit[row] = inventory.min_unit
        self.max_unit[row] = inventory.max_unit
        self.step_size[row] = inventory.step_size
        self.has_min_unit = self.has_min_unit or inventory.min_unit > 1
        self.has_max_unit = self.has_max_unit or inventory.max_unit < min(capacity, INTEGER_MAX)
        self.has_step_size = self.has_step_size or inventory.step_size > 1
        self.use(row, used)

    def clear(self, row: int) -> None:
        """There is nothing of it here; own choices that have not been answered stay counted."""
        for column in (self.capacity, self.min_unit, self.max_unit, self.step_size):
            column[row] = 0
        self.use(row, 0)

    def use(self, row: int, used: int) -> None:
        self.used[row] = used
        self.free[row] = self.capacity[row] - used - self.held[row]

    def hold(self, row: int, amount: int) -> None:
        self.held[row] += amount
        self.free[row] -= amount


class Codes:
    """Small numbers for names, so that a column can hold them and a comparison is one of numbers."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        """That of a name which a host bears: a new one, if it has none yet."""
        code = self._codes.setdefault(name, len(self.names))
        if code == len(self.names):
            self.names.append(name)
        return code

    def find(self, name: str) -> int:
        """That of a name which may be nobody's: then no host's column holds it."""
        return self._codes.get(name, -1)


class Columns:
    """`present`: the row is a host's. `registered`: the registry knows it. `provided`: placement has its tree.
    `consistent`: these two agree on its cell. `holding`: how many own choices on it are not answered yet.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._length = ROWS_AT_FIRST
        self.present, self.registered, self.provided, self.up, self.enabled, self.consistent = (
            np.zeros(self._length, dtype=np.bool_) for _ in range(6)
        )
        self.cell, self.zone, self.instances, self.io_ops, self.holding = (
            np.zeros(self._length, dtype=np.int64) for _ in range(5)
        )
        self.ids: list[ProviderId] = []
        self.names: list[str] = []
        self.disabled_reasons: list[str] = []
        self.shapes: list[int] = []
        self.qualities: list[str] = []
        # Which provider of the tree has the class, where it is not the root.
        self.elsewhere: list[dict[str, ProviderId]] = []
        self.stocks: dict[str, Stock] = {}
        self.cells = Codes()
        self.zones = Codes()
        self.traits = Codes()
        # Bit n of the words is the trait whose code is n.
        self.trait_words: list[Words] = []
        self._free_rows: list[int] = []

    def add(self, host: ProviderId) -> int:
        row = self._free_rows.pop() if self._free_rows else self._append(host)
        self.ids[row] = host
        self.present[row] = True
        return row

    def give_back(self, row: int) -> None:
        """The host of this row is gone, and nothing on it is held: another may have the row."""
        for flags in (self.present, self.registered, self.provided, self.up, self.enabled, self.consistent):
            flags[row] = False
        self._free_rows.append(row)

    def stock(self, resource: str) -> Stock:
        stock = self.stocks.get(resource)
        if stock is None:
            stock = self.stocks[resource] = Stock(self._length)
        return stock

    def put_traits(self, row: int, traits: frozenset[str]) -> None:
        words = [0] * len(self.trait_words)
        for trait in sorted(traits):
            index, bit = divmod(self.traits.code(trait), WORD_BITS)
            if index == len(self.trait_words):
                self.trait_words.append(np.zeros(self._length, dtype=np.uint64))
                words.append(0)
            words[index] |= 1 << bit
        for column, word in zip(self.trait_words, words, strict=True):
            column[row] = word

    def _append(self, host: ProviderId) -> int:
        if self.rows == self._length:
            self._grow()
        self.ids.append(host)
        self.names.append("")
        self.disabled_reasons.append("")
        self.shapes.append(0)
        self.qualities.append("")
        self.elsewhere.append({})
        self.rows += 1
        return self.rows - 1

    def _grow(self) -> None:
        length = self._length = 2 * self._length
        self.present = _longer(self.present, length)
        self.registered = _longer(self.registered, length)
        self.provided = _longer(self.provided, length)
        self.up = _longer(self.up, length)
        self.enabled = _longer(self.enabled, length)
        self.consistent = _longer(self.consistent, length)
        self.cell = _longer(self.cell, length)
        self.zone = _longer(self.zone, length)
        self.instances = _longer(self.instances, length)
        self.io_ops = _longer(self.io_ops, length)
        self.holding = _longer(self.holding, length)
        self.trait_words = [_longer(words, length) for words in self.trait_words]
        for stock in self.stocks.values():
            stock.grow(length)
