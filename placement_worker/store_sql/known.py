"""Providers as they are known without reading them again: which number, in which tree, and with which inventories.

Most claims of a batch go to providers that a batch shortly before was about, and of these only one row each moves. Two
things are believed of a provider that is known, and the others are looked at:

- its number never changes, and never becomes another's;
- its inventories and its cell change only with `base`, which stands in the row that every batch reads. So they are those
  of the base at which they were read, and if it has moved they are read again.

In which tree it stood only says what to lock. Whoever has locked reads the rows, and if one of them stands in a tree
that is not locked, it is forgotten and the batch begins anew.

What a transaction learned is its own secret until it commits: what it wrote itself may vanish with it, and then numbers
and bases come again with other contents.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

from msgspec import Struct

from bus.message import ProviderId
from bus.messages.placement import InventoryState
from placement_worker.core.capacity import Terms, terms_in

# Of some 1 kB each; whoever has more reads some of them again.
PROVIDERS_MAX = 100_000

# number, id, number of its root, id of its root
FoundRow = tuple[int, UUID, int, UUID]
# number, cell, and for each inventory, or with NULLs if there is none: class id, total, reserved, min_unit, max_unit,
# step_size, allocation_ratio
StockRow = tuple[Any, ...]
NO_BASE = -1


class KnownProvider(Struct, frozen=True, gc=False):
    """`cell`, `classes` and `terms` are those of `base`; of one that was only found there is none. `classes` are those of
    its inventories, by number.
    """

    number: int
    id: ProviderId
    root: int
    base: int = NO_BASE
    cell: str = ""
    classes: Mapping[int, str] = {}
    terms: Mapping[str, Terms] = {}


def classes_in(rows: Iterable[StockRow]) -> set[int]:
    return {class_id for _, _, class_id, *_ in rows if class_id is not None}


class KnownProviders:
    """What committed transactions knew: by number, and by the integer of the id, since a UUID hashes in Python."""

    def __init__(self) -> None:
        self.by_number: dict[int, KnownProvider] = {}
        self.by_id: dict[int, KnownProvider] = {}

    def forget(self, known: KnownProvider) -> None:
        self.by_number.pop(known.number, None)
        self.by_id.pop(known.id.int, None)

    def keep(self, learned: Collection[KnownProvider]) -> None:
        if len(self.by_number) + len(learned) > PROVIDERS_MAX:
            self.by_number.clear()
            self.by_id.clear()
        for known in learned:
            self.by_number[known.number] = known
            self.by_id[known.id.int] = known


class Providers:
    """The same, as one transaction sees them: what it has once seen as known stays so, whatever others forget."""

    def __init__(self, known: KnownProviders) -> None:
        self._known = known
        self._seen: dict[int, KnownProvider] = {}
        self._learned: dict[int, KnownProvider] = {}

    def by_id(self, provider: int) -> KnownProvider | None:
        """By the integer of its id; not of those that this transaction found itself."""
        return self._see(self._known.by_id.get(provider))

    def by_number(self, number: int) -> KnownProvider | None:
        return self._seen.get(number) or self._see(self._known.by_number.get(number))

    def of(self, number: int) -> KnownProvider:
        """Seen before in this transaction; so is its root."""
        return self._seen[number]

    def found(self, rows: Iterable[FoundRow]) -> None:
        """What was looked for; `by_number` has them now, and their roots."""
        for number, uuid, root, root_uuid in rows:
            for one, id_ in ((number, uuid), (root, root_uuid)):
                if self.by_number(one) is None:
                    self._learn(KnownProvider(one, ProviderId(UUID(int=id_.int)), root))

    def read(self, bases: Mapping[int, int], rows: Iterable[StockRow], names: Mapping[int, str]) -> None:
        """Of providers that stand at these bases."""
        cells: dict[int, str] = {}
        stocks: dict[int, dict[int, InventoryState]] = {number: {} for number in bases}
        for number, cell, class_id, *stock in rows:
            cells[number] = cell
            if class_id is not None:
                stocks[number][class_id] = InventoryState(*stock)
        for number, base in bases.items():
            known = self._seen[number]
            classes = {class_id: names[class_id] for class_id in stocks[number]}
            terms = terms_in({classes[class_id]: stock for class_id, stock in stocks[number].items()})
            self._learn(KnownProvider(number, known.id, known.root, base, cells[number], classes, terms))

    def forget(self, known: KnownProvider) -> None:
        self._seen.pop(known.number, None)
        self._learned.pop(known.number, None)
        self._known.forget(known)

    def committed(self) -> None:
        if self._learned:
            self._known.keep(self._learned.values())

    def _see(self, known: KnownProvider | None) -> KnownProvider | None:
        """With its root, or not at all."""
        if known is None or (known.root != known.number and self.by_number(known.root) is None):
            return None
        return self._seen.setdefault(known.number, known)

    def _learn(self, known: KnownProvider) -> None:
        self._seen[known.number] = self._learned[known.number] = known
