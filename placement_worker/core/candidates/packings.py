"""Packings: resource classes that several slots (parts of the query) may take from one provider, and the room for them.

The room matters only as far as the query can use it. If three slots ask for 2 each, a provider with room for 5 is like
one with room for 4. So the room is rounded down to a sum of amounts, and trees with the same rounded room are alike.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from placement_worker.core.candidates.budget import ROWS_PER_STEP, Budget
from placement_worker.core.candidates.columns import Ints
from placement_worker.core.candidates.fitting import ByRow, Slot, Taken
from placement_worker.core.candidates.provider_index import ProviderIndex

SUMS_MAX = 1024


class RowPacking(Struct, frozen=True):
    """One resource class that several slots may take from one provider. `amounts` is what each slot takes of it (or 0);
    `room` is what each provider (row) has for all of them together.
    """

    amounts: tuple[int, ...]
    room: ByRow[int]


class ColumnPacking(RowPacking, frozen=True):
    """A packing as columns of all providers. `room` is rounded down to a sum of some slots' amounts; `level` is the number of
    that sum, counted from the smallest one (0).
    """

    level: Ints


def packings_of(
    index: ProviderIndex, slots: Sequence[Slot], budget: Budget, *, isolate: bool, taken: Taken
) -> list[ColumnPacking]:
    """The resource classes that several slots (parts of the query) may take from one provider, with the room of all
    providers. With `isolate`, two groups with suffixes never take from one provider.
    """
    packings = []
    budget.spend(sum(len(slot.resources) for slot in slots))
    for resource, amounts in packed_amounts(slots, isolate=isolate):
        # The search also makes temporary arrays, which are freed afterwards.
        budget.hold(2 * 8 * index.rows)
        budget.spend(len(slots) + SUMS_MAX + 8 * index.rows // ROWS_PER_STEP)
        stock = index.stocks[resource]
        room = stock.room(index.rows)
        for row, less in taken.get(resource, {}).items():
            room[row] = stock.room_at(row, less)
        packings.append(_column_packing(room, amounts))
    return packings


def packed_amounts(slots: Sequence[Slot], *, isolate: bool) -> list[tuple[str, tuple[int, ...]]]:
    """The classes that several slots (parts of the query) may take from one provider, each with the amounts of all slots."""
    takers: dict[str, list[int]] = {}
    for number, slot in enumerate(slots):
        for resource, _ in slot.resources:
            takers.setdefault(resource, []).append(number)
    return [
        (resource, tuple([dict(slot.resources).get(resource, 0) for slot in slots]))
        for resource, numbers in sorted(takers.items())
        if len(numbers) > 1 and not (isolate and all(slots[number].is_suffixed for number in numbers))
    ]


def _column_packing(room: Ints, amounts: tuple[int, ...]) -> ColumnPacking:
    total = sum(amounts)
    sums = {0}
    for amount in amounts:
        sums |= {each + amount for each in sums}
        if len(sums) > SUMS_MAX:
            # Too many sums: tell each unit apart. That gives more classes of trees, and the same solutions.
            room, sums = np.clip(room, 0, total), set(np.clip(room, 0, total).tolist())
            break
    steps = np.array(sorted(sums), dtype=np.int64)
    level = np.maximum(np.searchsorted(steps, room, side="right") - 1, 0)
    return ColumnPacking(amounts, steps[level], level)
