"""Resource classes that several slots may take from one provider: is there room for all of them?

How much of such a class is left matters only as far as the query can tell. If three slots ask for 2 each, a provider
with room for 5 is like one with room for 4. So room is given as a level: how many different sums of the amounts fit.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from placement_worker.core.candidates.budget import ROWS_PER_STEP, Budget
from placement_worker.core.candidates.columns import Ints
from placement_worker.core.candidates.fitting import Slot, Taken
from placement_worker.core.candidates.provider_index import ProviderIndex

SUMS_MAX = 1024


class Coupling(Struct, frozen=True):
    """`amounts` is what each slot takes of the class, or 0. `level` and `room` are by row; room is rounded down to a sum."""

    amounts: tuple[int, ...]
    level: Ints
    room: Ints


def couplings_of(
    index: ProviderIndex, slots: Sequence[Slot], budget: Budget, *, isolate: bool, taken: Taken
) -> list[Coupling]:
    """With `isolate`, two slots with suffixes never take from one provider."""
    couplings = []
    asked = [dict(slot.resources) for slot in slots]
    for resource in sorted({resource for each in asked for resource in each}):
        budget.spend(len(slots) + SUMS_MAX)
        amounts = tuple([each.get(resource, 0) for each in asked])
        takers = [slot for slot, amount in zip(slots, amounts, strict=True) if amount]
        if len(takers) > 1 and not (isolate and all(slot.is_suffixed for slot in takers)):
            # The search also makes temporary arrays, which are freed afterwards.
            budget.hold(2 * 8 * index.rows)
            budget.spend(8 * index.rows // ROWS_PER_STEP)
            room = index.stocks[resource].room(index.rows)
            for row, less in taken.get(resource, {}).items():
                room[row] = min(room[row], index.stocks[resource].free[row] - less)
            couplings.append(_coupling(room, amounts))
    return couplings


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
    return Coupling(amounts, level, steps[level])
