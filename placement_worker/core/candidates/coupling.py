"""Classes of which several slots may take from one provider: whether there is room for all of them.

What is left of such a class matters only as far as the question can tell: a provider with room for 5 is no other than one
with room for 6, if three slots ask for 2 each. So room is a level, the number of different sums of amounts that fit.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from placement_worker.core.candidates.budget import ROWS_PER_STEP, Budget
from placement_worker.core.candidates.columns import Ints
from placement_worker.core.candidates.fitting import Slot, Taken
from placement_worker.core.candidates.woods import Woods

SUMS_MAX = 1024


class Coupling(Struct, frozen=True):
    """`amounts` is what each slot takes of the class, 0 if nothing. `room` is by row, cut down to what can be told."""

    amounts: tuple[int, ...]
    level: Ints
    room: Ints


def couplings_of(
    woods: Woods, slots: Sequence[Slot], budget: Budget, *, isolate: bool, taken: Taken
) -> list[Coupling]:
    """With `isolate`, no two slots with suffixes take from one provider."""
    couplings = []
    asked = [dict(slot.resources) for slot in slots]
    for resource in sorted({resource for each in asked for resource in each}):
        budget.spend(len(slots) + SUMS_MAX)
        amounts = tuple([each.get(resource, 0) for each in asked])
        takers = [slot for slot, amount in zip(slots, amounts, strict=True) if amount]
        if len(takers) > 1 and not (isolate and all(slot.is_suffixed for slot in takers)):
            # Beside the couplings stand numbers that are gone after them.
            budget.hold(2 * 8 * woods.rows)
            budget.spend(8 * woods.rows // ROWS_PER_STEP)
            room = woods.stocks[resource].room(woods.rows)
            for row, less in taken.get(resource, {}).items():
                room[row] = min(room[row], woods.stocks[resource].free[row] - less)
            couplings.append(_coupling(room, amounts))
    return couplings


def _coupling(room: Ints, amounts: tuple[int, ...]) -> Coupling:
    total = sum(amounts)
    sums = {0}
    for amount in amounts:
        sums |= {each + amount for each in sums}
        if len(sums) > SUMS_MAX:
            # Told more finely than the question can: more stands, the same solutions.
            room, sums = np.clip(room, 0, total), set(np.clip(room, 0, total).tolist())
            break
    steps = np.array(sorted(sums), dtype=np.int64)
    level = np.maximum(np.searchsorted(steps, room, side="right") - 1, 0)
    return Coupling(amounts, level, steps[level])
