"""How good are hosts for a spec, as one number each, and what becomes of that when they take more?"""

import numpy as np

from placement_worker.core.candidates.columns import Flags, Floats, Ints, Rows, Words
from scheduler_worker.core.choosing.host_columns import Draft, Hosts
from scheduler_worker.core.choosing.plugins import Filter, Weigher
from scheduler_worker.core.requests import InstanceSpec

# Of what one weigher with a multiplier of 1 tells between the worst host and the best: less is no difference.
BAND = 0.01
# A full host's worth: below all others.
FULL = -(2**63)

# What sums of the same numbers in another order may differ by, in bands.
_ROUNDING = 1e-6
_PREFERENCE_BITS = np.int64(32)
# Rungs that are looked up at once, for each instance that is to be placed; and how little the first hosts of a pool
# differ in how many of them they get.
_RUNGS_PER_INSTANCE = 6
_HEAD_START = 8


class Order:
    """What is best, among hosts that qualify. The ends of each weigher's scale are those of these hosts, and stay so
    while a batch fills them.
    """

    def __init__(
        self, hosts: Hosts, spec: InstanceSpec, weighers: tuple[Weigher, ...], preferences: Words
    ) -> None:
        self.spec = spec
        self._preferences = preferences.astype(np.int64)
        self._scales: list[tuple[Weigher, float, float]] = []
        for weigher in weighers:
            weights = weigher.weigh(hosts, spec)
            least = float(weights.min()) if weigher.minimum is None else weigher.minimum
            most = float(weights.max())
            # Where all are worth the same, this weigher tells nothing.
            if most > least:
                self._scales.append((weigher, least, weigher.multiplier / (most - least) / BAND))
        bands = self._bands(hosts)
        # The first band ends with the best of all, so that whoever is close to it is its equal.
        self._top = float(bands.max()) + _ROUNDING
        self.worths_at_first = self._worths(bands, hosts)

    def worths(self, hosts: Hosts) -> Ints:
        """Above, how many bands each is from the best; below, the preference that tells equals apart."""
        return self._worths(self._bands(hosts), hosts)

    def _bands(self, hosts: Hosts) -> Floats:
        bands = np.zeros(len(hosts))
        for weigher, least, factor in self._scales:
            bands += (weigher.weigh(hosts, self.spec) - least) * factor
        return bands

    def _worths(self, bands: Floats, hosts: Hosts) -> Ints:
        bands -= self._top
        worths = np.ceil(bands, out=bands).astype(np.int64)
        worths <<= _PREFERENCE_BITS
        worths |= self._preferences[hosts.rows]
        return worths


class Ladders:
    """For each host of a pool its worth after it took 0, 1, 2 and more instances of a spec, until it is full."""

    def __init__(
        self, draft: Draft, order: Order, filters: tuple[Filter, ...], pool: Rows, instances: int
    ) -> None:
        self._draft = draft
        self._spec = order.spec
        self._amounts = dict(order.spec.amounts)
        self._filters = [one for one in filters if one.is_per_instance]
        self._order = order
        self._pool = pool
        self._highest = instances + 1
        # The better a host, the more it is likely to take; who is worst is likely not to be asked.
        share = 1 / (_HEAD_START + np.arange(len(pool)))
        rungs = 2 + (_RUNGS_PER_INSTANCE * instances / share.sum() * share).astype(np.int64)
        self._rungs = self._look(pool, 0, np.minimum(rungs, self._highest))

    def worth(self, place: int, taken: int) -> int:
        """Of the host at this place of the pool; FULL if it can take no more."""
        rungs = self._rungs[place]
        if taken >= len(rungs):
            more = min(2 * len(rungs), self._highest) - len(rungs)
            rungs += self._look(self._pool[place : place + 1], len(rungs), np.array([more]))[0]
        return rungs[taken]

    def _look(self, rows: Rows, first: int, counts: Ints) -> list[list[int]]:
        """So many rungs for each of these hosts, from the first one on."""
        ends = np.cumsum(counts)
        taken = np.arange(first, first + int(ends[-1])) - np.repeat(ends - counts, counts)
        hosts = Hosts(self._draft, np.repeat(rows, counts), taken, self._amounts)
        worths = self._order.worths(hosts)
        qualify: Flags = hosts.everyone()
        for one in self._filters:
            qualify = qualify & one.passes(hosts, self._spec)
        worths[~qualify] = FULL
        rungs: list[int] = worths.tolist()
        return [rungs[end - count : end] for end, count in zip(ends.tolist(), counts.tolist(), strict=True)]
