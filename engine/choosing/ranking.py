"""The score of each host for a spec, one number, and how it changes as the host takes instances.

The weights of all weighers are put on one scale, which is divided into bands: a difference of less than a band does not
count.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.candidates.columns import Flags, Floats, Ints, Rows
from engine.choosing.draft import Draft
from engine.choosing.hosts import Hosts
from engine.choosing.plugins import Filter, Weigher, multiplier_key, passing
from engine.picture.columns import HostPreferences
from engine.picture.members import HostAggregates
from engine.requests.spec import InstanceSpec

# A difference below this part of a weigher's range (with a multiplier of 1) does not count.
BAND = 0.01

# The score of a full host, below all others.
FULL = -(2**63)

# Sums of the same numbers in another order may differ by so many bands.
_ROUNDING = 1e-6
_PREFERENCE_BITS = np.int64(32)
_PREFERENCES = 2**32 - 1
# To find the best few of many hosts, every so many-th is looked at first.
_SAMPLED_EACH = 16
_SORTED_AT_ONCE = 100
# How many of the most preferred hosts are looked at before all are.
_TRIED_AT_LEAST, _TRIED_PER_HOST = 64, 8
# How many scores are computed at once for each instance that is to be placed. The head start evens out how these are
# divided among the first hosts of a pool.
_SCORES_PER_INSTANCE = 6
_HEAD_START = 8


class Weighing(NamedTuple):
    """The weighers that count in a batch. The multiplier of each is a number for all hosts, or an array with one for
    each set of aggregates.

    `compares`: some weigher compares the hosts that qualify with each other, and must not see any other.
    """

    weighers: Sequence[tuple[Weigher, float | Floats]]
    compares: bool
    multipliers_differ: bool


def weighing_by(weighers: Sequence[Weigher], metadata: HostAggregates) -> Weighing:
    counting: list[tuple[Weigher, float | Floats]] = []
    for each in weighers:
        if metadata.has_multipliers and (key := multiplier_key(each)) in metadata.keys:
            counting.append((each, metadata.numbers(key, each.multiplier)))
        elif each.multiplier:
            counting.append((each, each.multiplier))
    compares = any(hasattr(each, "among") for each, _ in counting)
    return Weighing(counting, compares, metadata.has_multipliers)


class _Scale(NamedTuple):
    """How the weights of one weigher become bands: `least`, the lowest weight, gives 0 bands, and each 1 of weight
    above it gives `factor` bands. `factor` is a number for all hosts, or an array with one for each set of aggregates.
    """

    weigher: Weigher
    least: float
    factor: float | Floats


class WeigherPart(NamedTuple):
    """What one weigher says of hosts: the weight of each, and by how many bands it makes the host better than the worst one."""

    weigher: str
    weights: Floats
    bands: Floats


class Best(NamedTuple):
    """The best hosts, by their positions among those that were asked about, and their scores; best first."""

    positions: Rows
    scores: Ints


class Scoring:
    """The scores of hosts for one spec. The scale of each weigher goes from the worst to the best of the hosts that
    qualify at first, and stays so while a batch fills them. `qualify` is None if all of the hosts do.
    """

    def __init__(
        self,
        hosts: Hosts,
        spec: InstanceSpec,
        weighing: Weighing,
        preferences: HostPreferences,
        qualify: Flags | None = None,
    ) -> None:
        self.spec = spec
        self.hosts = hosts
        self.qualify = qualify
        self._preferences = preferences
        self._scales: list[_Scale] = []
        weights: list[Floats | Ints] = []
        for each, multiplier in weighing.weighers:
            # Such a weigher sees all hosts that qualify once, and returns one that judges each of them alone.
            weigher: Weigher = each.among(hosts, spec) if hasattr(each, "among") else each
            own = weigher.weigh(hosts, spec)
            if own is None:
                continue
            highest = _most(own, qualify)
            lowest = _least(own, qualify) if weigher.minimum is None else weigher.minimum
            # A weigher that gives all hosts the same weight does not count.
            if highest > lowest:
                self._scales.append(_Scale(weigher, lowest, multiplier / (highest - lowest) / BAND))
                weights.append(own)
        if weighing.compares or weighing.multipliers_differ:
            self._bands = self._bands_of(hosts, weights)
        else:
            # Specs that differ in their amounts alone are mostly weighed alike.
            read = [getattr(spec, field) for scale in self._scales for field in scale.weigher.reads]
            self._bands = hosts.kept(
                ("bands", *[(id(each), *on_scale) for each, *on_scale in self._scales], *read),
                lambda some: self._bands_of(some, weights if some is hosts else self._weights_of(some)),
            )
        # The first band ends with the best host, so that hosts close to it are its equals.
        self._top = _most(self._bands, qualify) + _ROUNDING

    def scores(self, hosts: Hosts) -> Ints:
        """The score of each host. Its upper bits say how many bands the host is below the best one; its lower bits
        decide between hosts of one band, by the worker's own preference.
        """
        bands = self._bands_of(hosts, self._weights_of(hosts))
        return self._scores_of(bands, self._preferences.values[hosts.rows])

    def below(self, hosts: Hosts) -> Ints:
        """By how many bands each host is below the best one, as a number of at most 0: hosts with the same number are equal."""
        return np.ceil(self._bands_of(hosts, self._weights_of(hosts)) - self._top).astype(np.int64)

    def parts(self, hosts: Hosts) -> Sequence[WeigherPart]:
        """What each weigher says of these hosts that does not say the same of all."""
        found: list[WeigherPart] = []
        for (weigher, lowest, factor), own in zip(self._scales, self._weights_of(hosts), strict=True):
            if own is not None:
                each = factor if isinstance(factor, float) else factor[hosts.of(hosts.columns.aggregates)]
                found.append(
                    WeigherPart(
                        weigher.name, own.astype(np.float64), ((own - lowest) * each).astype(np.float64)
                    )
                )
        return found

    def best(self, count: int, among: Flags | None) -> Best:
        """The best hosts, at most `count`: among those with a flag in `among`, or among all if that is None."""
        if not self.hosts.are_some and (preferred := self._preferred(count, among)) is not None:
            return preferred
        near = self._near(count, among)
        scores = self._scores_of(self._bands[near], self._preferences.values[self.hosts.rows_at(near)])
        if len(near) > max(count, _SORTED_AT_ONCE):
            best = scores.argpartition(len(scores) - count)[len(scores) - count :]
            best.sort()
            near, scores = near[best], scores[best]
        # Equal scores are rare, since a hash is part of each; they keep the order of their rows.
        order = (-scores).argsort(kind="stable")[:count]
        return Best(near[order], scores[order])

    def _preferred(self, count: int, among: Flags | None) -> Best | None:
        """The best hosts if the best band has enough of them, as when most hosts are equal: then the worker's
        preference alone decides. Only the most preferred hosts are looked at; None if too few of these are in the best
        band.
        """
        tried = self._preferences.order[: _TRIED_AT_LEAST + _TRIED_PER_HOST * count]
        equal: Flags = np.ceil(self._bands[tried] - self._top) == 0
        if among is not None:
            equal &= among[tried]
        rows = tried[equal][:count]
        return Best(rows, self._preferences.values[rows]) if len(rows) == count else None

    def _near(self, count: int, among: Flags | None) -> Rows:
        """The positions of the hosts among which the best are. A sample of all hosts is sorted first: hosts that are
        worse than the last of the sample's best are left out.
        """
        bands, preferences = self._bands, self._preferences.values[self.hosts.rows]
        every = slice(None, None, _SAMPLED_EACH)
        if count * 2 * _SAMPLED_EACH < len(bands):
            sample = self._scores_of(bands[every], preferences[every])
            if among is not None:
                sample = sample[among[every]]
            if count <= len(sample):
                sample.partition(len(sample) - count)
                last = int(sample[-count])
                ends = self._top + (last >> 32) - _ROUNDING
                near: Flags = preferences >= last & _PREFERENCES
                near |= bands > ends
                near &= bands > ends - 1
                if among is not None:
                    near &= among
                return near.nonzero()[0]
        return np.arange(len(bands)) if among is None else among.nonzero()[0]

    def _weights_of(self, hosts: Hosts) -> Sequence[Floats | Ints | None]:
        return [scale.weigher.weigh(hosts, self.spec) for scale in self._scales]

    def _bands_of(self, hosts: Hosts, weights: Sequence[Floats | Ints | None]) -> Floats:
        """By how many bands each host is better than one that has the least weight of each weigher."""
        bands = np.zeros(len(hosts))
        for (_, lowest, factor), own in zip(self._scales, weights, strict=True):
            if own is not None:
                each = factor if isinstance(factor, float) else factor[hosts.of(hosts.columns.aggregates)]
                bands += (own - lowest if lowest else own) * each
        return bands

    def _scores_of(self, bands: Floats, preferences: Ints) -> Ints:
        below = bands - self._top
        scores = np.ceil(below, out=below).astype(np.int64)
        scores <<= _PREFERENCE_BITS
        scores |= preferences
        return scores


def _most(values: Floats | Ints, qualify: Flags | None) -> float:
    """The largest value among the hosts that qualify, or among all if `qualify` is None."""
    at = int(values.argmax())
    return float(values[at] if qualify is None or qualify[at] else values[qualify].max())


def _least(values: Floats | Ints, qualify: Flags | None) -> float:
    """The smallest value among the hosts that qualify, or among all if `qualify` is None."""
    at = int(values.argmin())
    return float(values[at] if qualify is None or qualify[at] else values[qualify].min())


class ScoresByCount:
    """For each host of a pool its score after 0, 1, 2 and more instances of a spec, until it is full. `filters` are those
    that are called again after every choice.
    """

    def __init__(
        self, draft: Draft, scoring: Scoring, filters: Sequence[Filter], pool: Rows, instances: int
    ) -> None:
        self._draft = draft
        self._spec = scoring.spec
        self._amounts = dict(scoring.spec.amounts)
        self._filters = filters
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
        """For each host `counts` scores: with `first` instances more, with one more than these, and so on."""
        ends = np.cumsum(counts)
        taken = np.arange(first, first + int(ends[-1])) - np.repeat(ends - counts, counts)
        hosts = Hosts(self._draft, np.repeat(rows, counts), taken, self._amounts)
        scores = self._scoring.scores(hosts)
        scores[~passing(hosts, self._spec, self._filters, hosts.everyone())] = FULL
        listed: list[int] = scores.tolist()
        return [listed[end - count : end] for end, count in zip(ends.tolist(), counts.tolist(), strict=True)]
