"""When the orders of a load run at a rate are due: fixed before the run begins, whatever the cloud does.

Pure. The latency of an order counts from the time at which it is due. If it counted from the time of sending, a generator that waits for
a slow cloud would send less while the cloud is slow, and the percentiles would not show it: coordinated omission.
"""

import random
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, get_args

Arrivals = Literal["even", "poisson"]
ARRIVALS: tuple[Arrivals, ...] = get_args(Arrivals)
SEED = 1


def due_times_s(arrivals: Arrivals, rate: float, count: int) -> Sequence[float]:
    """When each of `count` orders is due, in seconds after the begin, at `rate` orders per second.

    `even`: at equal distances. `poisson`: at random, as orders of many clients come that know nothing of each other. The
    same numbers give the same times.
    """
    if arrivals == "even":
        return array("d", (number / rate for number in range(count)))
    chance = random.Random(SEED)
    return array("d", accumulate(chance.expovariate(rate) for _ in range(count)))


def due_by(due_s: Sequence[float], elapsed_s: float) -> int:
    """How many orders are due at this time."""
    return bisect_right(due_s, elapsed_s)
