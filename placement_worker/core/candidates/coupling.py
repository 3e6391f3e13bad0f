"""Resource classes that several slots may take from one provider: is there room for all of them?

How much of such a class is left matters only as far as the query can tell. If three slots ask for 2 each, a provider
with room for 5 is like one with room for 4. So room is given as a level: how many different sums of the amounts fit.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from placement_worker.core.candidates.budget import ROWS_PER_STEP, Budget
from placement_worker.core.candidates.columns import Ints
from placement_worker.core.candidates.fitting import ByRow, Slot, Taken
from placement_worker.core.candidates.provider_index import ProviderIndex

SUMS_MAX = 1024


class Coupled(Struct, frozen=True):
    """`amounts` is what each slot takes of the class, or 0; `room` is what each row has for all of them together."""

    amounts: tuple[int, ...]
    room: ByRow[int]


class Coupling(Coupled, frozen=True):
    """A class that several slots take from, over all providers (rows). `room` is rounded down to a sum of amounts, and
    `level` numbers these sums.
    """

    level: Ints


def couplings_of(
    index: ProviderIndex, slots: Sequence[Slot], budget: Budget, *, isolate: bool, taken: Taken
) -> list[Coupling]:
    """The resource classes from which several slots (parts of the query) may take at one provider. With `isolate`, two
    slots with suffixes never do.
    """
    couplings = []
    budget.spend(sum(len(slot.resources) for slot in slots))
    for resource, amounts in coupled_amounts(slots, isolate=isolate):
        # The search also makes temporary arrays, which are freed afterwards.
        budget.hold(2 * 8 * index.rows)
        budget.spend(len(slots) + SUMS_MAX + 8 * index.rows // ROWS_PER_STEP)
        stock = index.stocks[resource]
        room = stock.room(index.rows)
        for row, less in taken.get(resource, {}).items():
            room[row] = stock.room_at(row, less)
        couplings.append(_coupling(room, amounts))
    return couplings


def coupled_amounts(slots: Sequence[Slot], *, isolate: bool) -> list[tuple[str, tuple[int, ...]]]:
    """The classes that several slots may take from one provider, and the amount of each slot."""
    takers: dict[str, list[int]] = {}
    for number, slot in enumerate(slots):
        for resource, _ in slot.resources:
            takers.setdefault(resource, []).append(number)
    return [
        (resource, tuple([dict(slot.resources).get(resource, 0) for slot in slots]))
        for resource, numbers in sorted(takers.items())
        if len(numbers) > 1 and not (isolate and all(slots[number].is_suffixed for number in numbers))
    ]


def _coupling(room: Ints, amounts: tuple[int, ...]) -> Coupling:
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
    return Coupling(amounts, steps[level], level)
