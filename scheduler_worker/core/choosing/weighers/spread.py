"""Spreads instances over zones, racks or whatever a key of aggregates' metadata names: as many in each as possible.

The hosts with one value of the key are a domain. Within a domain hosts are numbered, those with few instances first. A
host's weight is the number of instances that its domain has when the host's turn comes: those of now, plus the host's
number. A host that takes one goes behind all others of its domain. So the domain with the fewest instances always has
the best host, and several instances of one request are divided as evenly as those of several requests.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from placement_worker.core.candidates.columns import Floats, Ints
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Weigher
from scheduler_worker.core.requests.spec import InstanceSpec


class Spread(Weigher):
    """Prefers hosts in the domain with the fewest instances. Each of `keys` is a key of aggregates' metadata, and the
    hosts with one value of the key are a domain. With several keys, an instance goes where its domains have the fewest
    instances together.
    """

    name = "spread"
    woken_by = (Change.FACTS, Change.USAGE, Change.AGGREGATES, Change.PROVIDERS)

    def __init__(self, keys: Sequence[str], multiplier: float) -> None:
        self.keys = keys
        self.multiplier = multiplier

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:
        return self.among(hosts, spec).weigh(hosts, spec) if self.keys else None

    def among(self, hosts: Hosts, spec: InstanceSpec) -> Weigher:  # noqa: ARG002 - every request is spread alike
        return _SpreadAmong(self.multiplier, hosts, [_turns(hosts, key) for key in self.keys])


class _Turns(NamedTuple):
    """When the turns of each host come, if the hosts of a domain take instances one after another.

    `first`: how many instances the domain has before the host's first turn. `step`: how many more it has before each
    next one, which is the number of the domain's hosts.
    """

    first: Ints
    step: Ints


def _turns(hosts: Hosts, key: str) -> _Turns:
    domains = hosts.domains(key)
    sizes = np.bincount(domains)
    order = np.lexsort((hosts.busy("instances"), domains))
    # Where the hosts of each domain begin in this order.
    starts = np.cumsum(sizes) - sizes
    places = np.empty(len(hosts), dtype=np.int64)
    places[order] = np.arange(len(hosts)) - starts[domains[order]]
    return _Turns(hosts.load_of_domains(key)[domains] + places, sizes[domains])


class _SpreadAmong(Weigher):
    """The `spread` weigher, prepared for the hosts that qualify for one spec."""

    name = "spread"

    def __init__(self, multiplier: float, hosts: Hosts, turns: Sequence[_Turns]) -> None:
        self.multiplier = multiplier
        self._first = np.zeros(hosts.columns.rows, dtype=np.int64)
        self._step = np.zeros(hosts.columns.rows, dtype=np.int64)
        for each in turns:
            self._first[hosts.rows] += each.first
            self._step[hosts.rows] += each.step

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:  # noqa: ARG002 - every request is spread alike
        weights: Ints = -(self._first[hosts.rows] + hosts.taken * self._step[hosts.rows])
        return weights
