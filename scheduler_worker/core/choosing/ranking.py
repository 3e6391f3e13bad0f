"""The score of each host for a spec, one number, and how it changes as the host takes instances."""

import numpy as np

from placement_worker.core.candidates.columns import Flags, Floats, Ints, Rows, Words
from scheduler_worker.core.choosing.host_columns import Draft, Hosts
from scheduler_worker.core.choosing.plugins import Filter, Weigher, compared, multiplier_key
from scheduler_worker.core.requests import InstanceSpec

# A difference below this part of a weigher's range (with a multiplier of 1) does not count.
BAND = 0.01
# The score of a full host, below all others.
FULL = -(2**63)

# Sums of the same numbers in another order may differ by so many bands.
_ROUNDING = 1e-6
_PREFERENCE_BITS = np.int64(32)
# How many scores are computed at once for each instance that is to be placed. The head start evens out how these are
# divided among the first hosts of a pool.
_SCORES_PER_INSTANCE = 6
_HEAD_START = 8


class Scoring:
    """The scores of hosts that qualify. The ends of each weigher's scale are those of these hosts at first, and stay so
    while a batch fills them.
    """

    def __init__(
        self, hosts: Hosts, spec: InstanceSpec, weighers: tuple[Weigher, ...], preferences: Words
    ) -> None:
        self.spec = spec
        self._preferences = preferences.astype(np.int64)
        self._scales: list[tuple[Weigher, float, float | Floats]] = []
        overridden = hosts.metadata.has_multipliers
        for each in weighers:
            # A number for all hosts, or one for each set of aggregates.
            multiplier: float | Floats = each.multiplier
            if overridden:
                own = hosts.metadata.numbers(multiplier_key(each), each.multiplier)
                multiplier = each.multiplier if own is None else own
            if isinstance(multiplier, float | int) and not multiplier:
                continue
            weigher = compared(each, hosts, spec)
            weights = weigher.weigh(hosts, spec)
            if weights is None:
                continue
            least = float(weights.min()) if weigher.minimum is None else weigher.minimum
            most = float(weights.max())
            # A weigher that gives all hosts the same weight does not count.
            if most > least:
                self._scales.append((weigher, least, multiplier / (most - least) / BAND))
        bands = self._bands(hosts)
        # The first band ends with the best host, so that hosts close to it are its equals.
        self._top = float(bands.max()) + _ROUNDING
        self.first_scores = self._scores_of(bands, hosts)

    def scores(self, hosts: Hosts) -> Ints:
        """The upper bits say how many bands a host is from the best; the lower ones are the preference among equals."""
        return self._scores_of(self._bands(hosts), hosts)

    def _bands(self, hosts: Hosts) -> Floats:
        bands = np.zeros(len(hosts))
        for weigher, least, factor in self._scales:
            weights = weigher.weigh(hosts, self.spec)
            if weights is not None:
                own = factor if isinstance(factor, float) else factor[hosts.of(hosts.columns.aggregates)]
                bands += (weights - least) * own
        return bands

    def _scores_of(self, bands: Floats, hosts: Hosts) -> Ints:
        bands -= self._top
        scores = np.ceil(bands, out=bands).astype(np.int64)
        scores <<= _PREFERENCE_BITS
        scores |= self._preferences[hosts.rows]
        return scores


class ScoresByCount:
    """For each host of a pool its score after 0, 1, 2 and more instances of a spec, until it is full."""

    def __init__(
        self, draft: Draft, scoring: Scoring, filters: tuple[Filter, ...], pool: Rows, instances: int
    ) -> None:
        self._draft = draft
        self._spec = scoring.spec
        self._amounts = dict(scoring.spec.amounts)
        self._filters = [one for one in filters if one.is_per_instance]
        self._scoring = scoring
        self._pool = pool
        self._highest = instances + 1
        # The better a host, the more instances it is likely to take; the worst is likely to take none.
        share = 1 / (_HEAD_START + np.arange(len(pool)))
        counts = 2 + (_SCORES_PER_INSTANCE * instances / share.sum() * share).astype(np.int64)
        self._scores = self._compute(pool, 0, np.minimum(counts, self._highest))

    def score(self, place: int, taken: int) -> int:
        """The score of the host at this position of the pool; FULL if it can take no more."""
        scores = self._scores[place]
        if taken >= len(scores):
            more = min(2 * len(scores), self._highest) - len(scores)
            scores += self._compute(self._pool[place : place + 1], len(scores), np.array([more]))[0]
        return scores[taken]

    def _compute(self, rows: Rows, first: int, counts: Ints) -> list[list[int]]:
        """`counts` scores for each of these hosts, from that of `first` instances on."""
        ends = np.cumsum(counts)
        taken = np.arange(first, first + int(ends[-1])) - np.repeat(ends - counts, counts)
        hosts = Hosts(self._draft, np.repeat(rows, counts), taken, self._amounts)
        scores = self._scoring.scores(hosts)
        qualify: Flags = hosts.everyone()
        for one in self._filters:
            qualify = qualify & one.passes(hosts, self._spec)
        scores[~qualify] = FULL
        listed: list[int] = scores.tolist()
        return [listed[end - count : end] for end, count in zip(ends.tolist(), counts.tolist(), strict=True)]
