"""Puts the weights of hosts by all weighers on one scale. It is divided into bands: a difference of less than a band
does not count.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from placement_worker.core.candidates.columns import Flags, Floats, Ints
from scheduler_worker.core.choosing.draft import Draft
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Weigher, multiplier_key
from scheduler_worker.core.requests import InstanceSpec

# A difference below this part of a weigher's range (with a multiplier of 1) does not count.
BAND = 0.01

Weights = Sequence[Floats | Ints | None]


class Scale(NamedTuple):
    """How the weights of one weigher become bands: `least`, the lowest weight, gives 0 bands, and each 1 of weight
    above it gives `factor` bands. `factor` is a number for all hosts, or an array with one for each set of aggregates.
    """

    weigher: Weigher
    least: float
    factor: float | Floats


class Weighing:
    """The weighers that count in a batch. The multiplier of each is a number for all hosts, or an array with one for
    each set of aggregates.

    Specs that differ in their amounts alone are mostly weighed alike. So the bands of all hosts are kept for specs that
    are equal in what weighers read, and only hosts that took an instance meanwhile are weighed again.
    """

    def __init__(self, draft: Draft, weighers: Sequence[Weigher]) -> None:
        self._draft = draft
        self.weighers: list[tuple[Weigher, float | Floats]] = []
        metadata = draft.picture.aggregates
        for each in weighers:
            own = (
                metadata.numbers(multiplier_key(each), each.multiplier) if metadata.has_multipliers else None
            )
            if own is not None or each.multiplier:
                self.weighers.append((each, each.multiplier if own is None else own))
        # A weigher that compares the hosts that qualify with each other must not see any other.
        self.compares = any(hasattr(each, "among") for each, _ in self.weighers)
        self._are_alike = not self.compares and not metadata.has_multipliers
        self._scales: list[Scale] = []
        self._read: tuple[object, ...] = ()
        self._bands: Floats | None = None
        self._takers_seen = 0

    def bands(self, hosts: Hosts, scales: list[Scale], spec: InstanceSpec, weights: Weights) -> Floats:
        """How many bands each host is better than the worst, by these scales and weights; callers must not write into
        the array.
        """
        bands = self._kept_bands(hosts, scales, spec)
        if bands is None:
            bands = bands_on(scales, hosts, weights)
            if self._are_alike and not hosts.are_some:
                self._scales, self._read, self._bands = scales, _read(scales, spec), bands
                self._takers_seen = len(self._draft.takers)
        return bands

    def _kept_bands(self, hosts: Hosts, scales: list[Scale], spec: InstanceSpec) -> Floats | None:
        """The cached score bands of all hosts, if they were computed for specs like this one; otherwise None."""
        if (
            self._bands is None
            or hosts.are_some
            or scales != self._scales
            or _read(scales, spec) != self._read
        ):
            return None
        takers = self._draft.takers[self._takers_seen :]
        if len(takers) > len(hosts) // 8:
            return None
        if takers:
            some = Hosts(self._draft, np.array(takers, dtype=np.intp))
            weights = weights_on(scales, some, spec)
            if any(own is None for own in weights):
                # Equal among each other, they may differ from the rest.
                return None
            self._bands[some.rows] = bands_on(scales, some, weights)
            self._takers_seen += len(takers)
        return self._bands


def _read(scales: Sequence[Scale], spec: InstanceSpec) -> tuple[object, ...]:
    return tuple([getattr(spec, field) for scale in scales for field in scale.weigher.reads])


def weights_on(scales: Sequence[Scale], hosts: Hosts, spec: InstanceSpec) -> Weights:
    return [scale.weigher.weigh(hosts, spec) for scale in scales]


def bands_on(scales: Sequence[Scale], hosts: Hosts, weights: Weights) -> Floats:
    """By how many bands each host is better than one that has the least weight of each weigher."""
    bands = np.zeros(len(hosts))
    for (_, least, factor), of_weigher in zip(scales, weights, strict=True):
        if of_weigher is not None:
            own = factor if isinstance(factor, float) else factor[hosts.of(hosts.columns.aggregates)]
            bands += (of_weigher - least if least else of_weigher) * own
    return bands


def most(values: Floats | Ints, qualify: Flags | None) -> float:
    """The largest value among the hosts that qualify, or among all if `qualify` is None."""
    at = int(values.argmax())
    return float(values[at] if qualify is None or qualify[at] else values[qualify].max())


def least(values: Floats | Ints, qualify: Flags | None) -> float:
    """The smallest value among the hosts that qualify, or among all if `qualify` is None."""
    at = int(values.argmin())
    return float(values[at] if qualify is None or qualify[at] else values[qualify].min())
